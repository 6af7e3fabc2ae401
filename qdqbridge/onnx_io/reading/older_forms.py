"""Nodes of opsets before 13 in the terms of opset 13, where ONNX has changed an operator.

The graph knows one version of an operator. Codecs read every version from opset 7 on of those that
have a row; what has none, what is older, and the nodes inside the bodies of If, Loop and Scan come
here. Opset 13 is the first with quantization per axis; files are written at that or a later one.
What changed stands in :mod:`qdqbridge.onnx_io.reading.older_operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from qdqbridge.core.graph.types import Shape
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small, shape_of
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.older_operators import (
    FORMS,
    ElementType,
    Fresh,
    NoNewForm,
    OldNode,
    ShapeOf,
)
from qdqbridge.onnx_io.reading.structure import all_nodes, describe

_NEW = 13
_LISTED = 8
_LATER = {"RoiAlign": 16, "DFT": 20}
"""Operators whose old meaning an opset after 13 can say first."""


@dataclass(frozen=True, slots=True)
class NewForm:
    """What an old node is in the terms of a newer opset.

    Attributes:
        nodes: The nodes, in order; None where the node itself is right.
        opset: The opset that it is to be read in.
    """

    nodes: list[NodeProto] | None
    opset: int


def in_new_form(
    node: NodeProto, opset: int, fresh: Fresh, shape: ShapeOf, element_type: ElementType
) -> NewForm:
    """Returns what a node says in the terms of opset 13, or of the first that can say it.

    Args:
        node: A node; the nodes in its bodies are brought up to date in place.
        opset: ONNX's opset that it is written in.
        fresh: Gives unused names of tensors.
        shape: Gives the shape of a tensor, None where it is unknown.
        element_type: Gives ONNX's number of a tensor's element type, 0 where it is unknown.

    Raises:
        NoNewForm: Nothing newer says it.
    """
    new = max(opset, _NEW)
    for attribute in node.attribute:
        for body in bodies(attribute):
            new = max(new, _renew_body(body, opset, fresh))
    schema = schema_of(node.op_type, "", opset) if node.domain in ONNX_DOMAINS else None
    found = None if schema is None else FORMS.get(node.op_type)
    if schema is None or found is None or schema.since_version >= found[0]:
        return NewForm(None, new)
    context = OldNode(node, int(schema.since_version), fresh, shape, element_type)
    found[1](context)
    return NewForm(context.made, max(new, context.opset, _LATER.get(node.op_type, 0)))


def renewed(model: ModelProto, file: str) -> ModelProto:
    """Returns a model of an opset that no codec reads in the terms of opset 13.

    Args:
        model: A checked model with sorted nodes; it is changed.
        file: File name, for messages.

    Raises:
        UnsupportedModelError: Nothing newer says what some nodes say; all are listed.
    """
    opset, types = default_opset(model), infer(model)
    types |= {t.name: (t.data_type, tuple(t.dims)) for t in model.graph.initializer}
    taken = {name for node in all_nodes(model.graph.node) for name in node.output}
    taken |= {value.name for value in model.graph.input}
    tensors = {t.name: t for t in model.graph.initializer if is_small(t)}
    nodes: list[NodeProto] = []
    refused: list[str] = []
    new = _NEW

    def fresh(hint: str) -> str:
        return unused(hint, taken)

    def shape(name: str) -> Shape:
        return types.get(name, (0, None))[1]

    def element_type(name: str) -> int:
        return types.get(name, (0, None))[0]

    for node in model.graph.node:
        try:
            form = in_new_form(node, opset, fresh, shape, element_type)
        except NoNewForm as reason:
            refused.append(f"{describe(node)}: {reason}")
            continue
        new = max(new, form.opset)
        made = [node] if form.nodes is None else form.nodes
        if any(name and shape(name) is None for name in node.output):
            types |= _inferred(made, form.opset, types, tensors)
        nodes += made
    if refused:
        raise UnsupportedModelError(
            f"operators of opset {opset} have no newer form",
            where=file,
            why="; ".join(refused[:_LISTED]),
            fix="export the model with opset 7 or newer",
        )
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    for entry in model.opset_import:
        if entry.domain in ONNX_DOMAINS:
            entry.version = new
    return model


def _inferred(
    nodes: Sequence[NodeProto],
    opset: int,
    types: Mapping[str, TypeAndShape],
    tensors: Mapping[str, TensorProto],
) -> dict[str, TypeAndShape]:
    """Returns what the results of new nodes are: of old ones, ONNX infers few.

    Args:
        nodes: The nodes that take the place of an old one.
        opset: The opset that they are in.
        types: What is known of their operands.
        tensors: Small initializers of the graph, by name.
    """
    read = {name for node in nodes for name in node.input if name in types}
    operands = [
        helper.make_tensor_value_info(
            name, element, None if shape is None else [_extent_or_none(extent) for extent in shape]
        )
        for name, (element, shape) in types.items()
        if name in read
    ]
    constants = [tensor for name, tensor in tensors.items() if name in read]
    graph = helper.make_graph(nodes, "part", operands, [], constants)
    found = infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
    made = {name for node in nodes for name in node.output}
    return {name: type_ for name, type_ in found.items() if name in made and type_[1] is not None}


def _extent_or_none(extent: int | str) -> int | str | None:
    """Returns an extent; None where all that is known is that there is one."""
    return None if isinstance(extent, str) and extent.startswith("?") else extent


def unused(hint: str, taken: set[str]) -> str:
    """Returns a name that begins like ``hint`` and is not taken, and takes it."""
    number = 1
    while (name := f"{hint}.{number}") in taken:
        number += 1
    taken.add(name)
    return name


def _renew_body(body: GraphProto, opset: int, fresh: Fresh) -> int:
    """Brings the nodes of a body up to date; returns the opset that they are in then."""
    types = {v.name: v.type.tensor_type for v in (*body.input, *body.value_info, *body.output)}
    tensors = {tensor.name: tensor for tensor in body.initializer}

    def shape(name: str) -> Shape:
        if name in tensors:
            return tuple(tensors[name].dims)
        type_ = types.get(name)
        return None if type_ is None else shape_of(onnx.TypeProto(tensor_type=type_))

    def element_type(name: str) -> int:
        if name in tensors:
            return tensors[name].data_type
        return types[name].elem_type if name in types else 0

    nodes: list[NodeProto] = []
    changed, new = False, 0
    for node in body.node:
        form = in_new_form(node, opset, fresh, shape, element_type)
        changed, new = changed or form.nodes is not None, max(new, form.opset)
        nodes += [node] if form.nodes is None else form.nodes
    if changed:
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del body.node[:]
        body.node.extend(copies)
    return new
