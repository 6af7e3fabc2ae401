"""The bodies of If, Loop and Scan: as graphs of their own, and back into their node.

::

    for body in bodies_of(node, canonicalize):
        print(body.place, len(body.graph.nodes))

The first inputs of such a graph are the body's own, the others what it captures that varies;
captured constants are constants of the graph. Its outputs are the body's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.edit import link, name_values, unlink, verify
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import Dim, NestedType, Shape, TensorType
from qdqbridge.errors import (
    QdqBridgeError,
    ScalesError,
    UnsupportedTargetError,
    UnusableScaleError,
)
from qdqbridge.onnx_io.control_flow.body_form import with_plain_bodies
from qdqbridge.onnx_io.control_flow.subgraph_names import (
    CONTROL,
    bodies,
    nodes_inside,
    rename_inside,
)
from qdqbridge.onnx_io.opaque.nodes import IR_VERSION, OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.reading.operators_known import can_be_moved, moved
from qdqbridge.onnx_io.reading.reader import read_proto
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, captured_names
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant
from qdqbridge.onnx_io.writer import to_proto

OLDEST_SCAN = 9
"""Scan of opset 8 has a batch axis of its own."""
_OLDEST_WRITTEN = 14
"""Its Add and its like take the uint8 of a quantized body, those of opset 13 do not: written there,
a body would be of another opset than it is once a file of a later one has it."""
PASSES = 4
"""How often a body is read until what it carries has the shapes that it gives."""
_PACKED = ("MatMulNBits", "QMoE")
_QUANTIZED = ("MatMulNBits", "QAttention", "QGemm", "QLinear", "QMoE", "QOrdered")
_RESERVED = ("in_", "out_", "capture_", "t_")
Written: TypeAlias = Callable[[Graph, int], ModelProto]
"""How a graph is written in an opset."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A body of a node.

    Attributes:
        attribute: ``then_branch``, ``else_branch`` or ``body``.
        place: Names the body in messages; the names of its values begin with it.
        graph: What it computes.
        own: How many of the graph's inputs are the body's own.
        captured: Which operands of the node the other inputs are.
    """

    attribute: str
    place: str
    graph: Graph
    own: int
    captured: tuple[int, ...]

    def named(self, node: str) -> str:
        """Returns the name of a node of it, unlike those of other bodies."""
        return node if node.startswith(self.place) else self.place + node


def is_control(node: Node) -> bool:
    """True for an If, Loop or Scan of ONNX's whose bodies can be run one by one."""
    attributes = node.attributes
    if not isinstance(attributes, OpaqueAttrs) or attributes.domain:
        return False
    newest = attributes.op_type != "Scan" or attributes.version >= OLDEST_SCAN
    return attributes.op_type in CONTROL and newest


def is_quantized(node: NodeProto) -> bool:
    """True for an operator that makes, takes or multiplies stored integers."""
    name = node.op_type
    return "quant" in name.lower() or "Integer" in name or name.startswith(_QUANTIZED)


def quantizes_inside(node: NodeProto) -> bool:
    """True where something in the bodies of a node makes, takes or multiplies stored integers.

    Packed weights alone do not: onnxruntime's kernels round their activations in bodies as well.
    """
    return any(is_quantized(inner) and inner.op_type not in _PACKED for inner in nodes_inside(node))


def bodies_of(node: Node, place: str, normal: Callable[[Graph], Graph]) -> tuple[Body, ...]:
    """Returns the bodies of a node that can be read as graphs of tensors; nothing for others.

    Args:
        node: Any node.
        place: What to call it, unlike any other node with bodies.
        normal: Makes the canonical form of a graph.
    """
    if not is_control(node):
        return ()
    found: list[Body] = []
    for attribute in sorted(node.record(OpaqueAttrs).node.proto().attribute, key=_attribute_name):
        if attribute.type == onnx.AttributeProto.GRAPH:
            inside = f"{place}/{attribute.name}/"
            try:
                found.append(_read_body_to_fixpoint(node, attribute.name, inside, normal))
            except (ScalesError, UnusableScaleError):  # nobody could compute it
                raise
            except QdqBridgeError:  # a body that cannot be read by itself is kept as it is
                continue
    return tuple(found)


