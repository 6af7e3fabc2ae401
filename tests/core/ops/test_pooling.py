"""Pools and reductions against onnxruntime: maxima equal, means differ in proven ties only."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Array,
    Operand,
    assert_equal,
    ideal,
    mismatches,
    ours,
    pairs,
    proven_ties,
    quantized,
    theirs,
)

DTYPES = (DType.UINT8, DType.INT8)
SETS = 40
AXES = [(2, 3), (1,), (0, 2), (3,)]


def summing_error(name: str, attributes, x: Operand, scale: Array, count: int) -> Array:
    """The error of a float32 sum of ``count`` elements, in units of the result's scale."""
    assert x.params is not None
    magnitude = Operand(np.abs(x.real).astype(np.float32))
    (total,) = ideal(name, attributes, [magnitude])
    return (count + 4) * 2.0**-24 * total / float(scale)


def tied(name: str, attributes, x: Operand, py, fields, operands, count: int, opset=21):
    (their,) = theirs(name, operands, [py], fields, opset=opset)
    (our,) = ours(name, attributes, [x], [py])
    (real,) = ideal(name, attributes, [x])
    assert proven_ties(their, our, real, py, summing_error(name, attributes, x, py.scale, count))
    return mismatches(their, our), our.size


@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True], ids=["floor", "ceil"])
@pytest.mark.parametrize("include", [False, True], ids=["", "include_pad"])
def test_average_pool_differs_in_ties_only(include, ceil_mode, dilations) -> None:
    attributes = PoolAttrs((3, 2), (2, 1), dilations, (1, 0, 1, 1), ceil_mode, include)
    fields = {
        "kernel_shape": (3, 2),
        "strides": (2, 1),
        "dilations": dilations,
        "pads": (1, 0, 1, 1),
        "ceil_mode": int(ceil_mode),
        "count_include_pad": int(include),
    }
    differences = total = 0
    for dtype in DTYPES:
        for seed, (px, py) in enumerate(pairs(5, dtype, SETS)):
            x = quantized(np.random.default_rng(seed), (2, 3, 11, 10), px)
            counted = tied("AveragePool", attributes, x, py, fields, [x], 6)
            differences, total = differences + counted[0], total + counted[1]
    assert differences * 200 < total  # sums of 6 elements over nice scales make many ties


@pytest.mark.parametrize("include", [False, True], ids=["", "include_pad"])
def test_windows_that_reach_beyond_the_padding(include) -> None:
    """Axis 2 drops a window that would start in the end padding; axis 3 has one that overhangs."""
    attributes = PoolAttrs((2, 3), (2, 2), (1, 1), (0, 1, 1, 1), True, include)
    fields = {
        "kernel_shape": (2, 3),
        "strides": (2, 2),
        "pads": (0, 1, 1, 1),
        "ceil_mode": 1,
    }
    averaged = {**fields, "count_include_pad": int(include)}
    for seed, (px, py) in enumerate(pairs(21, DType.UINT8, SETS)):
        x = quantized(np.random.default_rng(seed), (2, 3, 4, 10), px)
        assert_equal("MaxPool", attributes, [x], py, fields)
        tied("AveragePool", attributes, x, py, averaged, [x], 6)


