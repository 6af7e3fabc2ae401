"""Where profile ``qnn`` must be silent: files that Hexagon takes whole and computes rightly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qdqbridge
from qdqbridge.app.pipeline import check
from tests.onnx_models import Builder

Made = tuple[onnx.ModelProto, tuple[int, ...], type[np.generic], float]
_FEW_STEPS = 2


def pads_of_one_number() -> Made:
    """Two Pads are filled with one stored number, read with two scales."""
    b = Builder(opset=17)
    widths = b.init(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    stored = b.init(np.uint8(50))
    x = b.qdq(b.input("x", [1, 3, 6, 6]), 0.02, 128, np.uint8)
    fills = [b.dq(stored, *of, np.uint8) for of in ((0.02, 128), (0.05, 3))]
    y = b.qdq(b.op("Pad", x, widths, fills[0]), 0.02, 128, np.uint8)
    y = b.qdq(b.op("Add", y, y), 0.05, 100, np.uint8)
    b.output(b.qdq(b.op("Pad", y, widths, fills[1]), 0.05, 100, np.uint8), [1, 3, 10, 10])
    return b.model(), (1, 3, 6, 6), np.float32, 0.05


def a_choice_of_half_floats() -> Made:
    b = Builder(opset=17)
    mask = b.init(np.array([[True, False, True, False]]))
    x = b.input("x", [2, 4], TensorProto.FLOAT16)
    y = b.op("Where", mask, b.op("Add", x, x), b.init(np.array(-3, np.float16)))
    b.output(b.op("Add", y, x), [2, 4], TensorProto.FLOAT16)
    return b.model(), (2, 4), np.float16, 0.01


@pytest.mark.parametrize("make", [pads_of_one_number, a_choice_of_half_floats])
def test_what_hexagon_takes_whole_is_no_finding(make: Callable[[], Made], tmp_path: Path) -> None:
    model, shape, kind, step = make()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert {found.rule for found in check(path, "qnn")} <= {"no-quantization"}
    data = {"x": np.random.default_rng(1).normal(size=shape).astype(kind)}
    graph = qdqbridge.load(path)
    (name,) = graph.output_names
    with qdqbridge.open_engine("qnn-htp", path) as engine:
        found = engine.run(data, [name])[name]
    off = np.abs(found.astype(np.float64) - qdqbridge.evaluate(graph, data)[name]).max()
    assert off <= _FEW_STEPS * step


def test_half_scales_below_opset_19_are_named(tmp_path: Path) -> None:
    """onnxruntime refuses such a file."""
    b = Builder(opset=17)
    x = b.input("x", [2, 4], TensorProto.FLOAT16)
    scale, zero = b.init(np.float16(0.02)), b.init(np.uint8(128))
    b.output(b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero), [2, 4])
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    assert "contrib-domain" in {found.rule for found in check(path, "qnn")}
