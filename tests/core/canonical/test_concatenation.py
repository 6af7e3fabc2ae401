"""Concat joins stored integers wherever its operands or its result are quantized."""

from __future__ import annotations

from qdqbridge.core.canonical import concatenation
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.attributes import AxisAttrs
from tests.core.canonical.at_work import alone, settled
from tests.core.graph.graphs import OUT, U8, apply, dq, graph, names, plain, q, stored, typed

THROUGH, INTO = concatenation.dequantize_through_concat, concatenation.quantize_into_concat


def concat(*values: Value) -> Value:
    return apply("Concat", *values, attributes=AxisAttrs(0), type_=typed((3 * len(values),)))


def test_equal_operands_are_joined_as_they_are_stored() -> None:
    a, b = stored("a", U8, (3,)), stored("b", U8, (3,))
    g = graph([a, b], concat(dq(a), dq(b)))
    alone(g, THROUGH)
    assert names(g) == ["Concat", "dequantize"]
    assert g.nodes[0].output.quant is not None
    assert g.nodes[0].output.quant.params == U8


def test_operands_with_other_parameters_stay_real() -> None:
    a, b = stored("a", U8, (3,)), stored("b", OUT, (3,))
    g = graph([a, b], concat(dq(a), dq(b)))
    alone(g, THROUGH)
    assert names(g) == ["dequantize", "dequantize", "Concat"]


def test_a_float_operand_is_quantized_before_it_is_joined() -> None:
    a, f = stored("a", U8, (3,)), plain("f", (3,))
    g = graph([a, f], q(concat(dq(a), f), OUT))
    alone(g, INTO)
    assert names(g) == ["quantize", "Concat"]
    join = g.nodes[-1]
    assert [None if v is None or v.quant is None else v.quant.params for v in join.inputs] == [
        U8,
        OUT,
    ]


def test_a_result_that_is_also_read_as_float_stays() -> None:
    f, h = plain("f", (3,)), plain("h", (3,))
    joined = concat(f, h)
    g = graph([f, h], q(joined, OUT), joined)
    alone(g, INTO)
    assert names(g) == ["Concat", "quantize"]


def test_what_stands_before_a_concat_gets_its_quantization() -> None:
    a, f = stored("a", U8, (3,)), plain("f", (3,))
    activation = apply("Sigmoid", dq(a), type_=typed((3,)))
    g = settled(graph([a, f], q(concat(activation, f), OUT)))
    assert sorted(names(g)) == ["Concat", "Sigmoid", "quantize"]
