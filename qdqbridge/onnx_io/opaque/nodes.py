"""Opaque nodes: those without a row in the operator table, kept unharmed.

An opaque node keeps its ``NodeProto`` with every name replaced by a stable one, so that the text
form of a graph does not depend on the file's names. It is written back as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import NodeProto, helper, numpy_helper

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Serialized
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import (
    Counter,
    FileNames,
    all_defined,
    bodies,
    nodes_inside,
    rename_inside,
    renamed_attribute,
)
from qdqbridge.onnx_io.opaque.versions import (
    count_axes_from_front,
    leave_out_defaults,
    oldest_version,
)
from qdqbridge.onnx_io.reading.structure import captured_names, plain_domain, whole_results
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant

BODY_OPSET = 17
"""ONNX's opset inside the subgraphs of a node of another domain, which does not say its own."""
IR_VERSION = 10


@dataclass(frozen=True, slots=True, repr=False)
class StoredNode(Serialized):
    """A serialized ``NodeProto`` with normal names; its text is a short hash.

    Attributes:
        names: What its file calls the things inside its subgraphs. Equal nodes may differ in it.
    """

    names: FileNames = field(default_factory=FileNames, compare=False)

    def proto(self) -> NodeProto:
        """Returns the node, free to be changed."""
        return NodeProto.FromString(self.data)

    def named(self) -> NodeProto:
        """Returns the node, free to be changed, whose inner nodes are called as in their file."""
        node = self.proto()
        # Names are no part of the record, but a saved file shall have those that it had.
        for inner, name in zip(nodes_inside(node), self.names.nodes, strict=False):
            inner.name = name
        return node

    def integers(self) -> dict[str, int]:
        """Returns the integer attributes."""
        return {a.name: a.i for a in self.proto().attribute if a.type == onnx.AttributeProto.INT}

    def listed(self, name: str) -> list[int] | None:
        """Returns an attribute that is a list of integers; None where it is not given."""
        found = (a for a in self.proto().attribute if a.name == name)
        return next((list(a.ints) for a in found), None)

    def number(self, name: str) -> float | int | None:
        """Returns the only element of a tensor that is an attribute; None where it is not given."""
        for attribute in self.proto().attribute:
            if attribute.name == name and attribute.HasField("t"):
                array = numpy_helper.to_array(attribute.t)
                return array.reshape(()).item() if array.size == 1 else None
        return None


@dataclass(frozen=True, slots=True)
class OpaqueAttrs(Attributes):
    """A node as its file has it.

    Attributes:
        domain: Its domain, empty for ONNX itself.
        op_type: Its operator.
        version: The opset version of the domain.
        node: The node; its inputs are ``in_0`` …, its outputs ``out_0`` …, the names inside its
            subgraphs are numbered, and left-out inputs and outputs are empty.
        captures: The stable names, inside the subgraphs, of the outer-scope tensors that they
            read; these are operands after the node's own inputs.
    """

    domain: str
    op_type: str
    version: int
    node: StoredNode
    captures: tuple[str, ...] = ()

    def stated(self) -> Mapping[str, Any]:
        """Returns the attributes of the node: numbers, bytes, lists of these; messages of onnx."""
        given = self.node.proto().attribute
        return {each.name: onnx.helper.get_attribute_value(each) for each in given}

    def captured(self) -> int:
        """Returns how many of a node's last operands its subgraphs read."""
        return len(self.captures)

    def captured_once(self, firsts: Sequence[int]) -> OpaqueAttrs:
        """Returns the record where subgraphs read what is the same under one name."""
        kept = [first for index, first in enumerate(firsts) if first == index]
        # Numbered anew: a record whose names have gaps would be another one than that of a file
        # that reads the operand once.
        fresh = [f"capture_{kept.index(first)}" for first in firsts]
        node, names = self.node.proto(), dict(zip(self.captures, fresh, strict=True))
        for attribute in node.attribute:
            for body in bodies(attribute):
                rename_inside(body, names)
        stored = StoredNode(node.SerializeToString(deterministic=True), self.node.names)
        return replace(self, node=stored, captures=tuple(dict.fromkeys(fresh)))

    def model(self, node: Node) -> onnx.ModelProto:
        """Returns a model that holds this node alone, for other importers of ONNX.

        Args:
            node: The graph node that has these attributes; its constants become initializers.

        Raises:
            UnsupportedTargetError: It takes or gives what is not a tensor.
        """
        if not _tensors_only(self):
            raise UnsupportedTargetError(
                f"{node.op.name} cannot be handed on",
                where=f"node '{node.name}'",
                why="it takes or gives a sequence or an optional, only tensors are handed on",
                fix="run the model with onnxruntime, or replace the sequence by tensors",
            )
        names = [f"in_{i}" if v is not None else "" for i, v in enumerate(node.inputs)]
        outputs = [f"out_{i}" for i in range(len(node.outputs))]
        inputs: list[onnx.ValueInfoProto] = []
        initializers: list[onnx.TensorProto] = []
        extents: dict[str, str] = {}
        for name, value in zip(names, node.inputs, strict=True):
            if value is None:
                continue
            if value.constant is not None:
                initializers.append(proto_from_constant(name, value.constant))
            else:
                inputs.append(_info(name, value, extents))
        graph = helper.make_graph(
            [opaque_node_proto(self, names, outputs)],
            "one_node",
            inputs,
            [_info(*pair, extents) for pair in zip(outputs, node.outputs, strict=True)],
            initializers,
        )
        imports = [helper.make_opsetid(self.domain, self.version)]
        # Bodies of a node of another domain hold ONNX's own operators.
        if self.domain:
            imports.append(helper.make_opsetid("", BODY_OPSET))
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _tensors_only(attributes: OpaqueAttrs) -> bool:
    """Returns whether all operands and results of a node are tensors, its bodies' results too."""
    node = attributes.node.proto()
    results = [o for a in node.attribute for body in bodies(a) for o in body.output]
    if any(o.type.WhichOneof("value") not in (None, "tensor_type") for o in results):
        return False
    schema = schema_of(attributes.op_type, attributes.domain, attributes.version)
    formals = () if schema is None else (*schema.inputs, *schema.outputs)
    return all(any(kind.startswith("tensor(") for kind in formal.types) for formal in formals)


