"""Operators on transposed operands: the transpose of what they give on the operands as they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ExpandAttrs,
    PadAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TileAttrs,
)
from qdqbridge.core.ops.build import inverse, permuted_constant, permuted_operand, widened
from qdqbridge.core.ops.table import BY_NAME
from tests.onnx_models import Builder, ints, load, ops, run

SHAPE = (2, 3, 4)
CASES: dict[str, Attributes] = {
    "Concat": AxisAttrs(1),
    "Slice": SliceAttrs((1, 0), (4, 1), (2, 0), (2, 1)),
    "Split": SplitAttrs(2, (1, 3)),
    "Pad": PadAttrs((1, 0, 2, 0, 3, 1), "constant", 5.0),
    "Tile": TileAttrs((1, 3, 2)),
    "Expand": ExpandAttrs((2, 3, 4)),
    "ReduceMax": ReduceAttrs((0, 2), keepdims=True),
    "Softmax": SoftmaxAttrs((1,)),
    "Resize": ResizeAttrs("nearest", "asymmetric", "floor", (1.0, 2.0, 3.0), None),
}


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("name", CASES)
def test_attributes_name_the_permuted_axes(name: str, perm: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    operands = [x, x + 1] if name == "Concat" else [x]
    compute, attributes = BY_NAME[name].compute, CASES[name]
    moved = compute(permuted_attributes(attributes, perm), [v.transpose(perm) for v in operands])
    for given, wanted in zip(moved, compute(attributes, operands), strict=True):
        assert np.array_equal(given, wanted.transpose(perm))
    assert permuted_attributes(permuted_attributes(attributes, perm), inverse(perm)) == attributes


def _quantized(shape: tuple[int, ...], params: QuantParams) -> Value:
    stored = np.arange(np.prod(shape), dtype=np.int8).reshape(shape)
    return Value(QuantType(params, shape), "c", constant=Constant.of(stored))


def _params(scale: Any, axis: int | None = None, block: int | None = None) -> QuantParams:
    array = np.asarray(scale, np.float32)
    return QuantParams(DType.INT8, array, np.zeros(array.shape, np.int32), axis, block)


def _real(value: Value) -> np.ndarray[Any, Any]:
    assert value.constant is not None and value.quant is not None
    return dequantize(value.constant.numpy(), value.quant.params)


CONSTANTS: dict[str, Callable[[], Value]] = {
    "one scale": lambda: _quantized((2, 3, 4), _params(0.5)),
    "a scale per channel": lambda: _quantized((2, 3, 4), _params([1, 2, 4], 1)),
    "scales of fewer axes": lambda: _quantized((3, 4), _params([1, 2, 4, 8], 1)),
    "a vector": lambda: _quantized((4,), _params([1, 2, 4, 8], 0)),
    "scales of blocks": lambda: _quantized(
        (2, 3, 4), _params(2.0 ** np.arange(12).reshape(2, 3, 2), 2, 2)
    ),
    "blocks of fewer axes": lambda: _quantized(
        (3, 4), _params(2.0 ** np.arange(6).reshape(3, 2), 1, 2)
    ),
}


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("case", CONSTANTS)
def test_scales_go_where_their_axis_goes(case: str, perm: tuple[int, ...]) -> None:
    value = CONSTANTS[case]()
    real = _real(value)
    wanted = real.reshape((1,) * (3 - real.ndim) + real.shape).transpose(perm)
    moved = permuted_operand(value, perm)
    assert moved is not None and np.array_equal(_real(moved), wanted)
    same = permuted_constant(widened(value, 3), perm)
    assert np.array_equal(_real(same), wanted) and same.type == moved.type


def test_constants_of_more_axes_stay() -> None:
    assert permuted_operand(_quantized((2, 3, 4), _params(1.0)), (1, 0)) is None


@pytest.mark.parametrize("channels_first", [False, True])
def test_a_constant_of_many_scales_is_no_border_of_a_layout(channels_first: bool) -> None:
    b = Builder(17)
    x = b.op("Transpose", b.qdq(b.input("x", [1, 3, 4, 5]), 0.05, 100), perm=[0, 2, 3, 1])
    scales = np.array([0.5, 0.25, 0.125], np.float32)
    c = b.weight(ints((1, 4, 5, 3)), scales, axis=3)
    y = b.qdq(b.op("Mul", b.qdq(x, 0.05, 100), c), 0.5, 128)
    b.output(b.op("Transpose", y, perm=[0, 3, 1, 2]))
    raw = load(b.model())
    graph = canonicalize(raw, channels_first=channels_first)
    assert "Transpose" not in ops(graph)
    data = {"x": np.random.default_rng(1).normal(size=(1, 3, 4, 5)).astype(np.float32)}
    (before,), (after,) = run(raw, data), run(graph, data)
    assert before.tobytes() == after.tobytes()
