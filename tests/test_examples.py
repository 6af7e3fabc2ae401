"""Every script of ``examples/`` runs, and prints what it is there for."""

from __future__ import annotations

import runpy
import sys

import onnxruntime
import pytest

from tests.places import ROOT

EXAMPLES = ROOT / "examples"


def printed_by(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


GALLERY = {
    "import_and_explain": "qoperator.onnx: the same network: True",
    "quantize_and_repair": "quantized.onnx: the same digest when it is read again: True",
    "compare_engines": "TVM: right on 99.2%, equal to the interpreter: True",
    "partition_for_npu": "npu: 6 composites in 3 region(s) hold 18 of 25 operators, 7 left",
    "tflite_and_ethos_u": "network.onnx: the same digest when it is read again: True",
    "deploy_to_arm": "'weight bytes': 26408",
}
"""The scripts of docs/gallery.md, and a line that each prints."""


def test_there_is_a_test_and_a_picture_for_each():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == {*GALLERY, "bars", "decode_language_model"}
    page = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    assert all(f"(images/gallery/{name}.svg)" in page for name in GALLERY)


@pytest.mark.relax
@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tvm")
    pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
    monkeypatch.syspath_prepend(EXAMPLES)
    assert GALLERY[name] in printed_by(name, monkeypatch, capsys, str(tmp_path))
    assert "</svg>" in (tmp_path / f"{name}.svg").read_text("utf-8")
    for file in tmp_path.glob("*.onnx"):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        assert len(session.get_outputs()) == 1


@pytest.mark.relax
def test_decode_language_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tvm")
    out = printed_by("decode_language_model", monkeypatch, capsys, str(tmp_path / "d.onnx"))
    assert "onnxruntime writes the same: True" in out
    assert (tmp_path / "d.onnx").stat().st_size < 150_000
    session = onnxruntime.InferenceSession(tmp_path / "d.onnx", providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 6
