"""Binary and n-ary operators against onnxruntime: no stored value differs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, per_tensor
from qdqbridge.core.ops.attributes import AxisAttrs
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    assert_equal,
    mismatches,
    ours,
    pairs,
    quantized,
    random_params,
    theirs,
)

DTYPES = (DType.UINT8, DType.INT8, DType.INT16)
SETS = 50


def operands(dtype: DType, seed: int, px: QuantParams) -> tuple[Operand, Operand]:
    rng = np.random.default_rng(seed)
    pb = px if seed % 4 == 0 else random_params(rng, dtype, nice=seed % 3 != 2)
    return quantized(rng, (4, 1, 60), px), quantized(rng, (5, 60), pb)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Min", "Max", "PRelu"])
def test_binary_equals_onnxruntime(name, dtype) -> None:
    for k, (px, py) in enumerate(pairs(3, dtype, SETS)):
        one, other = operands(dtype, k, px)
        if name == "PRelu":  # a slope is no larger than its input
            one = Operand(np.repeat(one.values, 5, axis=1), one.params)
        assert_equal(name, NO_ATTRIBUTES, (one, other), py)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["Div", "Pow"])
def test_binary_with_a_domain_equals_onnxruntime(name, dtype) -> None:
    """0 / 0 and negative bases are NaN, which becomes the smallest stored value."""
    compared = 0
    for k, (px, py) in enumerate(pairs(4, dtype, SETS)):
        pair = operands(dtype, k, px)
        (their,) = theirs(name, pair, [py])
        with np.errstate(all="ignore"):
            (our,) = ours(name, NO_ATTRIBUTES, pair, [py])
        assert mismatches(their, our) == 0
        compared += our.size
    assert compared > SETS * 500


@pytest.mark.parametrize("name", ["Add", "Mul", "Div"])
def test_one_float_operand_equals_onnxruntime(name) -> None:
    for k, (px, py) in enumerate(pairs(5, DType.UINT8, SETS)):
        a, _ = operands(DType.UINT8, k, px)
        b = Operand(np.random.default_rng(k).standard_normal((5, 60)).astype(np.float32))
        assert_equal(name, NO_ATTRIBUTES, [a, b], py)


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_three_operands_equal_onnxruntime(name) -> None:
    for k, (px, py) in enumerate(pairs(6, DType.INT8, SETS)):
        a, b = operands(DType.INT8, k, px)
        assert_equal(name, NO_ATTRIBUTES, [a, b, a], py)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where_and_concat_equal_onnxruntime(dtype) -> None:
    for k, (px, py) in enumerate(pairs(7, dtype, SETS)):
        rng = np.random.default_rng(k)
        a, b = operands(dtype, k, px)
        condition = Operand(rng.integers(0, 2, (5, 60)).astype(np.bool_))
        assert_equal("Where", NO_ATTRIBUTES, [condition, a, b], py)
        joined = [quantized(rng, (2, n, 30), p) for n, p in ((3, px), (1, py), (2, b.params or px))]
        assert_equal("Concat", AxisAttrs(1), joined, py, {"axis": 1})


def test_concat_passes_an_operand_of_its_own_type_unchanged() -> None:
    """Even 32-bit integers, which float32 could not carry."""
    params = per_tensor(DType.INT32, 1.0)
    stored = np.asarray([2**31 - 1, -(2**31), 2**24 + 1], np.int32)
    contract = BY_NAME["Concat"].contract
    assert contract is not None
    type_ = QuantType(params, (3,))
    answer = contract(AxisAttrs(0), (stored, stored), (type_, type_), (type_,))
    assert answer is not None
    np.testing.assert_array_equal(answer[0], np.concatenate([stored, stored]))


def test_power_is_rounded_once() -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(0.1, 9, 2000).astype(np.float32)
    b = rng.uniform(-3, 3, 2000).astype(np.float32)
    (result,) = BY_NAME["Pow"].compute(NO_ATTRIBUTES, (a, b))
    expected = [np.float32(math.pow(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(result, np.asarray(expected))


def test_integers_that_are_not_quantized_divide_towards_zero() -> None:
    a, b = np.asarray([7, -7, 7, -7], np.int64), np.asarray([2, 2, -2, -2], np.int64)
    (quotient,) = BY_NAME["Div"].compute(NO_ATTRIBUTES, (a, b))
    assert quotient.tolist() == [3, -3, -3, 3] and quotient.dtype == np.int64
