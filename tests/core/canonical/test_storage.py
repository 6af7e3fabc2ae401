"""Constants of either signedness are one constant, with the data movers behind them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import (
    QuantParams,
    TensorType,
    per_tensor,
    shifted_constant,
    shifted_params,
)
from qdqbridge.core.ops.attributes import AxisAttrs, CastAttrs, TransposeAttrs
from tests.core.canonical.at_work import settled
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

CODES = np.array([[0, 128, 255], [1, 127, 200]], np.uint8)
AXES = quant(DType.UINT8, np.array([0.5, 0.25], np.float32), np.array([128, 90]), axis=0)
SIGNED_OUT = per_tensor(DType.INT8, 2**-3, 10)
OTHER = per_tensor(DType.UINT8, 2**-4, 100)


def unsigned(params: QuantParams) -> Value:
    return const(CODES, params, "c")


def signed(params: QuantParams) -> Value:
    """The same real values, stored with the other signedness."""
    value = const(CODES, params, "c")
    assert value.constant is not None
    return const(shifted_constant(value.constant).numpy(), shifted_params(params), "c")


Build = Callable[[Value], Graph]


def x_and(op: str, result: QuantParams | None = OUT, *, swapped: bool = False) -> Build:
    def build(c: Value) -> Graph:
        x = stored("x", U8, (2, 3))
        operands = (dq(c), dq(x)) if swapped else (dq(x), dq(c))
        y = apply(op, *operands)
        return graph([x], y if result is None else q(y, result))

    return build


def chosen(c: Value) -> Graph:
    x, condition = stored("x", U8, (2, 3)), plain("cond", (2, 3), DType.BOOL)
    y = apply("Where", condition, dq(x), dq(c), type_=typed((2, 3)))
    return graph([x, condition], q(y, OUT))


def joined(c: Value, params: QuantParams = OUT) -> Graph:
    x = stored("x", U8, (2, 3))
    y = apply("Concat", dq(x), dq(c), attributes=AxisAttrs(0), type_=typed((4, 3)))
    return graph([x], q(y, params))


def joined_to_float(c: Value) -> Graph:
    x = stored("x", U8, (2, 3))
    y = apply("Concat", dq(x), dq(c), attributes=AxisAttrs(0), type_=typed((4, 3)))
    return graph([x], y)


def rows() -> tuple[Value, Value]:
    """An input of truth values, and these as the indices 0 and 1."""
    choice, type_ = plain("choice", (5,), DType.BOOL), TensorType(DType.INT64, (5,))
    return choice, apply("Cast", choice, attributes=CastAttrs(DType.INT64), type_=type_)


def table(params: QuantParams | None, then: Callable[[Value], Value] = lambda v: v) -> Build:
    """An embedding, with a quantization of its own behind it or none."""

    def build(c: Value) -> Graph:
        (choice, index), x = rows(), stored("x", U8, (5, 3))
        y = apply("Gather", dq(c), index, attributes=AxisAttrs(0), type_=typed((5, 3)))
        y = y if params is None else dq(q(y, params))
        return graph([choice, x], q(apply("Add", then(y), dq(x)), OUT))

    return build


def transposed_twice(v: Value) -> Value:
    y = apply("Transpose", v, attributes=TransposeAttrs((1, 0)), type_=typed((3, 5)))
    y = dq(q(y, shifted_params(U8)))
    return apply("Transpose", y, attributes=TransposeAttrs((1, 0)), type_=typed((5, 3)))


def two_tables(c: Value) -> Graph:
    choice, index = rows()
    other = const(CODES, OTHER, "other")
    a, b = (
        apply("Gather", dq(t), index, attributes=AxisAttrs(0), type_=typed((5, 3)))
        for t in (c, other)
    )
    return graph([choice], q(apply("Add", a, b), OUT))


def product(c: Value) -> Graph:
    x = stored("x", U8, (2, 4))
    permuted = apply("Transpose", dq(c), attributes=TransposeAttrs((1, 0)), type_=typed((3, 2)))
    return graph([x], q(apply("MatMul", permuted, dq(x), type_=typed((3, 4))), OUT))


CASES: dict[str, tuple[Build, QuantParams]] = {
    **{f"{op} {p.storage_dtype}": (x_and(op, p), U8)
       for op in ("Add", "Mul", "Sub", "Div", "Min", "Max", "PRelu") for p in (OUT, SIGNED_OUT)},
    **{f"const {op}": (x_and(op, swapped=True), U8) for op in ("Add", "Sub", "Div")},
    "float result": (x_and("Add", None), U8),
    "per channel": (x_and("Mul"), AXES),
    "zero point": (x_and("Add"), OTHER),
    "Where": (chosen, U8),
    "Concat": (joined, U8),
    "Concat, one type": (lambda c: joined(c, U8), U8),
    "Concat of floats": (joined_to_float, U8),
    "Gather": (table(None), U8),
    "Gather, requantized": (table(OTHER), U8),
    "Gather, the type again": (table(U8), U8),
    "Gather, the other type": (table(shifted_params(U8)), U8),
    "Gather and movers": (table(U8, transposed_twice), U8),
    "two tables": (two_tables, U8),
    "first of a product": (product, U8),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_either_signedness_is_one_graph(case: str) -> None:
    build, params = CASES[case]
    assert settled(build(signed(params))).text() == settled(build(unsigned(params))).text()


@pytest.mark.parametrize(("result", "kind"), [(OUT, DType.UINT8), (SIGNED_OUT, DType.INT8)])
def test_a_constant_is_as_signed_as_the_result(result: QuantParams, kind: DType) -> None:
    g = settled(x_and("Add", result)(unsigned(U8)))
    assert g.nodes[-1].operand(1).type.dtype is kind


def test_a_table_is_as_signed_as_what_its_rows_meet() -> None:
    g = settled(table(None)(signed(U8)))
    assert names(g) == ["Cast", "Gather", "Add"]
    assert g.nodes[1].output.type.dtype is DType.UINT8


def test_a_table_whose_rows_leave_the_graph_keeps_its_type() -> None:
    choice, index = rows()
    y = apply("Gather", unsigned(U8), index, attributes=AxisAttrs(0), type_=typed((5, 3), U8))
    g = settled(graph([choice], y))
    assert g.outputs[0].type.dtype is DType.UINT8


def test_a_shift_to_a_narrower_range_clamps_the_table() -> None:
    (choice, index), x = rows(), stored("x", U8, (5, 3))
    y = apply("Gather", unsigned(U8), index, attributes=AxisAttrs(0), type_=typed((5, 3), U8))
    y = rq(y, shifted_params(U8).with_range(-10, 10))
    g = settled(graph([choice, x], q(apply("Add", dq(y), dq(x)), OUT)))
    data = g.nodes[1].operand(0).constant
    assert data is not None
    assert np.unique(data.numpy()).tolist() == [118, 127, 128, 138]


def test_activations_keep_their_signedness() -> None:
    x = stored("x", U8, (2, 3))
    g = settled(graph([x], rq(x, shifted_params(U8))))
    assert names(g) == ["requantize"]


@pytest.mark.parametrize("params", [S8, OTHER], ids=["symmetric", "other"])
def test_a_constant_among_joined_values_is_converted_once(params: QuantParams) -> None:
    """Quantized twice, in a type of its own and in the result's, it is one constant of that."""
    data = (np.arange(6, dtype=np.float32).reshape(2, 3) - 3) / 4
    g = settled(joined(q(const(data), params)))
    value = g.nodes[0].operand(1)
    assert value.quant is not None
    assert value.quant.params == OUT