def verify_bodies(graph: Graph) -> None:
    """Checks the scales in the bodies of a graph that quantize, also those inside bodies.

    Raises:
        ScalesError: Some do not fit the shape of their tensor.
        UnusableScaleError: Some stand for no usable real numbers.
    """
    for node, place in _places(graph).items():
        if quantizes_inside(node.record(OpaqueAttrs).node.proto()):
            for body in bodies_of(node, place, lambda read: read):  # no rule is needed for that
                verify_bodies(body.graph)


def bodies_in(graph: Graph) -> dict[Node, tuple[Body, ...]]:
    """Returns the bodies of the nodes of a graph that can be looked at, not those inside them."""
    found: dict[Node, tuple[Body, ...]] = {}
    for node, place in _places(graph).items():
        inside = bodies_of(node, place, canonicalize)
        if inside:
            found[node] = inside
    return found


def _places(graph: Graph) -> dict[Node, str]:
    """Returns what to call the nodes with bodies: their names, and their results' where needed."""
    nodes = [node for node in graph.nodes if is_control(node)]
    names = [node.name for node in nodes]
    own = graph.name if graph.name.endswith("/") else ""
    return {
        node: own + (node.name if names.count(node.name) == 1 else node.output.name)
        for node in nodes
    }


def parts(graph: Graph) -> Iterator[Body]:
    """Yields all bodies in a graph, those inside bodies too."""
    for inside in bodies_in(graph).values():
        for body in inside:
            yield body
            yield from parts(body.graph)


def _attribute_name(attribute: onnx.AttributeProto) -> str:
    return attribute.name


def _read_body_to_fixpoint(
    node: Node, attribute: str, place: str, normal: Callable[[Graph], Graph]
) -> Body:
    types = first_types(node, attribute)
    for _ in range(PASSES):
        # A carried extent that changes gets a name, which may open extents of other carried values.
        body = read_body(node, attribute, types, place, normal)
        if not (wider := _wider(node, types, body.graph)):
            return body
        types = [wider.get(index, type_) for index, type_ in enumerate(types)]
    raise _no_graph(node, "what it carries has other extents in every step")


def _no_graph(node: Node, why: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"the body of {node.op.name} is not a graph of tensors",
        where=f"node '{node.name}'",
        why=why,
        fix="run the model with the interpreter or onnxruntime",
    )


def first_types(node: Node, attribute: str) -> list[TensorType]:
    """Returns the types of a body's own inputs: those that the node's operands have at first.

    Args:
        node: An If, Loop or Scan.
        attribute: Which body.

    Raises:
        UnsupportedTargetError: It takes what is not a tensor.
    """
    record = node.record(OpaqueAttrs)
    if record.op_type == "If":
        return []
    operands = node.inputs[: len(node.inputs) - len(record.captures)]
    if record.op_type == "Loop":
        declared = next(a.g for a in record.node.proto().attribute if a.name == attribute).input
        scalars = [_declared(value) for value in declared[:2]]
        return _require_tensor_types(
            node, [*scalars, *(None if v is None else v.type for v in operands[2:])]
        )
    count = record.node.integers()["num_scan_inputs"]
    axes = record.node.listed("scan_input_axes") or [0] * count
    types = [None if v is None else v.type for v in operands]
    scanned = _require_tensor_types(node, types[len(types) - count :])
    states = _require_tensor_types(node, types[: len(types) - count])
    return [*states, *(_slice(t, axis) for t, axis in zip(scanned, axes, strict=True))]


def _declared(value: ValueInfoProto) -> TensorType:
    """Returns the type of a Loop's counter or condition: a number, or a vector of one."""
    from qdqbridge.onnx_io.tensors import dtype_of

    tensor = value.type.tensor_type
    return TensorType(dtype_of(tensor.elem_type, value.name), (1,) * len(tensor.shape.dim))


def _require_tensor_types(node: Node, types: Sequence[object]) -> list[TensorType]:
    tensors = (each for each in types if not isinstance(each, NestedType))
    found = [each for each in tensors if isinstance(each, TensorType)]
    if len(found) < len(types):
        raise _no_graph(node, "it takes a sequence or an optional")
    return found


def _slice(type_: TensorType, axis: int) -> TensorType:
    if type_.shape is None:
        return type_
    axis %= len(type_.shape)
    return type_.with_shape(type_.shape[:axis] + type_.shape[axis + 1 :])


