"""Graph inputs, float islands with their reasons, and the driver."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import RULES, canonicalize, float_region_notes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs, ReduceAttrs, SoftmaxAttrs
from qdqbridge.core.ops.integers import propagate_parameters
from qdqbridge.core.rewrite import run
from tests.core.canonical.at_work import settled
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
    stored,
    typed,
)
from tests.onnx_models import Builder, load


def reinterpreted(x: Value, params: QuantParams = U8) -> Value:
    return apply("reinterpret", x, type_=typed(x.type.shape, params))


# ---- inputs -----------------------------------------------------------------------------------


def test_integer_inputs_take_the_type_their_readers_agree_on() -> None:
    x = plain("x", (4,), DType.UINT8)
    g = graph([x], dq(reinterpreted(x)), q(apply("Exp", dq(reinterpreted(x))), OUT))
    propagate_parameters(g)
    assert x.type == typed((4,), U8)
    assert "reinterpret" not in names(g)
    settled(g)


@pytest.mark.parametrize("case", ["two types", "other reader", "float", "unread"])
def test_other_inputs_keep_their_type(case: str) -> None:
    x = plain("x", (4,), DType.FLOAT32 if case == "float" else DType.UINT8)
    y = dq(q(x, U8)) if case == "float" else dq(reinterpreted(x))
    more = {
        "two types": [dq(reinterpreted(x, OUT))],
        "other reader": [apply("Neg", x)],
    }.get(case, [])
    outputs = [] if case == "unread" else [y, *more]
    g = graph([x], *outputs)
    before = x.type
    propagate_parameters(g)
    assert x.type == before


# ---- islands ----------------------------------------------------------------------------------


def found(g: Graph) -> dict[str, str]:
    return {note.node: note.reason for note in float_region_notes(canonicalize(g))}


def conv(x: Value, w: Value, shape: tuple[int, ...] = (1, 2, 3, 3)) -> Value:
    attributes = ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0))
    return apply("Conv", x, w, attributes=attributes, type_=typed(shape), name="conv")


def kernel(params: QuantParams | None) -> Value:
    codes = np.arange(1, 5, dtype=np.int8).reshape(2, 2, 1, 1)
    return const(codes.astype(np.float32)) if params is None else dq(const(codes, params))


def channels(axis: int) -> QuantParams:
    return quant(DType.INT8, np.array([1, 0.5], np.float32), np.int32(0), axis=axis)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [(None, "Conv: its weight is float"),
     (channels(1), "Conv: its weight is quantized along axis 1, its results vary along 0")],
    ids=["float weight", "wrong axis"],
)  # fmt: skip
def test_islands_of_weights(weight: QuantParams | None, reason: str) -> None:
    x = stored("x", U8, (1, 2, 3, 3))
    assert found(graph([x], q(conv(dq(x), kernel(weight)), OUT))) == {"conv": reason}


def test_island_of_a_per_channel_activation() -> None:
    x = stored("x", channels(1), (1, 2, 3, 3))
    g = graph([x], q(conv(dq(x), kernel(W8)), OUT))
    assert found(g) == {"conv": "Conv: its input is quantized per channel"}


def test_island_of_an_operator_whose_second_result_is_an_index() -> None:
    b = Builder()
    values = b.op("TopK", b.qdq(b.input("x", [2, 4]), 0.5), b.init(np.array([2])), outputs=2)
    b.output(b.qdq(values, 0.5))
    assert list(found(load(b.model())).values()) == ["TopK: the operator has no quantized form"]


def test_island_of_a_shared_result() -> None:
    x = stored("x", U8, (2,))
    y = apply("Sigmoid", dq(x))
    g = graph([x], q(y, OUT), apply("Exp", y))
    assert found(g)["sigmoid"] == "Sigmoid: its float result is read several times"


def test_island_of_a_graph_output() -> None:
    x = stored("x", U8, (2,))
    g = graph([x], apply("Sigmoid", dq(x)))
    assert found(g) == {"sigmoid": "Sigmoid: its float result is a graph output"}


def test_island_of_a_float_chain() -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Softmax", dq(x), attributes=SoftmaxAttrs((1,)))
    g = graph(
        [x], q(apply("ReduceMean", y, attributes=ReduceAttrs((1,)), type_=typed((2, 1))), OUT)
    )
    assert found(g) == {
        "softmax": "Softmax: its float result is read by ReduceMean",
        "reducemean": "ReduceMean: operand 0 is float: the result of Softmax",
    }


def test_island_of_a_float_input() -> None:
    x, f = stored("x", U8, (2,)), plain("f", (2,))
    g = graph([x, f], q(apply("Add", dq(x), f), OUT))
    (reason,) = found(g).values()
    assert reason.startswith("Add: ")
    assert reason.endswith("the result of a graph input")


def test_quantized_operands_with_a_float_result_are_told_apart() -> None:
    x = stored("x", U8, (2, 2))
    w = dq(const(np.ones((2, 2), np.int8), W8))
    y = apply("Gemm", dq(x), w, attributes=GemmAttrs(), name="gemm")
    g = graph([x], y)
    assert found(g) == {}
    assert names(g) == ["Dense"]


def test_quantized_graphs_have_no_islands() -> None:
    x = plain("x", (1, 2, 3, 3))
    g = graph([x], dq(q(conv(dq(q(x, U8)), kernel(W8)), OUT)))
    assert found(g) == {}
    assert names(g) == ["quantize", "Conv", "dequantize"]


# ---- driver -----------------------------------------------------------------------------------


def test_every_rule_has_a_name_and_says_what_it_does() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.name == rule.name.lower()
        assert " " not in rule.name
        assert rule.apply.__doc__


def test_nothing_to_do_changes_nothing() -> None:
    x = stored("x", U8, (2,))
    g = graph([x], apply("Add", x, x, type_=typed((2,), OUT)))
    before = g.text()
    assert run(g, RULES) == {}
    assert g.text() == before


def test_refusals_of_nodes_that_are_gone_are_dropped() -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Add", dq(x), dq(x))
    g = canonicalize(graph([x], q(apply("Relu", y), OUT)))
    assert g.notes == []


def test_notes_are_not_repeated() -> None:
    x = stored("x", U8, (2,))
    y = apply("Sigmoid", dq(x))
    g = canonicalize(graph([x], q(y, OUT), apply("Exp", y)))
    assert len(g.notes) == 1
    assert len(canonicalize(g).notes) == 1


def test_long_chains_take_linear_time() -> None:
    x = stored("x", U8, (2,))
    y = x
    params = [U8, S8, OUT, per_tensor(DType.UINT8, 2**-4, 7)]
    for i in range(3000):
        y = q(apply("Relu", dq(y)), params[i % 4])
    g = canonicalize(graph([x], y))
    assert set(names(g)) == {"requantize"}
    assert len(g.nodes) == 3000


def test_unread_nodes_are_dropped() -> None:
    x = stored("x", U8, (2,))
    unread = apply("Exp", dq(x))
    g = graph([x], dq(x))
    assert unread.producer is not None
    g.nodes.append(unread.producer)
    canonicalize(g)
    assert names(g) == ["dequantize"]
