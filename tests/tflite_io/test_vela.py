"""What Vela says of files that we write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.vela import compiled
from qdqbridge.tflite_io.writer import converted

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "digits_cnn_s8s8_per_tensor.onnx"


@pytest.fixture
def vela(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the environment of Relay on the PATH, which has Vela for TVM's Ethos-U table."""
    beside = ROOT / ".venv-relay" / "bin"
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{beside}")
    if shutil.which("vela") is None:
        pytest.skip("Vela is not installed")


@pytest.mark.usefixtures("vela")
def test_the_products_of_a_network_run_on_the_npu() -> None:
    asked = ["--profile", "ethos-u", "--check", "--layout", "nhwc", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "qdqbridge", "export", str(MODEL), *asked],
        capture_output=True, text=True, check=False,
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


def test_what_is_no_accelerator_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="no accelerator 'u99'"):
        compiled(converted(qb.load(MODEL)).model, "u99")
