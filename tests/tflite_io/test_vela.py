"""What Vela says of files that we write."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.places import MODELS, ROOT

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.vela import compiled
from qdqbridge.tflite_io.writer import converted

MODEL = MODELS / "digits_cnn_s8s8_per_tensor.onnx"


@pytest.fixture
def vela(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the environments of engines and of Relay on the PATH, which have Vela."""
    beside = (str(ROOT / name / "bin") for name in (".venv-engines", ".venv-relay"))
    monkeypatch.setenv("PATH", os.pathsep.join((os.environ["PATH"], *beside)))
    if shutil.which("vela") is None:
        pytest.skip("Vela is not installed")


@pytest.mark.usefixtures("vela")
def test_the_products_of_a_network_run_on_the_npu() -> None:
    asked = ["--profile", "ethos-u", "--check", "--layout", "nhwc", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "qdqbridge", "export", str(MODEL), *asked],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["macs_on_npu"] == 1.0
    assert report["macs"] == 341_632
    stays = {each["operator"]: each["reason"] for each in report["operators"]
             if each["target"] == "CPU"}  # fmt: skip
    assert set(stays) == {"QUANTIZE", "DEQUANTIZE"}
    assert "Float32" in stays["QUANTIZE"]


@pytest.mark.usefixtures("vela")
def test_a_float_island_stays_on_the_cpu() -> None:
    graph = qb.parse(
        "qnn-raw 1\ninput %x: quant<int8, 0.05, 3>[1,4]\n"
        "%y = Cos(%x): quant<int8, 0.01, 0>[1,4]\noutput %y\n"
    )
    report = compiled(converted(graph).model)
    assert not any(operator.npu for operator in report.operators)


PRODUCTS: dict[str, tuple[str, set[str]]] = {
    "a float result": (
        "%y = Conv(%x, const quant<int8, [0.01 0.02], 0, axis=0>[2,4,1,1] [1 -2 3 -4 5 -6 7 -8], "
        "const float32[2] [0.5 -0.25]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}: "
        "float32[1,2,6,8]",
        {"result-of-16-bits"},
    ),
    "a weight that was dequantized": (
        "%r = dequantize(%x): float32[1,4,6,8]\n"
        "%f = Conv(%r, const float32[2,4,1,1] ["
        "0.1240234375 -0.01953125 0.029296875 -0.0390625 0.048828125 -0.05859375 0.068359375 "
        "-0.078125], "
        "const float32[2] [0 0]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}: "
        "float32[1,2,6,8]\n%y = quantize(%f): quant<int8, 0.05, 3>[1,2,6,8]",
        set(),
    ),
    "a float weight": (
        "%r = dequantize(%x): float32[1,4,6,8]\n"
        "%f = Conv(%r, const float32[2,4,1,1] [0.127 -0.0213 0.03 -0.04 0.05 -0.06 0.07 -0.08], "
        "const float32[2] [0 0]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}: "
        "float32[1,2,6,8]\n%y = quantize(%f): quant<int8, 0.05, 3>[1,2,6,8]",
        {"weight-of-8-bits"},
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_that_is_float_in_the_model_becomes_one_of_integers(name: str) -> None:
    lines, told = PRODUCTS[name]
    graph = qb.parse(f"qnn-raw 1\ninput %x: quant<int8, 0.05, 3>[1,4,6,8]\n{lines}\noutput %y\n")
    made = converted(graph, npu=True)
    assert {note.rule for note in made.notes} == told
    (conv,) = (n for n in made.graph.nodes if n.op.name == "Conv")
    assert all(v is not None and v.quant is not None for v in (*conv.inputs, conv.output))
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 6, 8)).astype(np.int8)
    before, after = qb.evaluate(graph, {"x": x})["y"], qb.evaluate(made.graph, {"x": x})["y"]
    if conv.output.type.dtype.label == "int16":
        assert conv.output.quant is not None
        step = float(conv.output.quant.params.scale)
        assert np.abs(before - after).max() <= 0.51 * step
        assert np.abs(after).max() > 2**13 * step, "16 bits are not made use of"
    else:
        assert np.abs(before.astype(int) - after.astype(int)).max() <= int("weight" in name)


@pytest.mark.usefixtures("vela")
@pytest.mark.parametrize("accelerator", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_vela_takes_it_for_the_npu(name: str, accelerator: str) -> None:
    graph = qb.parse(
        f"qnn-raw 1\ninput %x: quant<int8, 0.05, 3>[1,4,6,8]\n{PRODUCTS[name][0]}\noutput %y\n"
    )
    report = compiled(converted(graph, npu=True).model, accelerator)
    assert report.share == 1.0
    assert report.macs == 2 * 4 * 6 * 8


@pytest.mark.usefixtures("vela")
def test_the_tutorial_ends_with_a_command_stream(tmp_path: Path) -> None:
    """Runs the commands of docs/tflite.md, as they are written there."""
    text = (ROOT / "docs" / "tflite.md").read_text(encoding="utf-8")
    blocks = text.partition("## Tutorial")[2].split("```")[1::2]
    asked = shlex.split(next(b for b in blocks if "qdqbridge export" in b).replace("\\\n", ""))
    command = asked[asked.index("export") :]
    ended = subprocess.run(
        [sys.executable, "-m", "qdqbridge", *command], capture_output=True, text=True,
        check=False, timeout=240, cwd=_with_models(tmp_path),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    summary = next(b for b in blocks if "MACs on the NPU" in b).strip()
    assert ended.stdout.strip().splitlines()[-1] == summary
    made = shlex.split(next(b for b in blocks if "--output-dir out" in b))
    program = shutil.which("vela")
    assert program is not None
    subprocess.run([program, *made[1:]], check=True, timeout=240, cwd=tmp_path, capture_output=True)
    stream = (tmp_path / "out" / "digits_vela.tflite").read_bytes()
    assert b"ethos-u" in stream
    assert b"COP1" in stream, "no command stream for the driver"


def _with_models(folder: Path) -> Path:
    (folder / "models").symlink_to(MODELS)
    return folder


def test_what_is_no_accelerator_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="no accelerator 'u99'"):
        compiled(converted(qb.load(MODEL)).model, "u99")
