"""Clamps: a narrower range, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import clamps
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ClipAttrs, PadAttrs, TransposeAttrs
from tests.core.canonical.at_work import alone, settled
from tests.core.graph.graphs import (
    OUT,
    S8,
    U8,
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


def relu(x: Value) -> Value:
    return apply("Relu", x, name="relu")


def clip(x: Value, low: float | None, high: float | None) -> Value:
    return apply("Clip", x, attributes=ClipAttrs(low, high), name="clip")


def params_of(value: Value) -> QuantParams:
    assert value.quant is not None
    return value.quant.params


@pytest.mark.idiom("D6")
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, None, (128, 255)), (None, 1.0, (0, 160)), (-1.0, 1.0, (96, 160)),
        (-100.0, 100.0, (0, 255)), (None, None, (0, 255)), (3.0, 100.0, (224, 255)),
        (0.3 / 32, 0.5 / 32, (128, 128)), (50.0, 60.0, (255, 255)), (-60.0, -50.0, (0, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_clips_in_front_of_a_quantize(
    low: float | None, high: float | None, expected: tuple[int, int]
) -> None:
    x = plain("x", (500,))
    g = graph([x], q(clip(x, low, high), U8))
    assert alone(g, clamps.clamp_before_quantize) == []
    assert names(g) == ["quantize"]
    params = params_of(g.outputs[0])
    assert (params.qmin, params.qmax) == expected
    settled(g)


@pytest.mark.idiom("D4")
def test_relu_is_nothing_where_the_range_says_so() -> None:
    x = plain("x", (500,))
    g = settled(graph([x], q(relu(x), per_tensor(DType.UINT8, 2**-5))))
    assert names(g) == ["quantize"]
    assert params_of(g.outputs[0]).full_range


def test_clamps_of_clamps_intersect() -> None:
    x = plain("x", (500,))
    g = settled(graph([x], q(clip(relu(clip(x, -1.0, 6.0)), None, 2.0), U8)))
    assert names(g) == ["quantize"]
    assert (params_of(g.outputs[0]).qmin, params_of(g.outputs[0]).qmax) == (128, 192)


@pytest.mark.parametrize("outer", [(-1.0, 1.0), (2.0, 3.0)], ids=["overlap", "disjoint"])
def test_the_inner_clamp_comes_first(outer: tuple[float, float]) -> None:
    x = plain("x", (500,))
    assert names(settled(graph([x], q(clip(clip(x, 0.0, 1.5), *outer), U8)))) == ["quantize"]


@pytest.mark.parametrize("more", ["float", "output"])
def test_clamps_that_are_read_as_float_stay(more: str) -> None:
    x = plain("x", (500,))
    y = relu(x)
    g = graph([x], q(y, U8), apply("Exp", y) if more == "float" else y)
    assert alone(g, clamps.clamp_before_quantize) == ["the result of Relu is also read as float"]
    assert "Relu" in names(g)
    settled(g)


def test_clamps_that_several_quantizes_read_are_folded_into_each() -> None:
    x = plain("x", (500,))
    y = relu(x)
    g = settled(graph([x], q(y, U8), q(y, S8)))
    assert names(g) == ["quantize", "quantize"]
    assert [params_of(v).qmin for v in g.outputs] == [128, 0]


def test_clamps_cannot_be_per_channel() -> None:
    params = quant(DType.INT8, np.array([1, 0.5], np.float32), np.int32(0), axis=1)
    x = plain("x", (5, 2))
    g = graph([x], q(relu(x), params))
    (reason,) = alone(g, clamps.clamp_before_quantize)
    assert reason == "the range of a clamp (Relu) cannot be per channel"


def test_float8_has_no_range() -> None:
    x = plain("x", (5,))
    g = graph([x], q(relu(x), quant(DType.FLOAT8_E4M3FN, np.float32(1), np.int32(0))))
    assert len(alone(g, clamps.clamp_before_quantize)) == 1
    assert names(g) == ["Relu", "quantize"]


def test_empty_bounds_are_refused() -> None:
    x = plain("x", (5,))
    g = graph([x], q(clip(x, 2.0, 1.0), U8))
    (reason,) = alone(g, clamps.clamp_before_quantize)
    assert reason == "the bounds of Clip are empty: (2.0, 1.0)"
    assert names(g) == ["Clip", "quantize"]


@pytest.mark.parametrize("op", ["Sigmoid", "Add"])
def test_other_operators_are_no_clamps(op: str) -> None:
    x = plain("x", (5,))
    g = graph([x], q(apply(op, *[x] * (2 if op == "Add" else 1)), U8))
    assert alone(g, clamps.clamp_before_quantize) == []
    assert names(g) == [op, "quantize"]


# ---- clamp-into-producer ----------------------------------------------------------------------

NARROW = OUT.with_range(10, 90)


@pytest.mark.parametrize("kind", ["Add", "quantize", "requantize"])
def test_rounding_producers_take_the_range(kind: str) -> None:
    x = plain("x", (500,)) if kind == "quantize" else stored("x", U8, (500,))
    if kind == "Add":
        y = apply("Add", x, const(np.uint8(3), U8), type_=typed((500,), OUT))
    else:
        y = (q if kind == "quantize" else rq)(x, OUT)
    g = graph([x], rq(y, NARROW))
    assert alone(g, clamps.clamp_into_producer) == []
    assert names(g) == [kind]
    assert params_of(g.outputs[0]) == NARROW


@pytest.mark.parametrize(
    ("own", "target", "expected"),
    [((5, 50), (10, 90), (10, 50)), ((60, 90), (10, 20), (20, 20)), ((10, 20), (60, 90), (60, 60))],
    ids=["overlap", "below", "above"],
)
def test_ranges_intersect_or_collapse(
    own: tuple[int, int], target: tuple[int, int], expected: tuple[int, int]
) -> None:
    x = stored("x", U8, (500,))
    g = graph([x], rq(rq(x, OUT.with_range(*own)), OUT.with_range(*target)))
    alone(g, clamps.clamp_into_producer)
    assert names(g) == ["requantize"]
    params = params_of(g.outputs[0])
    assert (params.qmin, params.qmax) == expected


def test_the_clamp_of_a_moved_value_is_done_before_the_move() -> None:
    x = stored("x", U8, (2, 30))
    y = apply("Add", x, const(np.uint8(3), U8), type_=typed((2, 30), OUT))
    t = apply("Transpose", y, attributes=TransposeAttrs((1, 0)), type_=typed((30, 2), OUT))
    g = settled(graph([x], rq(t, NARROW)))
    assert names(g) == ["Add", "Transpose"]
    assert params_of(g.nodes[0].output) == NARROW


@pytest.mark.parametrize(
    ("value", "padded"), [(0.0, 0.0), (100.0, 10.0), (-1.0, 0.0)], ids=["in", "above", "below"]
)
def test_pad_values_are_clamped_too(value: float, padded: float) -> None:
    x = stored("x", U8, (50,))
    y = rq(x, OUT)
    y = apply("Pad", y, attributes=PadAttrs((1, 1), value=value), type_=typed((52,), OUT))
    g = graph([x], rq(y, NARROW))
    alone(g, clamps.clamp_into_producer)
    assert names(g) == ["requantize", "Pad"]
    assert g.nodes[-1].attributes == PadAttrs((1, 1), value=padded)


@pytest.mark.parametrize("case", ["shared", "output", "other mapping"])
def test_ranges_stay_behind(case: str) -> None:
    x = stored("x", U8, (50,))
    y = rq(x, OUT)
    target = per_tensor(DType.UINT8, 2**-2, 10) if case == "other mapping" else NARROW
    more = {"shared": [dq(y)], "output": [y]}.get(case, [])
    g = graph([x], rq(y, target), *more)
    alone(g, clamps.clamp_into_producer)
    assert names(g).count("requantize") == 2


@pytest.mark.idiom("D5")
def test_relu_between_two_pairs_keeps_both_roundings() -> None:
    x = plain("x", (500,))
    g = settled(graph([x], dq(q(relu(dq(q(x, U8))), per_tensor(DType.UINT8, 2**-4, 3)))))
    assert names(g) == ["quantize", "requantize", "dequantize"]


@pytest.mark.idiom("D5")
def test_relu_between_two_pairs_of_one_type_is_a_range_of_the_first() -> None:
    x = plain("x", (500,))
    g = settled(graph([x], dq(q(relu(dq(q(x, U8))), U8))))
    assert names(g) == ["quantize", "dequantize"]
    assert params_of(g.nodes[0].output) == U8.with_range(128, 255)


@pytest.mark.parametrize(
    ("low", "high", "code"), [(np.inf, None, 255), (None, -np.inf, 0)], ids=str
)
def test_an_infinite_bound_on_the_wrong_side_is_kept(low, high, code) -> None:
    x = plain("x", (20,))
    clipped = apply("Clip", x, attributes=ClipAttrs(low, high))
    g = settled(graph([x], q(clipped, U8)))
    assert names(g) == ["quantize"]
    assert g.nodes[0].output.quant is not None
    assert (g.nodes[0].output.quant.params.qmin, g.nodes[0].output.quant.params.qmax) == (
        code,
        code,
    )
