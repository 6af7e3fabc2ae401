"""Conversions: what cancels, what is one requantize, what is a constant, what is shared."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize, conversions, folding, identities
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import (
    QuantParams,
    Shape,
    TensorType,
    per_tensor,
    shifted_params,
)
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    CastAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from qdqbridge.core.rewrite import run
from tests.core.canonical.at_work import alone, data_for, outputs, settled
from tests.core.graph.graphs import (
    OUT,
    S8,
    U8,
    W8,
    apply,
    const,
    dq,
    graph,
    names,
    plain,
    q,
    quant,
    rq,
    stored,
    typed,
)

WIDE = per_tensor(DType.INT32, 2**-9)


# ---- dequantize-quantize, requantize-nothing --------------------------------------------------


@pytest.mark.idiom("J2")
def test_equal_parameters_cancel() -> None:
    x = stored("x", U8, (8,))
    g = graph([x], q(dq(x), per_tensor(DType.UINT8, 2**-5, 128)))
    assert alone(g, conversions.dequantize_quantize) == []
    assert names(g) == []
    assert g.outputs == [x]


@pytest.mark.parametrize(
    "params",
    [OUT, U8.with_range(128, 255), per_tensor(DType.UINT8, 2**-5, 127), S8,
     per_tensor(DType.UINT8, np.nextafter(np.float32(2**-5), np.float32(1)), 128)],
    ids=["other", "range", "zero point", "dtype", "last bit"],
)  # fmt: skip
def test_other_parameters_are_one_requantize(params: QuantParams) -> None:
    x = stored("x", U8, (8,))
    g = graph([x], q(dq(x), params))
    alone(g, conversions.dequantize_quantize)
    assert names(g) == ["requantize"]
    settled(g)
    assert names(g) == ["requantize"]


def test_a_wider_range_covers() -> None:
    x = stored("x", U8.with_range(128, 255), (8,))
    g = graph([x], q(dq(x), U8))
    assert names(settled(g)) == []


@pytest.mark.idiom("J3")
def test_two_roundings_are_kept() -> None:
    x = stored("x", U8, (64,))
    g = graph([x], q(dq(q(dq(x), OUT)), U8))
    assert names(settled(g)) == ["requantize", "requantize"]


def test_quantize_then_dequantize_is_the_quantization_error_and_stays() -> None:
    x = plain("x", (8,))
    assert names(settled(graph([x], dq(q(x, U8))))) == ["quantize", "dequantize"]


def test_int32_does_not_fit_float32_so_nothing_cancels() -> None:
    x = stored("x", WIDE, (8,))
    g = graph([x], q(dq(x), WIDE), q(dq(x), U8))
    alone(g, conversions.dequantize_quantize)
    assert names(g).count("quantize") == 2


@pytest.mark.idiom("A24")
def test_other_readers_of_the_dequantize_keep_it() -> None:
    x = stored("x", U8, (8,))
    real = dq(x)
    g = settled(graph([x], q(real, U8), apply("Exp", real)))
    assert names(g) == ["dequantize", "Exp"]
    assert g.outputs[0] is x


def test_requantize_to_the_same_is_nothing() -> None:
    x = stored("x", U8.with_range(10, 20), (8,))
    g = graph([x], rq(x, U8.with_range(5, 30)), rq(x, U8.with_range(10, 20)))
    alone(g, conversions.requantize_nothing)
    assert names(g) == []


@pytest.mark.parametrize("params", [U8.with_range(11, 255), OUT], ids=["narrower", "other"])
def test_requantize_to_something_else_stays(params: QuantParams) -> None:
    x = stored("x", U8, (8,))
    g = graph([x], rq(x, params))
    alone(g, conversions.requantize_nothing)
    assert names(g) == ["requantize"]


# ---- constants --------------------------------------------------------------------------------


@pytest.mark.idiom("B3")
def test_quantized_constants_are_rounded_once_like_onnx() -> None:
    data = np.array([0.5, 1.5, -0.5, 300, np.nan], np.float32)
    x = stored("x", U8, (5,))
    params = per_tensor(DType.UINT8, 1.0, 1)
    y = apply("Add", x, q(const(data), params), type_=typed((5,), U8))
    g = settled(graph([x], y))
    (node,) = g.nodes
    constant = node.operand(1).constant
    assert constant is not None
    assert constant.numpy().tolist() == [1, 3, 1, 255, 0]


def test_requantized_constants_are_rounded_again() -> None:
    x = stored("x", U8, (3,))
    c = rq(const(np.array([0, 77, 255], np.uint8), U8), OUT)
    g = graph([x], apply("Add", x, c, type_=typed((3,), OUT)))
    assert alone(g, conversions.quantized_constant) == []
    assert names(g) == ["Add"]


def test_constants_are_not_computed_before_somebody_looks() -> None:
    w = const(np.ones((2, 2), np.float32))
    w.constant = w.constant.map(lambda _: pytest.fail("looked at too early"))  # type: ignore[union-attr]
    x = stored("x", U8, (1, 2))
    y = apply("Dense", x, q(w, W8), type_=typed((1, 2), OUT))
    assert names(canonicalize(graph([x], y))) == ["Dense"]


def test_reinterpreted_constants_change_type_only() -> None:
    c = const(np.array([1, 2], np.uint8))
    x = stored("x", U8, (2,))
    typed_c = apply("reinterpret", c, type_=typed((2,), U8))
    g = graph([x], apply("Add", x, typed_c, type_=typed((2,), OUT)))
    alone(g, conversions.reinterpreted_constant)
    assert names(g) == ["Add"]
    assert g.nodes[0].operand(1).type == typed((2,), U8)


def test_a_reinterpretation_as_what_it_is_vanishes_whatever_its_shape_is_called() -> None:
    """An Identity behind codes whose extents nobody knows gave them other names."""
    x = plain("x", ("n", 3))
    g = graph([x], apply("reinterpret", q(x, U8), type_=typed(("m", 3), U8)))
    alone(g, conversions.reinterpret_twice)
    assert names(g) == ["quantize"]


@pytest.mark.parametrize(
    ("targets", "left"),
    [([U8], 0), ([S8, U8], 0), ([S8, W8], 1), ([S8, W8, U8], 0), ([W8], 1)],
    ids=["same", "there and back", "twice", "back after two", "once"],
)
def test_chains_of_reinterpretations(targets: list[QuantParams], left: int) -> None:
    x = stored("x", U8, (8,))
    y = x
    for params in targets:
        y = apply("reinterpret", y, type_=typed((8,), params))
    g = graph([x], y)
    alone(g, conversions.reinterpret_twice)
    assert names(g) == ["reinterpret"] * left


def test_casts_to_the_own_type() -> None:
    x = plain("x", (4,))
    y = apply("Cast", x, attributes=CastAttrs(DType.FLOAT32))
    half = TensorType(DType.FLOAT16, (4,))
    z = apply("Cast", x, attributes=CastAttrs(DType.FLOAT16), type_=half)
    g = graph([x], y, z)
    alone(g, conversions.cast_nothing)
    assert names(g) == ["Cast"]
    assert g.outputs[0] is x


# ---- merge-equal ------------------------------------------------------------------------------


@pytest.mark.idiom("A23")
def test_equal_conversions_are_one() -> None:
    x = plain("x", (8,))
    y = apply("Add", dq(q(x, U8, "q1")), dq(q(x, U8, "q2")))
    g = graph([x], y)
    alone(g, identities.merge_equal)
    assert names(g) == ["quantize", "dequantize", "Add"]
    add = g.nodes[-1]
    assert add.inputs[0] is add.inputs[1]


@pytest.mark.parametrize("second", [OUT, U8.with_range(128, 255)], ids=["other", "range"])
def test_different_conversions_are_two(second: QuantParams) -> None:
    x = plain("x", (8,))
    g = graph([x], q(x, U8), q(x, second))
    alone(g, identities.merge_equal)
    assert names(g) == ["quantize", "quantize"]


def test_movers_merge_by_attributes() -> None:
    x = stored("x", U8, (2, 2, 2))

    def move(perm: tuple[int, ...]) -> Value:
        return apply("Transpose", x, type_=typed((2, 2, 2), U8), attributes=TransposeAttrs(perm))

    g = graph([x], move((0, 2, 1)), move((0, 2, 1)), move((1, 0, 2)))
    alone(g, identities.merge_equal)
    assert names(g) == ["Transpose", "Transpose"]
    assert g.outputs[0] is g.outputs[1]


def test_equal_operators_are_one_where_more_is_known_of_one_result() -> None:
    x = plain("x", (2, "n", 4))
    shapes: list[Shape] = [(2, "n*4"), (2, 12), None, (2, "m")]
    flat = [
        apply("Flatten", x, type_=TensorType(DType.FLOAT32, shape), attributes=AxisAttrs(1))
        for shape in shapes
    ]
    g = graph([x], *flat)
    run(g, [identities.merge_equal])
    assert names(g) == ["Flatten"]
    assert {value.type.shape for value in g.outputs} == {(2, 12)}


def test_equal_operators_are_one_and_constants_stay() -> None:
    """In whatever order operands stand that may change places."""
    x, y, c = plain("x", (2,)), plain("y", (2,)), const(np.ones(2, np.uint8), U8)
    twins = [apply("Exp", x), apply("Exp", x), apply("Mul", x, y), apply("Mul", y, x)]
    g = graph([x, y], *twins, apply("Sub", x, y), apply("Sub", y, x), dq(c), dq(c))
    alone(g, identities.merge_equal)
    assert names(g) == ["Exp", "Mul", "Sub", "Sub", "dequantize", "dequantize"]


def test_each_may_take_in_a_quantize_of_its_own() -> None:
    """One float sum for both would be rounded twice, and added in floats."""
    x, y = stored("x", U8, (2,)), stored("y", U8, (2,))
    a, b = dq(x), dq(y)
    sums = [q(apply("Add", a, b), p) for p in (U8, OUT)]
    assert names(canonicalize(graph([x, y], *sums))) == ["Add", "Add"]


def test_many_equal_readers_stay_linear() -> None:
    x = stored("x", U8, (2,))
    g = graph([x], *(apply("Exp", dq(x)) for _ in range(300)))
    alone(g, identities.merge_equal)
    assert names(g).count("dequantize") == 1


def test_equal_conversions_behind_many_other_readers_are_one() -> None:
    x = stored("x", U8, (2,))
    others = [apply("Neg", x, type_=typed((2,), U8)) for _ in range(200)]
    narrow = [U8.with_range(low, 255) for low in range(128)] * 2
    g = graph([x], *others, *(apply("requantize", x, type_=typed((2,), p)) for p in narrow))
    alone(g, identities.merge_equal)
    assert names(g).count("requantize") == 128
    assert g.outputs[200:328] == g.outputs[328:]


# ---- small-constant ---------------------------------------------------------------------------


def test_small_constants_are_computed() -> None:
    x = plain("x", (2,))
    total = apply("Add", *(const(np.array(c, np.float32)) for c in ([1, 2], [3, 4])))
    bound = apply("Mul", total, const(np.array([0.5, 0.5], np.float32)))
    g = graph([x], apply("Add", x, bound))
    alone(g, folding.small_constant)
    assert names(g) == ["Add"]
    constant = g.nodes[0].operand(1).constant
    assert constant is not None
    assert constant.numpy().tolist() == [2, 3]


@pytest.mark.parametrize(
    "value",
    [
        apply("Add", const(np.ones(5000, np.float32)), const(np.float32(1))),
        apply("Exp", const(np.ones(2, np.float32))),
        apply("Add", const(np.ones(2, np.uint8), U8), const(np.ones(2, np.float32))),
        dq(const(np.ones(2, np.uint8), U8)),
    ],
    ids=["large", "inexact", "quantized operand", "dequantize"],
)
def test_other_constants_stay(value: Value) -> None:
    g = graph([], value)
    alone(g, folding.small_constant)
    assert len(names(g)) == 1


# ---- static-reshape, moved-constant -----------------------------------------------------------


def test_constants_move_as_views() -> None:
    w = const(np.arange(6, dtype=np.int8).reshape(2, 3), W8)
    x = stored("x", U8, (1, 2))
    t = apply("Transpose", dq(w), attributes=TransposeAttrs((1, 0)), type_=typed((3, 2)))
    g = settled(graph([x], apply("Dense", dq(x), t, type_=typed((1, 3)))))
    assert names(g) == ["Dense"]
    weight = g.nodes[0].operand(1).constant
    assert weight is not None
    assert w.constant is not None
    assert weight.numpy().base is not None
    assert np.shares_memory(weight.numpy(), w.constant.numpy())


def test_unsqueezed_parameters_move_their_axis() -> None:
    params = quant(DType.INT8, np.array([0.5, 0.25], np.float32), np.int32(0), axis=0)
    c = const(np.array([3, 4], np.int8), params)
    x = stored("x", U8, (2, 2, 3))
    u = apply("Unsqueeze", dq(c), attributes=AxesAttrs((1,)), type_=typed((2, 1)))
    g = settled(graph([x], q(apply("Mul", dq(x), u, type_=typed((2, 2, 3))), OUT)))
    assert names(g) == ["Mul"]
    moved = g.nodes[0].operand(1).quant
    assert moved is not None
    assert moved.params == shifted_params(params.with_axis(0))  # uint8, as x is


def test_run_time_reshapes_with_a_known_result_are_static() -> None:
    x, target = stored("x", U8, (2, 6)), plain("shape", (2,), DType.INT64)
    y = apply("Reshape", x, target, attributes=ReshapeAttrs(None), type_=typed((3, 4), U8))
    other, unknown = plain("other", (2,), DType.INT64), typed(("n", "m"), U8)
    z = apply("Reshape", x, other, attributes=ReshapeAttrs(None), type_=unknown)
    g = canonicalize(graph([x, target, other], y, z))
    assert [n.attributes for n in g.nodes] == [ReshapeAttrs((-1, 4)), ReshapeAttrs(None)]


def test_data_covers_the_range() -> None:
    x = stored("x", U8, (500,))
    (codes,) = data_for(graph([x], x)).values()
    assert (codes.min(), codes.max()) < (5, 250)
    assert outputs(graph([x], x), {"x": codes})[0] is codes
