"""The elementary steps of the numeric contract: ties, order, saturation, division."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import (
    codes,
    dequantize,
    multiplier,
    quantize,
    requantize,
    saturate,
)
from qdqbridge.core.graph.types import per_tensor
from tests.core.graph.graphs import Array, quant


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_ties_go_to_even() -> None:
    params = per_tensor(DType.INT8, 1.0)
    got = quantize(f32(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5), params)
    assert got.tolist() == [0, 2, 2, 0, -2, -2, 4]


def test_the_zero_point_is_added_after_rounding() -> None:
    # rint(x + z) would round 0.5 + 1 to 2 and 2.5 + 1 to 4: different for every tie.
    params = per_tensor(DType.UINT8, 1.0, 1)
    assert quantize(f32(0.5, 1.5, 2.5), params).tolist() == [1, 3, 3]


@pytest.mark.parametrize(
    ("dtype", "zero_point", "ends"),
    [
        (DType.INT8, 5, (-128, 127)), (DType.UINT8, 5, (0, 255)), (DType.INT4, 0, (-8, 7)),
        (DType.UINT4, 8, (0, 15)), (DType.UINT16, 9, (0, 65535)), (DType.INT16, 0, (-32768, 32767)),
        (DType.INT2, 0, (-2, 1)), (DType.INT32, 0, (-(2**31), 2**31 - 1)),
    ],
    ids=str,
)  # fmt: skip
def test_saturation(dtype: DType, zero_point: int, ends: tuple[int, int]) -> None:
    params = per_tensor(dtype, 0.5, zero_point)
    huge = quantize(f32(-3e38, 3e38, -np.inf, np.inf), params)
    assert huge.dtype == dtype.numpy
    assert [int(v) for v in huge] == [ends[0], ends[1], ends[0], ends[1]]


def test_saturation_comes_after_the_zero_point() -> None:
    params = per_tensor(DType.UINT8, 1.0, 100)
    assert quantize(f32(-50, 155, 156, 300, -101), params).tolist() == [50, 255, 255, 255, 0]


def test_narrow_ranges_clip() -> None:
    params = per_tensor(DType.INT8, 1.0, 3, qmin=3, qmax=50)
    assert quantize(f32(-9, 0, 10, 90), params).tolist() == [3, 3, 13, 50]


def test_nan_is_the_smallest_stored_value() -> None:
    assert quantize(f32(np.nan), per_tensor(DType.INT8, 1.0)).tolist() == [-128]
    assert quantize(f32(np.nan), per_tensor(DType.UINT8, 1.0, 100)).tolist() == [0]
    assert quantize(f32(np.nan), per_tensor(DType.UINT8, 1.0, qmin=4, qmax=9)).tolist() == [4]


def test_scaling_divides_and_does_not_multiply_by_a_reciprocal() -> None:
    scale = np.float32(0.013)
    x = ((np.arange(-2000, 2000) + 0.5) * float(scale)).astype(np.float32)
    params = per_tensor(DType.INT16, scale)
    reciprocal = np.rint(x * (np.float32(1) / scale)).astype(np.int16)
    divided = np.rint(x / scale).astype(np.int16)
    assert (reciprocal != divided).any(), "the data must tell the two apart"
    np.testing.assert_array_equal(quantize(x, params), divided)


def test_float64_stays_float64() -> None:
    scale = np.float32(0.1)
    params = per_tensor(DType.INT16, scale)
    x = np.array([0.5 * float(scale) * (1 + 2**-40)])
    assert quantize(x, params).tolist() == [1]
    assert quantize(x.astype(np.float32), params).tolist() == [0]


def test_int32_reaches_both_ends_and_keeps_float32_bits() -> None:
    params = per_tensor(DType.INT32, 1.0)
    x = f32(2**24, 2**24 + 2, -(2**30), 2**31)
    assert quantize(x, params).tolist() == [2**24, 2**24 + 2, -(2**30), 2**31 - 1]


def test_dequantize_subtracts_before_it_converts() -> None:
    params = per_tensor(DType.INT32, 1.0, 3)
    stored = np.array([2**24 + 4], np.int32)  # 2**24 + 4 - 3 is odd: not a float32
    assert dequantize(stored, params).tolist() == [float(np.float32(2**24 + 1))]
    assert dequantize(stored, params, np.float64).tolist() == [2**24 + 1]


def test_dequantize_of_the_extremes_does_not_wrap() -> None:
    params = per_tensor(DType.INT8, 1.0, 127)
    assert dequantize(np.array([-128], np.int8), params).tolist() == [-255]
    params = per_tensor(DType.INT32, 1.0, 2**31 - 1)
    assert dequantize(np.array([-(2**31)], np.int32), params, np.float64).tolist() == [-(2**32) + 1]


@pytest.mark.parametrize("dtype", [DType.INT4, DType.UINT4, DType.INT2, DType.UINT2], ids=str)
@pytest.mark.parametrize("zero_point", [0, 1])
def test_sub_byte_types(dtype: DType, zero_point: int) -> None:
    every = list(range(dtype.qmin, dtype.qmax + 1))
    params = per_tensor(dtype, 0.5, zero_point)
    real = dequantize(np.array(every).astype(dtype.numpy), params)
    assert real.tolist() == [(v - zero_point) * 0.5 for v in every]
    assert [int(v) for v in quantize(real, params)] == every


def test_float8_rounds_in_its_own_type() -> None:
    params = quant(DType.FLOAT8_E4M3FN, np.float32(2), np.int32(0))
    stored = quantize(f32(1.0, -6.0, 0.3), params)
    assert stored.dtype == DType.FLOAT8_E4M3FN.numpy
    expected = f32(0.5, -3.0, 0.15).astype(DType.FLOAT8_E4M3FN.numpy)
    np.testing.assert_array_equal(stored, expected)
    np.testing.assert_array_equal(
        dequantize(stored, params), stored.astype(np.float32) * np.float32(2)
    )


def test_per_axis_and_blocks() -> None:
    params = quant(DType.INT8, f32(1, 10), np.array([0, 1], np.int32), axis=1)
    assert quantize(f32(25, 25).reshape(1, 2), params).tolist() == [[25, 3]]
    assert dequantize(np.array([[25, 3]], np.int8), params).tolist() == [[25, 20]]
    blocked = quant(
        DType.INT8, f32(1, 10).reshape(1, 2), np.zeros((1, 2), np.int32), axis=1, block_size=2
    )
    assert quantize(f32(30, 20, 30).reshape(1, 3), blocked).tolist() == [[30, 20, 3]]


def test_multiplier_rounds_twice() -> None:
    sx, sw, sy = f32(0.1, 0.2, 0.3)
    expected = np.float32(np.float32(sx * sw) / sy)
    assert multiplier(sx, sw, denominator=sy) == expected
    assert multiplier(sx, sw, denominator=sy).dtype == np.float32
    # Some triple must tell two roundings from one.
    rng = np.random.default_rng(0)
    a, b, c = rng.random((3, 1000)).astype(np.float32)
    once = (a.astype(np.float64) * b / c).astype(np.float32)
    twice = multiplier(a, b, denominator=c)
    assert (once != twice).any()
    np.testing.assert_array_equal(twice, (a * b) / c)


def test_requantize_rounds_the_accumulator_to_float32() -> None:
    params = per_tensor(DType.INT32, 1.0)
    total = np.array([2**24 + 1, -(2**24) - 1, 3, 5])
    got = requantize(total, np.asarray(np.float32(0.5)), params)
    assert got.tolist() == [2**23, -(2**23), 2, 2]


def test_saturate_takes_a_zero_point_of_its_own() -> None:
    params = per_tensor(DType.UINT8, 1.0, 7)
    assert saturate(f32(1.5), params).tolist() == [9]
    assert saturate(f32(1.5), params, 0).tolist() == [2]


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.UINT16], ids=str)
def test_codes_are_every_value_in_bit_order(dtype: DType) -> None:
    every = codes(per_tensor(dtype, 1.0))
    assert every.dtype == dtype.numpy
    assert sorted(every.tolist()) == list(range(dtype.qmin, dtype.qmax + 1))
    unsigned = every.view(np.uint8 if dtype.bits == 8 else np.uint16)
    assert unsigned.tolist() == list(range(1 << dtype.bits))


@given(
    st.floats(2**-20, 2**10, width=32),
    st.integers(0, 255),
    st.lists(st.integers(0, 255), min_size=1, max_size=8),
)
def test_quantize_undoes_dequantize(scale: float, zero_point: int, values: list[int]) -> None:
    params = per_tensor(DType.UINT8, scale, zero_point)
    stored = np.array(values, np.uint8)
    np.testing.assert_array_equal(quantize(dequantize(stored, params), params), stored)


@given(
    st.floats(2**-10, 2**10, width=32),
    st.integers(-128, 127),
    st.floats(-1e6, 1e6, width=32),
)
def test_quantize_is_the_sentence_of_the_contract(scale: float, zero_point: int, x: float) -> None:
    params = per_tensor(DType.INT8, scale, zero_point)
    quotient = np.float32(x) / np.float32(scale)
    expected = min(max(round(float(quotient)) + zero_point, -128), 127)
    assert quantize(f32(x), params).tolist() == [expected]