def _info(name: str, value: Value, extents: dict[str, str]) -> onnx.ValueInfoProto:
    """Returns the type of a tensor; open extents get plain names, for importers that read them."""
    shape = value.declared if value.type.shape is None else value.type.shape
    plain = None if shape is None else [
        extents.setdefault(dim, f"extent_{len(extents)}") if isinstance(dim, str) else dim
        for dim in shape
    ]  # fmt: skip
    return helper.make_tensor_value_info(name, dtype_to_onnx(value.type.dtype), plain)


def opaque_attributes(
    proto: NodeProto,
    opset: int,
    operands: Sequence[Value | None] = (),
    captured_values: Sequence[Value] | None = None,
) -> OpaqueAttrs:
    """Returns a node's record: everything it says but its names and annotations.

    Args:
        proto: The node.
        opset: Version of its domain.
        operands: What it reads, where known: older versions may not take these element types.
        captured_values: What its bodies read from outside, where known.
    """
    domain = plain_domain(proto.domain)
    captured = captured_names(proto)
    names = {name: f"capture_{i}" for i, name in enumerate(captured)}
    node = NodeProto(op_type=proto.op_type, domain=domain, overload=proto.overload)
    node.input.extend(f"in_{i}" if name else "" for i, name in enumerate(proto.input))
    node.output.extend(f"out_{i}" if name else "" for i, name in enumerate(proto.output))
    counter = Counter()
    # Their order in the file means nothing, and the bytes of the node are part of the digest.
    for attribute in sorted(proto.attribute, key=lambda a: a.name):
        node.attribute.append(renamed_attribute(node.op_type, attribute, names, counter))
    first = operands[0] if operands else None
    # -1 and the last axis are one axis; what is spelled out as its default says nothing.
    count_axes_from_front(node, opset, (first and first.rank) or 0)
    leave_out_defaults(node, opset)
    inner = tuple(each.name for each in nodes_inside(proto))
    stored = StoredNode(
        node.SerializeToString(deterministic=True), FileNames(tuple(counter.tensors), inner)
    )
    captures = tuple(names.values())
    known = captured_values if names else ()
    read = None if known is None else dict(zip(captures, known, strict=True))
    version = oldest_version(node, opset, operands, read)
    return OpaqueAttrs(domain, proto.op_type, version, stored, captures)


def opaque_node_proto(
    attributes: OpaqueAttrs, input_names: Sequence[str], output_names: Sequence[str]
) -> NodeProto:
    """Returns the node to write.

    Args:
        attributes: Its record.
        input_names: One name per operand, those for the captured tensors at the end; empty for
            an operand that is left out.
        output_names: One name per result; the first one is the prefix of the names inside
            subgraphs, so that these are unique.
    """
    node = attributes.node.named()
    own = len(node.input)
    names = dict(zip(attributes.captures, input_names[own:], strict=True))
    prefix = next(iter(output_names), "")
    for attribute in node.attribute:
        for body in bodies(attribute):
            names |= {name: f"{prefix}.{name}" for name in all_defined(body)}
            rename_inside(body, names)
    results = iter(output_names)
    outputs = [next(results) if name else "" for name in node.output]
    outputs += [""] * (len(whole_results(node)) - len(outputs))
    del node.input[:], node.output[:]
    node.input.extend(input_names[:own])
    node.output.extend(outputs)
    return node


def record_problem(attributes: OpaqueAttrs) -> str:
    """Returns in words how a record contradicts its own node; empty where it does not."""
    try:
        node = attributes.node.proto()
    except DecodeError as error:
        return f"its bytes are no node: {error}"
    if (node.domain, node.op_type) != (attributes.domain, attributes.op_type):
        return f"its bytes are a node of '{node.domain}' {node.op_type}"
    if set(captured_names(node)) != set(attributes.captures):
        return f"its bodies read {list(captured_names(node))} from outside"
    return "" if 0 < attributes.version < 1 << 31 else f"its version is {attributes.version}"


def interface_problem(node: Node) -> str:
    """Returns in words how a node has other operands or results than what it carries."""
    attributes = node.record(OpaqueAttrs)
    proto = attributes.node.proto()
    own = len(proto.input)
    if own + len(attributes.captures) != len(node.inputs):
        return f"it has {len(node.inputs)} operands, and carries a node of {own}"
    given = [value is not None for value in node.inputs[:own]]
    if given != [bool(name) for name in proto.input] or None in node.inputs[own:]:
        return "it leaves out other operands than the node that it carries"
    results = sum(bool(name) for name in proto.output)
    return "" if results == len(node.outputs) else f"the node that it carries gives {results}"


__all__ = ["OpaqueAttrs", "StoredNode", "opaque_attributes", "opaque_node_proto"]
