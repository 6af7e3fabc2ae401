"""ONNX's If, made of two graphs."""

from __future__ import annotations

from onnx import GraphProto, helper

from qdqbridge.graph.graph import Graph
from qdqbridge.graph.operator import Operator
from qdqbridge.onnx_io.foreign import ForeignAttrs, foreign_attributes
from qdqbridge.onnx_io.foreign_operators import foreign_operator
from qdqbridge.onnx_io.structure import captured_names
from qdqbridge.onnx_io.writer import to_proto

_CAPTURE = "captured_{}"


def conditional(then: Graph, other: Graph) -> tuple[Operator, ForeignAttrs, list[int]]:
    """Returns the operator If, its attributes, and which inputs it captures in which order.

    The operands of its node are the condition and then those inputs.

    Args:
        then: The branch for true. Both branches have the same inputs, which the If captures, and
            as many results.
        other: The branch for false.
    """
    opset, bodies = 0, list[GraphProto]()
    for number, branch in enumerate((then, other)):
        model = to_proto(_named(branch))
        opset = max(opset, *(e.version for e in model.opset_import if not e.domain))
        body = model.graph
        body.name = ("then", "else")[number]
        del body.input[:]
        bodies.append(body)
    outputs = [f"out_{i}" for i in range(len(then.outputs))]
    node = helper.make_node("If", ["in_0"], outputs, then_branch=bodies[0], else_branch=bodies[1])
    captures = [int(name.removeprefix(_CAPTURE.format(""))) for name in captured_names(node)]
    return foreign_operator("", "If"), foreign_attributes(node, opset), captures


def _named(graph: Graph) -> Graph:
    """Returns a graph whose inputs have the names by which an If captures them."""
    for index, value in enumerate(graph.inputs):
        value.name = _CAPTURE.format(index)
    return graph
