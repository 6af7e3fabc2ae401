"""What ONNX's own function bodies say that an opaque node stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, TypeProto

from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import all_defined, rename_inside
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.reader import read_proto
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, subgraphs


def expanded(node: Node) -> Graph | None:
    """Returns a node without a row as the raw graph of simpler nodes that ONNX defines it by.

    Args:
        node: An opaque node.

    Returns:
        A graph whose inputs are the node's operands that are not constant, as ``in_0`` …, in their
        order, and whose outputs are its results; None where ONNX has no definition in nodes.

    Raises:
        QdqBridgeError: The definition cannot be read, or the node takes what is not a tensor.
    """
    attributes = node.attributes
    if not isinstance(attributes, OpaqueAttrs):
        return None
    schema = schema_of(attributes.op_type, attributes.domain, attributes.version)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    model = attributes.model(node)
    function = _schema_function_body(schema, model)
    if function is None:
        return None
    call = model.graph.node[0]
    function.domain, function.name, function.overload = call.domain, call.op_type, call.overload
    _take_attributes(call, function, schema)
    _leave_out_unasked(call, function)
    del model.opset_import[:]
    model.opset_import.extend(function.opset_import)
    if not any(entry.domain in ONNX_DOMAINS for entry in function.opset_import):
        newest = onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())
        for imports in (model.opset_import, function.opset_import):
            imports.append(newest)
    model.functions.append(function)
    where = Path(f"the definition of {attributes.op_type}")
    return read_proto(model, where, lambda graph: graph)


def _schema_function_body(schema: Any, model: onnx.ModelProto) -> FunctionProto | None:
    """Returns the body of the model's only node."""
    if schema.has_function:
        function = FunctionProto()
        function.CopyFrom(schema.function_body)
        return function
    call = model.graph.node[0]
    for body in subgraphs(call):  # ONNX builds bodies from text, in which no name has a dot
        rename_inside(body, {name: name.replace(".", "_") for name in all_defined(body)})
    types = {info.name: info.type for info in model.graph.input}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    given = [types.get(name, TypeProto()).SerializeToString() for name in call.input]
    body = schema.get_context_dependent_function(call.SerializeToString(), given)
    return FunctionProto.FromString(body) if body else None


def _take_attributes(call: NodeProto, function: FunctionProto, schema: Any) -> None:
    """Gives the call the attributes that the body reads, and those that it leaves to defaults."""
    given = {attribute.name: attribute for attribute in call.attribute}
    del call.attribute[:]
    for name in (*function.attribute, *(a.name for a in function.attribute_proto)):
        default = schema.attributes[name].default_value if name in schema.attributes else None
        if name in given:
            call.attribute.append(given[name])
        elif default is not None and default.name:
            call.attribute.append(default)


def _leave_out_unasked(call: NodeProto, function: FunctionProto) -> None:
    """Takes results out of a body that it does not compute since nobody asks for them."""
    made = {*function.input, *(name for node in function.node for name in node.output)}
    for index in reversed(range(len(function.output))):
        asked = index < len(call.output) and call.output[index]
        if function.output[index] not in made and not asked:
            del function.output[index]
            del call.output[index : index + 1]