def _wider(node: Node, types: Sequence[TensorType], graph: Graph) -> dict[int, TensorType]:
    """Returns types of carried values that hold for what the body gives as well."""
    op_type = node.record(OpaqueAttrs).op_type
    if op_type == "If":
        return {}
    first, given = (2, graph.outputs[1:]) if op_type == "Loop" else (0, graph.outputs)
    count = len(types) - first
    if op_type == "Scan":
        count = len(types) - node.record(OpaqueAttrs).node.integers()["num_scan_inputs"]
    found: dict[int, TensorType] = {}
    for index, value in zip(range(first, first + count), given, strict=False):
        own = types[index]
        shape = _common(own.shape, value.type.shape, index)
        if shape != own.shape:
            found[index] = own.with_shape(shape)
    return found


def _common(own: Shape, other: Shape, index: int) -> Shape:
    """Returns a shape that both have; extents that differ get a name."""
    if own is None or other is None or len(own) != len(other):
        return None
    pairs = enumerate(zip(own, other, strict=True))
    return tuple(a if a == b or _open(a) else f"carried_{index}_{axis}" for axis, (a, b) in pairs)


def _open(dim: Dim) -> bool:
    return isinstance(dim, str) and dim.startswith("carried_")


def read_body(
    node: Node,
    attribute: str,
    types: Sequence[TensorType],
    place: str,
    normal: Callable[[Graph], Graph],
) -> Body:
    """Returns a body whose own inputs have these types.

    Args:
        node: An If, Loop or Scan.
        attribute: Which body.
        types: Those of :func:`first_types`, or wider ones.
        place: With what the names of its values begin.
        normal: Makes the canonical form of a graph.

    Raises:
        QdqBridgeError: It cannot be read, or takes or gives what is not a tensor.
    """
    record = node.record(OpaqueAttrs)
    proto, own = _as_in_file(record), len(node.inputs) - len(record.captures)
    body = next(a.g for a in proto.attribute if a.name == attribute)
    # Bodies may use one name for several things; here it is one thing in the whole graph.
    names = {name: place + name for name in _defined(body)}
    operands = dict(zip(record.captures, range(own, len(node.inputs)), strict=True))
    read = [name for name in _captured(body) if name in operands]
    taken = set(names.values())
    for name in read:
        names[name] = _free(place + node.operand(operands[name]).name, taken)
        taken.add(names[name])
    rename_inside(body, names)
    graph = GraphProto(name=place, node=body.node, output=body.output)
    for value, type_ in zip(body.input, types, strict=True):
        graph.input.append(_info(value.name, type_))
    captured: list[int] = []
    graph.initializer.extend(body.initializer)
    for name in read:
        outer = node.operand(operands[name])
        # Weights outside of a body are constants inside it, so that it is quantized like any graph.
        if outer.constant is not None:
            graph.initializer.append(proto_from_constant(names[name], outer.constant))
        elif isinstance(outer.type, TensorType):
            graph.input.append(_info(names[name], outer.type))
            captured.append(operands[name])
        else:
            raise _no_graph(node, f"it reads '{outer.name}', which is {outer.type}")
    found = normal(read_proto(_model(record, proto, graph), Path(place), normal))
    verify(found, place)
    if any(isinstance(v.type, NestedType) for v in (*found.inputs, *found.outputs)):
        raise _no_graph(node, "it gives a sequence or an optional")
    return Body(attribute, place, _placed(found, place), len(types), tuple(captured))


def _placed(graph: Graph, place: str) -> Graph:
    """Gives every computed value a name that begins with the place."""
    for node in graph.nodes:
        for value in node.outputs:
            if not value.name.startswith(place):
                value.name = place + (value.name or node.op.name.lower())
    return name_values(graph)


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _captured(body: GraphProto) -> list[str]:
    holder = NodeProto(op_type="If")
    holder.attribute.append(helper.make_attribute("body", body))
    return captured_names(holder)


def _defined(body: GraphProto) -> list[str]:
    found = [v.name for v in (*body.input, *body.initializer)]
    return found + [name for node in body.node for name in node.output if name]


def _info(name: str, type_: TensorType) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype_to_onnx(type_.dtype), type_.shape)


