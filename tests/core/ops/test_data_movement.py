"""Data movers: against onnxruntime on stored values, on 4-bit values, and their contracts."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    assert_equal,
    mismatches,
    ours,
    pairs,
    quantized,
    theirs,
)


def ints(*values: int) -> Operand:
    return Operand(np.asarray(values, np.int64))


HUGE = 2**62
CASES = {  # attributes, shape of x, further ONNX inputs, ONNX attributes
    "Reshape": (ReshapeAttrs((0, -1, 4)), (2, 3, 8), [ints(0, -1, 4)], {}),
    "Reshape to 0": (ReshapeAttrs((0, 5), True), (0, 3), [ints(0, 5)], {"allowzero": 1}),
    "Expand": (ExpandAttrs((2, 3, 1)), (3, 4), [ints(2, 3, 1)], {}),
    "Transpose": (TransposeAttrs((2, 0, 1)), (2, 3, 4), [], {"perm": (2, 0, 1)}),
    "Squeeze": (AxesAttrs((0, 2)), (1, 3, 1, 4), [ints(0, 2)], {}),
    "Unsqueeze": (AxesAttrs((0, 3)), (2, 3), [ints(0, 3)], {}),
    "Flatten": (AxisAttrs(2), (2, 3, 4, 5), [], {"axis": 2}),
    "Flatten at 0": (AxisAttrs(0), (2, 3), [], {"axis": 0}),
    "Tile": (TileAttrs((2, 1, 3)), (2, 3, 4), [ints(2, 1, 3)], {}),
    "Identity": (NO_ATTRIBUTES, (2, 3), [], {}),
    "DepthToSpace": (DepthSpaceAttrs(2), (1, 8, 3, 4), [], {"blocksize": 2}),
    "DepthToSpace CRD": (
        DepthSpaceAttrs(2, "CRD"),
        (2, 8, 3, 4),
        [],
        {"blocksize": 2, "mode": "CRD"},
    ),
    "SpaceToDepth": (DepthSpaceAttrs(2), (2, 3, 4, 6), [], {"blocksize": 2}),
    "Slice": (
        SliceAttrs((1, -3), (HUGE, -1), (0, 2), (1, 1)),
        (4, 3, 5),
        [ints(1, -3), ints(HUGE, -1), ints(0, 2), ints(1, 1)],
        {},
    ),
    "Slice backwards": (
        SliceAttrs((-1, 3), (-HUGE, 0), (0, 1), (-1, -2)),
        (4, 5),
        [ints(-1, 3), ints(-HUGE, 0), ints(0, 1), ints(-1, -2)],
        {},
    ),
    "Slice from far": (
        SliceAttrs((-HUGE,), (-HUGE,), (0,), (-1,)),
        (4, 2),
        [ints(-HUGE), ints(-HUGE), ints(0), ints(-1)],
        {},
    ),
    "Pad reflect": (
        PadAttrs((1, 2, 0, 1), "reflect"),
        (3, 4),
        [ints(1, 2, 0, 1)],
        {"mode": "reflect"},
    ),
    "Pad edge": (PadAttrs((1, 2, 0, 1), "edge"), (3, 4), [ints(1, 2, 0, 1)], {"mode": "edge"}),
    "Pad wrap": (PadAttrs((1, 2, 0, 1), "wrap"), (3, 4), [ints(1, 2, 0, 1)], {"mode": "wrap"}),
}


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8], ids=str)
@pytest.mark.parametrize("case", sorted(CASES))
def test_equals_onnxruntime(case, dtype) -> None:
    """With equal parameters the values move; with other ones they are requantized on the way."""
    attributes, shape, inputs, fields = CASES[case]
    for seed, (px, py) in enumerate(pairs(15, dtype, 6)):
        x = quantized(np.random.default_rng(seed), shape, px)
        for result in (px, py, None):
            name = case.split()[0]
            assert_equal(name, attributes, [x], result, fields, given=[x, *inputs])


@pytest.mark.parametrize("pads", [(1, 0, 2, 0, 3, 1), (-1, 0, 2, 0, -1, 1)], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.3, -1e6])
def test_pad_with_a_constant_equals_onnxruntime(value, pads) -> None:
    for seed, (px, py) in enumerate(pairs(16, DType.INT8, 9)):
        x = quantized(np.random.default_rng(seed), (3, 4, 2), px)
        given = [x, ints(*pads), Operand(np.asarray(value, np.float32))]
        for result in (px, py, None):
            assert_equal("Pad", PadAttrs(pads, value=value), [x], result, given=given)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("index", [[1, -1], [[0, 2], [1, -2]], 2], ids=str)
def test_gather_equals_onnxruntime(index, axis) -> None:
    for seed, (px, py) in enumerate(pairs(17, DType.UINT8, 6)):
        x = quantized(np.random.default_rng(seed), (3, 4), px)
        operands = [x, Operand(np.asarray(index, np.int64))]
        for result in (px, py, None):
            assert_equal("Gather", AxisAttrs(axis), operands, result, {"axis": axis})


def test_split_equals_onnxruntime() -> None:
    for seed, (px, py) in enumerate(pairs(18, DType.UINT8, 6)):
        x = quantized(np.random.default_rng(seed), (2, 7, 3), px)
        results = [px, py, px]
        their = theirs("Split", [x, ints(1, 4, 2)], results, {"axis": 1})
        our = ours("Split", SplitAttrs(1, (1, 4, 2)), [x], results)
        assert [mismatches(a, b) for a, b in zip(their, our, strict=True)] == [0, 0, 0]


@pytest.mark.parametrize("case", sorted(CASES))
def test_4_bit_values_move_as_8_bit_ones_do(case) -> None:
    attributes, shape, _, _ = CASES[case]
    wide = np.random.default_rng(0).integers(-8, 8, shape).astype(np.int8)
    row = BY_NAME[case.split()[0]]
    (narrow,) = row.compute(attributes, (wide.astype(DType.INT4.numpy),))
    (expected,) = row.compute(attributes, (wide,))
    assert narrow.dtype == DType.INT4.numpy
    np.testing.assert_array_equal(narrow.astype(np.int8), expected)


def test_pad_of_4_bit_values() -> None:
    params = per_tensor(DType.INT4, 0.5, 1)
    x = Operand(np.asarray([2, -8], np.int8).astype(DType.INT4.numpy), params)
    (result,) = ours("Pad", PadAttrs((1, 1), value=1.0), [x], [params])
    assert result.astype(np.int8).tolist() == [3, 2, -8, 3]


def test_target_shapes_may_be_operands() -> None:
    x, target = np.arange(6, dtype=np.int8), np.asarray([2, -1], np.int64)
    (reshaped,) = BY_NAME["Reshape"].compute(ReshapeAttrs(None), (x, target))
    assert reshaped.shape == (2, 3)
    (expanded,) = BY_NAME["Expand"].compute(ExpandAttrs(None), (x, np.asarray([2, 6])))
    assert expanded.shape == (2, 6)


def test_a_narrower_range_of_the_result_clips() -> None:
    """A ReLU carried as a range: same mapping, fewer codes."""
    params = per_tensor(DType.INT8, 0.1)
    x = Operand(np.asarray([-5, 0, 100, 7], np.int8), params)
    for name, attributes in (("Reshape", ReshapeAttrs((2, 2))), ("Pad", PadAttrs((0, 0)))):
        (result,) = ours(name, attributes, [x], [params.with_range(0, 50)])
        assert result.ravel().tolist() == [0, 0, 50, 7]


def test_per_channel_values_move_with_their_axis() -> None:
    """Even where float32 could not carry the stored integers."""
    scale, zero = np.asarray([0.1, 0.2], np.float32), np.zeros(2, np.int32)
    before = QuantParams(DType.INT32, scale, zero, axis=0)
    stored = np.asarray([[2**31 - 1, -7], [2**24 + 1, 5]], np.int32)
    contract = BY_NAME["Transpose"].contract
    assert contract is not None
    types = (QuantType(before, (2, 2)),)
    answer = contract(
        TransposeAttrs((1, 0)), (stored,), types, (QuantType(before.with_axis(1), (2, 2)),)
    )
    assert answer is not None
    np.testing.assert_array_equal(answer[0], stored.T)
    plain = (TensorType(DType.FLOAT32, (2, 2)),)
    assert contract(TransposeAttrs((1, 0)), (stored,), types, plain) is None


@pytest.mark.parametrize(
    ("target", "wanted"),
    [((1, -1, 1, 1), (1, 0, 1, 1)), ((-1, 3), (0, 3)), ((0, -1), (0, 3)), ((-1, 0), (0, 3))],
)
def test_what_is_left_of_nothing(target: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """A -1 that comes to 0 copies no extent."""
    nothing = np.zeros((0, 3), np.float32)
    attributes = ReshapeAttrs(target, allow_zero=False)
    (found,) = BY_NAME["Reshape"].compute(attributes, (nothing,))
    assert found.shape == wanted
