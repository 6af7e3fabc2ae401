"""Quantized constants: signed, positive scales, the coarsest granularity."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import storage
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import NormAttrs
from tests.core.canonical.at_work import alone, settled
from tests.core.graph.graphs import (
    OUT,
    U8,
    Array,
    apply,
    const,
    dq,
    graph,
    names,
    q,
    quant,
    stored,
    typed,
)

S2 = np.array([0.5, 0.25], np.float32)


def weighed(data: Array, params: QuantParams) -> Graph:
    """``Dense`` of a stored input with a weight ``[2, 3]``, all still dequantized."""
    x = stored("x", U8, (4, 3))
    w = const(data, params, "w")
    return graph([x], apply("Dense", dq(x), dq(w), type_=typed((4, 2)), name="dense"))


def weight(g: Graph) -> tuple[Array, QuantParams]:
    """The weight of the only node with one, wherever its dequantize is."""
    (node,) = [n for n in g.nodes if n.op.name == "Dense"]
    value = node.operand(1)
    if value.producer is not None:
        value = value.producer.operand(0)
    assert value.constant is not None
    assert value.quant is not None
    return value.constant.numpy(), value.quant.params


def per_axis(dtype: DType, zero_point: object = 0, axis: int = 0, scale: Array = S2) -> QuantParams:
    return quant(dtype, scale, np.asarray(zero_point, np.int32), axis=axis)


CODES = np.array([[0, 128, 255], [1, 127, 200]], np.uint8)


# ---- signed-weight ----------------------------------------------------------------------------


@pytest.mark.idiom("B8")
@pytest.mark.parametrize(
    "params",
    [per_tensor(DType.UINT8, 0.5, 128), per_axis(DType.UINT8, 128)],
    ids=["tensor", "channel"],
)
def test_unsigned_weights_around_128_are_signed(params: QuantParams) -> None:
    g = weighed(CODES, params)
    alone(g, storage.signed_weight)
    data, signed = weight(g)
    assert data.dtype == np.int8
    assert data.tolist() == (CODES.astype(int) - 128).tolist()
    assert signed.symmetric
    assert (signed.storage_dtype, signed.axis) == (DType.INT8, params.axis)
    assert names(settled(g)) == ["Dense"]


@pytest.mark.idiom("B8")
def test_different_zero_points_are_signed_where_everything_fits() -> None:
    codes = np.array([[0, 100, 127], [200, 255, 180]], np.uint8)
    g = weighed(codes, per_axis(DType.UINT8, [100, 210]))
    alone(g, storage.signed_weight)
    data, params = weight(g)
    assert data.tolist() == [[-100, 0, 27], [-10, 45, -30]]
    assert params == per_axis(DType.INT8)


@pytest.mark.idiom("B8")
def test_different_zero_points_are_signed_where_something_does_not_fit() -> None:
    codes = np.array([[0, 100, 255], [200, 255, 180]], np.uint8)
    params = per_axis(DType.UINT8, [100, 210])  # 255 - 100 > 127
    g = weighed(codes, params)
    alone(g, storage.signed_weight)
    data, signed = weight(g)
    assert data.tolist() == [[-128, -28, 127], [72, 127, 52]]
    assert signed == per_axis(DType.INT8, [-28, 82])
    assert names(settled(g)) == ["Dense"]


@pytest.mark.idiom("B8")
def test_unsigned_weights_of_any_zero_point_are_their_signed_twins() -> None:
    rng = np.random.default_rng(8)
    for _ in range(60):
        zero, codes = int(rng.integers(256)), rng.integers(0, 256, (2, 3))
        twins = (
            weighed(codes.astype(np.uint8), per_tensor(DType.UINT8, 0.5, zero)),
            weighed((codes - 128).astype(np.int8), per_tensor(DType.INT8, 0.5, zero - 128)),
        )
        one, other = (settled(g).text() for g in twins)
        assert one == other, zero


def test_signed_zero_points_are_subtracted() -> None:
    g = weighed(np.array([[3, 4, 5], [6, 7, 8]], np.int8), per_tensor(DType.INT8, 0.5, 3))
    alone(g, storage.signed_weight)
    assert weight(g)[0].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("dtype", "signed"), [(DType.UINT4, DType.INT4), (DType.UINT16, DType.INT16)], ids=str
)
def test_other_widths(dtype: DType, signed: DType) -> None:
    middle = 1 << (dtype.bits - 1)
    codes = np.array([[0, middle, 2 * middle - 1]] * 2).astype(dtype.numpy)
    g = weighed(codes, per_tensor(dtype, 0.5, middle))
    alone(g, storage.signed_weight)
    data, params = weight(g)
    assert params == per_tensor(signed, 0.5)
    assert [int(v) for v in data[0]] == [-middle, 0, middle - 1]


def test_symmetric_signed_weights_are_left_alone() -> None:
    params = per_tensor(DType.INT8, 0.5)
    g = weighed(np.ones((2, 3), np.int8), params)
    before = g.text()
    alone(g, storage.signed_weight)
    assert g.text() == before


def test_constants_that_are_no_weights_keep_their_type() -> None:
    x, c = stored("x", U8, (3,)), const(CODES[0], U8)
    g = settled(graph([x], q(apply("Add", dq(x), dq(c)), OUT)))
    assert names(g) == ["Add"]
    assert g.nodes[0].operand(1).type.dtype is DType.UINT8


# ---- positive-scale ---------------------------------------------------------------------------


@pytest.mark.idiom("A27")
@pytest.mark.parametrize("zero_point", [0, 3])
def test_negative_scales_mirror_the_integers(zero_point: int) -> None:
    codes = np.array([[-100, 0, 100], [-100, 0, 100]], np.int8)
    g = weighed(codes, per_axis(DType.INT8, zero_point, scale=np.array([-0.5, 0.25], np.float32)))
    assert alone(g, storage.positive_scale) == []
    data, params = weight(g)
    assert params.scale.tolist() == [0.5, 0.25]
    assert data[0].tolist() == [2 * zero_point - v for v in (-100, 0, 100)]
    assert data[1].tolist() == [-100, 0, 100]


@pytest.mark.idiom("A27")
def test_a_mirrored_weight_that_does_not_fit_is_refused() -> None:
    g = weighed(np.array([[-128, 0, 0]] * 2, np.int8), per_tensor(DType.INT8, -0.5))
    (reason,) = alone(g, storage.positive_scale)
    assert "a mirrored weight exceeds its type" in reason
    assert weight(g)[1].scale == -0.5


# ---- coarsest-granularity ---------------------------------------------------------------------


def blocked(scale: list[list[float]], zero_point: object = 0) -> QuantParams:
    return quant(
        DType.INT8, np.array(scale, np.float32), np.asarray(zero_point), axis=1, block_size=2
    )


@pytest.mark.idiom("B17")
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (per_axis(DType.INT8, scale=np.array([0.5, 0.5], np.float32)), per_tensor(DType.INT8, 0.5)),
        (blocked([[0.5, 0.5], [0.5, 0.5]]), per_tensor(DType.INT8, 0.5)),
        (blocked([[0.5, 0.5], [0.25, 0.25]]), per_axis(DType.INT8)),
        (blocked([[0.5, 0.25], [0.5, 0.25]]), blocked([[0.5, 0.25], [0.5, 0.25]])),
        (blocked([[0.5, 0.25], [0.25, 0.5]]), blocked([[0.5, 0.25], [0.25, 0.5]])),
        (per_axis(DType.INT8), per_axis(DType.INT8)),
        (
            per_axis(DType.INT8, [0, 1], scale=np.array([0.5, 0.5], np.float32)),
            per_axis(DType.INT8, [0, 1], scale=np.array([0.5, 0.5], np.float32)),
        ),
        (per_tensor(DType.INT8, 0.5), per_tensor(DType.INT8, 0.5)),
        (per_tensor(DType.INT8, 0.5, qmin=-127, qmax=127), per_tensor(DType.INT8, 0.5)),
    ],
    ids=["channels", "blocks", "blocks to channels", "along the axis", "all differ", "differ",
         "zero points differ", "tensor", "range"],
)  # fmt: skip
def test_granularity(params: QuantParams, expected: QuantParams) -> None:
    g = weighed(np.array([[1, -2, 3], [4, 5, -6]], np.int8), params)
    alone(g, storage.coarsest_granularity)
    assert weight(g)[1] == expected
    settled(g)


# ---- float-norm-offset ------------------------------------------------------------------------


def norm(offset: Value, *, shared: bool = False) -> Graph:
    x = stored("x", U8, (4, 3))
    gamma = const(np.array([1, 2, 3], np.int8), per_tensor(DType.INT8, 0.5))
    real = dq(offset)
    y = apply("LayerNormalization", dq(x), dq(gamma), real, type_=typed((4, 3)),
              attributes=NormAttrs(1, 1e-5), name="norm")  # fmt: skip
    extra = [apply("Exp", real)] if shared else []
    return graph([x], q(y, OUT), *extra)


OFFSET = per_tensor(DType.INT32, 2**-10)


@pytest.mark.idiom("C8")
def test_int32_offsets_of_norms_are_float() -> None:
    g = norm(const(np.array([7, -900, 5], np.int32), OFFSET))
    alone(g, storage.float_norm_offset)
    (node,) = [n for n in g.nodes if n.op.name == "LayerNormalization"]
    offset = node.operand(2)
    assert offset.constant is not None
    assert offset.quant is None
    np.testing.assert_array_equal(
        offset.constant.numpy(), np.array([7, -900, 5], np.float32) * np.float32(2**-10)
    )
    assert names(settled(g)) == ["LayerNormalization"]


@pytest.mark.parametrize(
    ("offset", "shared"),
    [
        (const(np.array([7, -9, 5], np.int8), per_tensor(DType.INT8, 0.5)), False),
        (const(np.array([7, -9, 5], np.int32), OFFSET), True),
    ],
    ids=["int8", "read by others"],
)
def test_other_offsets_stay(offset: Value, shared: bool) -> None:
    g = norm(offset, shared=shared)
    before = g.text()
    alone(g, storage.float_norm_offset)
    assert g.text() == before