def test_the_multiplier_of_a_mean_is_rounded_once() -> None:
    """16-bit results are fine enough to show its last bit."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        px = per_tensor(DType.INT16, np.float32(rng.uniform(0.001, 0.002)), 5)
        py = per_tensor(DType.INT16, np.float32(rng.uniform(0.001, 0.002)), -9)
        x = quantized(rng, (1, 500, 3, 3), px)
        (our,) = ours("GlobalAveragePool", NO_ATTRIBUTES, [x], [py])
        total = (x.values.astype(np.int64) - 5).sum(axis=(2, 3), keepdims=True)
        ratio = np.float32(np.float64(px.scale) / (np.float64(py.scale) * 9))
        expected = np.rint(total.astype(np.float32) * ratio) - 9
        np.testing.assert_array_equal(our, np.clip(expected, -32768, 32767))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_global_average_pool_differs_in_ties_only(dtype) -> None:
    differences = total = 0
    for seed, (px, py) in enumerate(pairs(6, dtype, SETS)):
        x = quantized(np.random.default_rng(seed), (2, 9, 7, 7), px)
        counted = tied("GlobalAveragePool", NO_ATTRIBUTES, x, py, {}, [x], 49)
        differences, total = differences + counted[0], total + counted[1]
    assert differences * 100 < total


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", ["ReduceMean", "ReduceSum"])
def test_reductions_differ_in_ties_only(name, axes) -> None:
    given = Operand(np.asarray(axes, np.int64))
    differences = total = 0
    for dtype in DTYPES:
        for seed, (px, py) in enumerate(pairs(7, dtype, SETS)):
            x = quantized(np.random.default_rng(seed), (2, 3, 11, 10), px)
            count = int(np.prod([x.values.shape[axis] for axis in axes]))
            attributes = ReduceAttrs(axes, seed % 2 == 0)
            fields = {"keepdims": int(seed % 2 == 0)}
            counted = tied(name, attributes, x, py, fields, [x, given], count)
            differences, total = differences + counted[0], total + counted[1]
    assert differences * 200 < total  # nice scales make many ties


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", ["ReduceMax", "ReduceMin"])
def test_extremes_equal_onnxruntime(name, axes) -> None:
    given = Operand(np.asarray(axes, np.int64))
    for dtype in DTYPES:
        for seed, (px, py) in enumerate(pairs(8, dtype, 12)):
            x = quantized(np.random.default_rng(seed), (2, 3, 11, 10), px)
            assert_equal(name, ReduceAttrs(axes, False), [x], py, {"keepdims": 0}, given=[x, given])


@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True], ids=["floor", "ceil"])
def test_max_pool_equals_onnxruntime(ceil_mode, dilations) -> None:
    attributes = PoolAttrs((3, 2), (2, 1), dilations, (1, 0, 1, 1), ceil_mode)
    fields = {
        "kernel_shape": (3, 2),
        "strides": (2, 1),
        "dilations": dilations,
        "pads": (1, 0, 1, 1),
        "ceil_mode": int(ceil_mode),
    }
    for dtype in DTYPES:
        for seed, (px, py) in enumerate(pairs(9, dtype, 12)):
            x = quantized(np.random.default_rng(seed), (2, 3, 11, 10), px)
            assert_equal("MaxPool", attributes, [x], px, fields)
            assert_equal("MaxPool", attributes, [x], py, fields)
            assert_equal("GlobalMaxPool", NO_ATTRIBUTES, [x], px)


@pytest.mark.parametrize("spatial", [(9,), (5, 4, 6)], ids=str)
def test_1d_and_3d_pools(spatial) -> None:
    rank = len(spatial)
    attributes = PoolAttrs((2,) * rank, (2,) * rank, (1,) * rank, (1, *[0] * (2 * rank - 1)))
    fields = {
        "kernel_shape": attributes.kernel_shape,
        "strides": attributes.strides,
        "pads": attributes.pads,
    }
    for seed, (px, py) in enumerate(pairs(10, DType.UINT8, 12)):
        x = quantized(np.random.default_rng(seed), (2, 3, *spatial), px)
        assert_equal("MaxPool", attributes, [x], px, fields)
        tied("AveragePool", attributes, x, py, fields, [x], 2**rank)


def test_means_are_exact_rationals_rounded_once_to_even() -> None:
    """Where the multiplier is a power of two, the contract is the exact rational mean."""
    rng = np.random.default_rng(0)
    px, py = per_tensor(DType.UINT8, 0.25, 9), per_tensor(DType.UINT8, 0.5, 3)
    x = quantized(rng, (1, 40, 4, 4), px)
    (our,) = ours("GlobalAveragePool", NO_ATTRIBUTES, [x], [py])
    for channel in range(40):
        total = sum(int(v) - 9 for v in x.values[0, channel].flat)
        expected = round(Fraction(total, 16) * Fraction(1, 4) / Fraction(1, 2)) + 3
        assert our[0, channel, 0, 0] == expected


def test_float_result_is_the_sum_times_one_scale() -> None:
    rng = np.random.default_rng(1)
    px = per_tensor(DType.INT8, 0.1, -7)
    x = quantized(rng, (2, 5, 3, 3), px)
    (our,) = ours("ReduceMean", ReduceAttrs((2, 3), False), [x], [None])
    total = (x.values.astype(np.int64) + 7).sum(axis=(2, 3))
    scale = np.float32(np.float64(px.scale) / 9)
    np.testing.assert_array_equal(our, total.astype(np.float32) * scale)


def test_max_of_4_bit_values() -> None:
    stored = np.asarray([[[-8, 7, 3, -1]]], np.int8)
    narrow = stored.astype(DType.INT4.numpy)
    attributes = PoolAttrs((2,), (2,), (1,), (1, 1))
    (best,) = BY_NAME["MaxPool"].compute(attributes, (narrow,))
    assert best.dtype == DType.INT4.numpy
    assert best.astype(np.int8).tolist() == [[[-8, 7, -1]]]


def test_integers_that_are_not_quantized_average_towards_zero() -> None:
    x = np.asarray([[-3, -4], [3, 4]], np.int64)
    (mean,) = BY_NAME["ReduceMean"].compute(ReduceAttrs((1,), False), (x,))
    assert mean.tolist() == [-3, 3]
