"""Every script of ``examples/`` runs, and prints what it is there for."""

from __future__ import annotations

import runpy
import sys

import numpy as np
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


def test_there_is_a_test_for_each():
    tested = {
        "compile_and_compare", "decode_language_model", "quantize_and_save", "tflite_to_onnx"
    }  # fmt: skip
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


@pytest.mark.relax
def test_compile_and_compare(monkeypatch, capsys):
    pytest.importorskip("tvm")
    out = printed_by("compile_and_compare", monkeypatch, capsys)
    assert "equal to the interpreter: True" in out
    assert "TVM against onnxruntime" in out


@pytest.mark.relax
def test_decode_language_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tvm")
    out = printed_by("decode_language_model", monkeypatch, capsys, str(tmp_path / "d.onnx"))
    assert "onnxruntime writes the same: True" in out
    assert (tmp_path / "d.onnx").stat().st_size < 150_000
    session = onnxruntime.InferenceSession(tmp_path / "d.onnx", providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 6


def test_quantize_and_save(tmp_path, monkeypatch, capsys):
    out = printed_by("quantize_and_save", monkeypatch, capsys, str(tmp_path / "q.onnx"))
    assert "q.onnx: the same digest when it is read again: True" in out
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    assert len(session.get_outputs()) == 1


def test_tflite_to_onnx(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
    out = printed_by("tflite_to_onnx", monkeypatch, capsys, str(tmp_path / "n.onnx"))
    assert "n.onnx: the same digest when it is read again: True" in out
    session = onnxruntime.InferenceSession(tmp_path / "n.onnx", providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    (result,) = session.run(None, {value.name: np.zeros(value.shape, np.int8)})
    assert isinstance(result, np.ndarray) and result.dtype == np.int8
