"""What is reported of data that do not fit the quantization of a model's inputs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.report.inspection import misfits
from tests.places import MODELS

DATA = np.load(MODELS / "digits_test.npz")["x"]
QUANTIZED = sorted(MODELS.glob("digits_*s8*.onnx"))


@pytest.mark.parametrize("model", QUANTIZED, ids=lambda path: path.stem)
def test_data_of_another_scale_are_told(model: Path) -> None:
    graph = qb.load(model)
    (value,) = graph.inputs
    shape = value.type.shape
    assert shape is not None
    for count in (1, 8, 360):
        images = DATA[:count].reshape(count, *map(int, shape[1:]))
        assert misfits(graph, {value.name: images}) == []
    (told,) = misfits(graph, {value.name: 30 * DATA})
    assert f"'{value.name}'" in told and "% of these numbers lie outside" in told
    (told,) = misfits(graph, {value.name: DATA / 50})
    assert re.search("of which these numbers fill [12] %", told)
    broken = np.where(DATA > 0.9, np.nan, DATA)
    assert misfits(graph, {value.name: broken}) == []


def test_float_models_and_integer_inputs_say_nothing() -> None:
    graph = qb.load(MODELS / "digits_cnn_float.onnx")
    assert misfits(graph, {graph.inputs[0].name: 1e6 * DATA}) == []
    integers = qb.parse(
        "qnn-raw 1\ninput %x: quant<uint8, 0.01, 0>[4]\n"
        "%y = dequantize(%x): float32[4]\noutput %y\n"
    )
    assert misfits(integers, {"x": np.full(4, 255, np.uint8)}) == []


def test_the_command_line_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, 30 * DATA[:16])
    assert run(["run", str(QUANTIZED[-1]), "--data", str(data), "--engine", "interpreter"]) == 0
    assert "calibrated with data of another scale" in " ".join(capsys.readouterr().err.split())
