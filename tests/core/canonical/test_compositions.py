"""Float elementwise operators between one dequantize and a quantize are one node."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.canonical import fusions
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.ops.composition import CompositionAttrs
from tests.core.canonical.at_work import alone, reasons, settled
from tests.core.graph.graphs import OUT, U8, apply, const, dq, graph, names, plain, q, stored

RULE = fusions.compose_elementwise


def gelu(x: Value) -> Value:
    root = const(np.asarray(np.sqrt(2), np.float32), None, "root")
    one = const(np.asarray(1, np.float32), None, "one")
    half = const(np.asarray(0.5, np.float32), None, "half")
    shifted = apply("Add", apply("Erf", apply("Div", x, root)), one)
    return apply("Mul", apply("Mul", x, shifted), half)


def steps(g: Graph) -> list[str]:
    attributes = g.nodes[0].attributes
    assert isinstance(attributes, CompositionAttrs)
    return [step.op.name for step in attributes.steps]


def test_a_chain_is_one_node() -> None:
    x = stored("x", U8, (50,))
    g = settled(graph([x], q(apply("Exp", apply("Sigmoid", dq(x))), OUT)))
    assert names(g) == ["Composition"]
    assert steps(g) == ["Sigmoid", "Exp"]


def test_a_function_may_read_its_operand_several_times() -> None:
    x = stored("x", U8, (50,))
    g = settled(graph([x], q(gelu(dq(x)), OUT)))
    assert names(g) == ["Composition"]
    assert sorted(steps(g)) == ["Add", "Div", "Erf", "Mul", "Mul"]


def test_one_operator_is_no_composition() -> None:
    x = stored("x", U8, (50,))
    g = settled(graph([x], q(apply("Sigmoid", dq(x)), OUT)))
    assert names(g) == ["Sigmoid"]


def test_two_tensors_stay_apart() -> None:
    x, y = stored("x", U8, (50,)), stored("y", U8, (50,))
    g = graph([x, y], q(apply("Add", apply("Exp", dq(x)), dq(y)), OUT))
    assert alone(g, RULE) == ["it combines two tensors"]


def test_a_float_operand_stays_outside() -> None:
    x, f = stored("x", U8, (50,)), plain("f", (50,))
    g = graph([x, f], q(apply("Add", apply("Exp", dq(x)), f), OUT))
    assert alone(g, RULE) == ["its float operand is the result of a graph input"]


def test_a_vector_of_constants_is_no_function_of_one_code() -> None:
    x = stored("x", U8, (2, 3))
    vector = const(np.asarray([1, 2, 3], np.float32), None, "vector")
    g = graph([x], q(apply("Add", apply("Exp", dq(x)), vector), OUT))
    assert alone(g, RULE) == ["a constant operand is no float scalar"]


def test_a_float_result_that_is_read_elsewhere_stays() -> None:
    x = stored("x", U8, (50,))
    sigmoid = apply("Sigmoid", dq(x))
    g = settled(graph([x], q(apply("Exp", sigmoid), OUT), sigmoid))
    assert "Composition" not in names(g)
    assert reasons(g)["compose-elementwise"] == "the float result of Sigmoid is a graph output"
