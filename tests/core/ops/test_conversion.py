"""The four conversions: what they do to stored values, and that they leave reals alone."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import codes
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Array
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType, per_tensor
from qdqbridge.core.ops.attributes import IN_FLOAT32
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import Operand, mismatches, ours, pairs, theirs


def convert(name: str, stored: Array, source: ValueType, result: ValueType) -> Array:
    contract = BY_NAME[name].contract
    assert contract is not None
    attributes = BY_NAME[name].attributes()
    answer = contract(attributes, (stored,), (source,), (result,))
    assert answer is not None
    return answer[0]


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8, DType.INT16, DType.UINT16], ids=str)
def test_every_code_requantizes_as_onnxruntime_does(dtype) -> None:
    """``DequantizeLinear -> QuantizeLinear``, written with an Identity between them."""
    for px, py in pairs(19, dtype, 100 if dtype.bits == 8 else 6):
        x = Operand(codes(px), px)
        (their,) = theirs("Identity", [x], [py])
        (our,) = ours("requantize", NO_ATTRIBUTES, [x], [py])
        assert mismatches(their, our) == 0


def test_quantize_and_dequantize_equal_onnxruntime() -> None:
    for seed, (px, py) in enumerate(pairs(20, DType.INT8, 30)):
        rng = np.random.default_rng(seed)
        half = (rng.integers(-300, 300, 500) / 2).astype(np.float32) * np.float32(float(py.scale))
        x = Operand(np.concatenate([half, rng.standard_normal(500).astype(np.float32)]))
        (their,) = theirs("Identity", [x], [py])
        (our,) = ours("quantize", IN_FLOAT32, [x], [py])
        assert mismatches(their, our) == 0
        q = Operand(codes(px), px)
        (their,) = theirs("Identity", [q], [None])
        (our,) = ours("dequantize", NO_ATTRIBUTES, [q], [None])
        np.testing.assert_array_equal(their, our)


def test_quantize_takes_a_plain_value_through_its_contract() -> None:
    params = per_tensor(DType.UINT8, 0.5, 10)
    x = np.asarray([-10.0, 0.25, 0.75, 1e9, np.inf, -np.inf], np.float32)
    result = convert("quantize", x, TensorType(DType.FLOAT32, (6,)), QuantType(params, (6,)))
    assert result.tolist() == [0, 10, 12, 255, 255, 0]


def test_requantize_respects_a_narrow_range() -> None:
    params = per_tensor(DType.INT8, 0.5)
    result = ours(
        "requantize",
        NO_ATTRIBUTES,
        [Operand(np.asarray([-9, 3, 99], np.int8), params)],
        [params.with_range(0, 12)],
    )
    assert result[0].tolist() == [0, 3, 12]


def test_reinterpret_keeps_the_bits() -> None:
    stored = np.asarray([0, 127, 128, 255], np.uint8)
    before = QuantType(per_tensor(DType.UINT8, 0.5, 3), (4,))
    other = QuantType(per_tensor(DType.UINT8, 0.7, 9), (4,))
    signed = QuantType(per_tensor(DType.INT8, 0.7), (4,))
    assert convert("reinterpret", stored, before, other).tolist() == stored.tolist()
    assert convert("reinterpret", stored, before, signed).tolist() == [0, 127, -128, -1]


@pytest.mark.parametrize("name", ["quantize", "dequantize", "requantize", "reinterpret"])
def test_the_real_valued_operator_is_the_identity(name) -> None:
    x = np.asarray([0.1, -3.0])
    assert BY_NAME[name].compute(NO_ATTRIBUTES, (x,))[0] is x
