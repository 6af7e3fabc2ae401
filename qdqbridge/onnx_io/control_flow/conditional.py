"""ONNX's If, made of two graphs, and the two graphs of one."""

from __future__ import annotations

from pathlib import Path

from onnx import GraphProto, ModelProto, helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import imported, opaque_operator
from qdqbridge.onnx_io.reading.reader import read_proto
from qdqbridge.onnx_io.reading.structure import captured_names
from qdqbridge.onnx_io.writer import to_proto

_CAPTURE = "captured_{}"
_CONDITION = "in_0"


def conditional(then: Graph, other: Graph) -> tuple[Operator, OpaqueAttrs, list[int]]:
    """Returns the operator If, its attributes, and which inputs it captures in which order.

    The operands of its node are the condition and then those inputs.

    Args:
        then: The branch for true. Both branches have the same inputs, which the If captures, and
            as many results.
        other: The branch for false.
    """
    opset, bodies = 0, list[GraphProto]()
    for number, branch in enumerate((then, other)):
        model = to_proto(_name_captured_inputs(branch))
        opset = max(opset, *(e.version for e in model.opset_import if not e.domain))
        body = model.graph
        body.name = ("then", "else")[number]
        del body.input[:]
        bodies.append(body)
    outputs = [f"out_{i}" for i in range(len(then.outputs))]
    node = helper.make_node("If", ["in_0"], outputs, then_branch=bodies[0], else_branch=bodies[1])
    captures = [int(name.removeprefix(_CAPTURE.format(""))) for name in captured_names(node)]
    operands = [Value(TensorType(DType.BOOL, ()))]
    attributes = opaque_attributes(node, opset, operands, [then.inputs[i] for i in captures])
    return opaque_operator("", "If"), attributes, captures


def is_conditional(node: Node) -> bool:
    """Returns whether a node is an opaque If."""
    attributes = node.attributes
    return isinstance(attributes, OpaqueAttrs) and (
        (attributes.domain, attributes.op_type) == ("", "If")
    )


def branches_of(node: Node) -> tuple[Graph, Graph]:
    """Returns the branches of an opaque If, for true and for false: see :func:`branch_of`."""
    return branch_of(node, True), branch_of(node, False)


def branch_of(node: Node, condition: bool) -> Graph:
    """Returns a branch of an opaque If as a raw graph.

    Args:
        node: The If; its operands are the condition and what the branches capture.
        condition: Which one.

    Returns:
        A graph whose inputs are the captured operands that are not constant, as ``in_1`` …, in
        their order, and whose outputs are the results of the If.

    Raises:
        QdqBridgeError: The branch cannot be read, or the If gives what is not a tensor.
    """
    attributes = node.record(OpaqueAttrs)
    model = attributes.model(node)
    (call,) = model.graph.node
    bodies = {attribute.name: attribute.g for attribute in call.attribute}
    name = "then_branch" if condition else "else_branch"
    return read_proto(
        _alone(bodies[name], model, attributes), Path(f"the {name} of an If"), _as_it_is
    )


def _alone(body: GraphProto, model: ModelProto, attributes: OpaqueAttrs) -> ModelProto:
    """Returns a branch as a model; what it captures are inputs and initializers."""
    graph = GraphProto(name=body.name, node=body.node, output=body.output)
    graph.input.extend(value for value in model.graph.input if value.name != _CONDITION)
    graph.initializer.extend((*body.initializer, *model.graph.initializer))
    imports = imported(attributes, model.graph.node[0])
    return ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports)


def _as_it_is(graph: Graph) -> Graph:
    return graph


def _name_captured_inputs(graph: Graph) -> Graph:
    """Returns a graph whose inputs have the names by which an If captures them."""
    for index, value in enumerate(graph.inputs):
        value.name = _CAPTURE.format(index)
    return graph