def _model(record: OpaqueAttrs, node: NodeProto, graph: GraphProto) -> ModelProto:
    domains = {inner.domain for inner in nodes_inside(node)} - set(ONNX_DOMAINS)
    imports = [helper.make_opsetid("", record.version)]
    imports += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _as_in_file(record: OpaqueAttrs) -> NodeProto:
    """Returns the node with the names that its file has, inside, where they name one thing."""
    node, found = record.node.named(), record.node.names.tensors
    count = {name: found.count(name) for name in set(found)}
    names = {
        f"t_{number}": name
        for number, name in enumerate(found)
        if name and count[name] == 1 and not name.startswith(_RESERVED)
    }
    for attribute in node.attribute:
        for body in bodies(attribute):
            rename_inside(body, names)
    return node


# ---- back into the node


def _for_onnxruntime(graph: Graph, opset: int) -> ModelProto:
    return to_proto(graph, opset=opset)


def with_bodies(
    node: Node, changed: Mapping[Body, Graph], written: Written = _for_onnxruntime
) -> tuple[OpaqueAttrs, list[Value | None]]:
    """Returns attributes and operands of a node with other bodies.

    Args:
        node: The node; it is not changed.
        changed: What its bodies compute now, of the same inputs and outputs.
        written: Returns the model of a body in an opset.

    Raises:
        UnsupportedTargetError: No opset can express them all.
    """
    record = node.record(OpaqueAttrs)
    own = len(node.inputs) - len(record.captures)
    opset, protos = _all_written(record, own, changed, written)
    proto = _as_in_file(record)
    for attribute in proto.attribute:
        for body in bodies(attribute):
            if attribute.name not in protos:
                _move(body, record.version, opset)
        if attribute.name in protos:
            attribute.g.CopyFrom(protos[attribute.name])
    proto = with_plain_bodies(proto, f"node '{node.name}'")  # as it is once a file has it
    operands = dict(zip(record.captures, node.inputs[own:], strict=True))
    captured = [operands[name] for name in captured_names(proto)]
    held = [value for value in captured if value is not None]
    attributes = opaque_attributes(proto, opset, node.inputs[:own], held)
    return attributes, [*node.inputs[:own], *captured]


def replace_bodies(node: Node, attributes: OpaqueAttrs, operands: Sequence[Value | None]) -> None:
    """Gives a linked node of a graph other bodies, and what they capture."""
    unlink(node)
    node.attributes, node.inputs = attributes, list(operands)
    link(node)


def _all_written(
    record: OpaqueAttrs, own: int, changed: Mapping[Body, Graph], written: Written
) -> tuple[int, dict[str, GraphProto]]:
    """Returns an opset that all bodies can be written in, and those that are new."""
    kept = {body.attribute for body in changed}
    rest = NodeProto(attribute=[a for a in record.node.proto().attribute if a.name not in kept])
    others = [inner for inner in nodes_inside(rest) if inner.domain in ONNX_DOMAINS]
    failed: UnsupportedTargetError | None = None
    for opset in range(max(record.version, _OLDEST_WRITTEN), onnx.defs.onnx_opset_version() + 1):
        if not can_be_moved(record.op_type, record.version, opset):
            continue
        if not all(can_be_moved(inner.op_type, record.version, opset) for inner in others):
            continue
        try:
            return opset, {
                body.attribute: _proto(record, own, body, graph, written, opset)
                for body, graph in changed.items()
            }
        except UnsupportedTargetError as error:
            failed = error
    raise failed or UnsupportedTargetError(
        f"no opset can express the bodies of {record.op_type}", fix="leave its bodies float"
    )


def _proto(
    record: OpaqueAttrs, own: int, body: Body, graph: Graph, written: Written, opset: int
) -> GraphProto:
    graph = copied(graph).graph
    for value in {*graph.values(), *graph.inputs}:
        value.name = value.name.removeprefix(body.place)
    for index, value in enumerate(graph.inputs[: body.own]):
        value.name = f"own_{index}"
    for value, operand in zip(graph.inputs[body.own :], body.captured, strict=True):
        value.name = record.captures[operand - own]
    graph.output_names = [f"result_{index}" for index in range(len(graph.outputs))]
    found = written(graph, opset).graph
    del found.input[body.own :]
    return found


def _move(body: GraphProto, version: int, opset: int) -> None:
    holder = NodeProto(op_type="If")
    holder.attribute.append(helper.make_attribute("then_branch", body))
    moved(holder, version, opset, str)
    body.CopyFrom(holder.attribute[0].g)
