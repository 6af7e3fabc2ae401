"""The opset that an opaque node is said to be of: the oldest that means the same.

So the opset of its file leaves no trace in a digest, also where the file is saved with another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.defs import OpSchema

from qdqbridge.core.graph.graph import Value
from qdqbridge.onnx_io.codecs.codec import oldest_alike, schema_of, schema_type
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies, nodes_inside
from qdqbridge.onnx_io.inference.node_types import DOMAINS as RUNTIME_DOMAINS
from qdqbridge.onnx_io.reading.operators_known import (
    AXES_OPERAND,
    REDUCTIONS,
    carries_over,
    with_axes_attribute,
)
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, captured_names, plain_domain
from qdqbridge.onnx_io.tensors import onnx_name

NAMING = ("to", "dtype", "output_dtype", "stash_type")
"""Attributes that are an element type."""

_NAMED_ALIKE = 21
"""The opset whose operators give the element types that onnxruntime's of the same name give."""

_VARIADIC = OpSchema.FormalParameterOption.Variadic


class ElementTypes:
    """Types as ONNX's schemas write them: ``tensor(float)``.

    Args:
        node: A node that gives every tensor, those of its bodies too, a name of its own.
        opset: ONNX's, which it is written in.
        outer: The types of what it and its bodies read from outside, by name.
    """

    def __init__(self, node: NodeProto, opset: int, outer: Mapping[str, str]) -> None:
        self._opset = opset
        self._known = dict(outer)
        self._enter(node)
        self._known |= self._results(node)

    def of(self, name: str) -> tuple[str, ...]:
        """Returns the type of a tensor, nothing where it is not known."""
        return (self._known[name],) if name in self._known else ()

    def _enter(self, node: NodeProto) -> None:
        for attribute in node.attribute:
            for body in bodies(attribute):
                self._known |= {
                    name: _tensor(code) for name, code in _declared_in_bodies(body) if code
                }
                for inner in body.node:
                    self._enter(inner)
                    self._known |= self._results(inner)

    def _results(self, node: NodeProto) -> dict[str, str]:
        own = node.domain in ONNX_DOMAINS
        schema = schema_of(node.op_type, "", self._opset if own else _NAMED_ALIKE)
        if schema is None:
            return {}
        bound: dict[str, str] = {}
        for name, formal in zip(node.input, along(schema.inputs, len(node.input)), strict=False):
            if name in self._known and formal.is_homogeneous:
                bound[formal.type_str] = self._known[name]
        named = [_tensor(code) for code in named_types(node)]
        found: dict[str, str] = {}
        for name, formal in zip(node.output, along(schema.outputs, len(node.output)), strict=False):
            types = sorted(formal.types)
            if not formal.is_homogeneous:
                continue
            if formal.type_str in bound:
                found[name] = bound[formal.type_str]
            elif len(types) == 1:
                found[name] = types[0]
            # An attribute like Cast's ``to`` names the result's type, if it is the only one that
            # names any.
            elif len(named) == 1 and named[0] in types:
                found[name] = named[0]
        return found


def along(formals: Sequence[Any], count: int) -> list[Any]:
    """Returns the formal parameter of each of so many operands or results."""
    last = [formals[-1]] if formals and formals[-1].option == _VARIADIC else []
    return [*formals, *last * max(count - len(formals), 0)][:count]


def named_types(node: NodeProto) -> Iterator[int]:
    """Yields the element types that a node's own attributes name, as ONNX's numbers."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in NAMING:
            yield attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.t.data_type
        elif attribute.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
            yield attribute.sparse_tensor.values.data_type


def _declared_in_bodies(body: GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*body.input, *body.value_info):
        yield value.name, value.type.tensor_type.elem_type
    for tensor in body.initializer:
        yield tensor.name, tensor.data_type
    for sparse in body.sparse_initializer:
        yield sparse.values.name, sparse.values.data_type


def _tensor(code: int) -> str:
    return f"tensor({TensorProto.DataType.Name(code).lower()})"


_OLDEST = 7
"""The oldest opset that onnxruntime promises to run."""

_OLDEST_OF_BODIES = 13
"""The oldest that nodes with bodies are written in."""

_MADE = frozenset(("tensor", "float", "int64", "bool"))
"""Tensors, and the element types that operators make whatever they read."""

_MAKING_BYTES = frozenset(("DynamicQuantizeLinear", "ImageDecoder", "QuantizeLinear"))
"""Operators that make uint8."""

_WORD = re.compile(r"\w+")


def oldest_version(
    node: NodeProto,
    opset: int,
    operands: Sequence[Value | None] = (),
    captured: Mapping[str, Value] | None = None,
) -> int:
    """Returns the oldest opset in which a node means what it means in that of its file.

    Args:
        node: The node; its bodies give every tensor a name of its own.
        opset: That of its domain in the file.
        operands: What it reads, where known: older versions may not take these element types.
        captured: What its bodies read from outside, by name, where known. Nodes with bodies keep
            the opset of the file where one of the two is not.
    """
    has_bodies = any(bodies(attribute) for attribute in node.attribute)
    known = len(operands) == len(node.input)
    if has_bodies and (captured is None or not known):
        return opset
    if known and node.domain in ONNX_DOMAINS:
        read = {**dict(zip(node.input, operands, strict=True)), **(captured or {})}
        return _of_parts(node, opset, read, _OLDEST_OF_BODIES if has_bodies else _OLDEST)
    versions = oldest_alike(node.op_type, node.domain, opset)
    if not versions:
        return opset
    chosen = next((s for s in versions if _takes(s, operands)), versions[-1])
    return min(opset, max(int(chosen.since_version), 1 if node.domain else _OLDEST))


def _takes(schema: Any, operands: Sequence[Value | None]) -> bool:
    """True where an operator takes the element types of these operands."""
    formals = list(schema.inputs)
    for index, value in enumerate(operands):
        if value is None or not formals:
            continue
        types = formals[min(index, len(formals) - 1)].types
        if schema_type(value.type) not in types:
            return False
    return True


def _of_parts(node: NodeProto, opset: int, outer: Mapping[str, Value | None], oldest: int) -> int:
    """Returns the oldest opset, from ``oldest`` on, for a node and all that is in its bodies.

    Of two versions that differ in element types, the older one does where it takes those that are
    there. Where these do not follow, no tensor inside has another one than what goes in, what a
    constant or an attribute says, and what operators make whatever they read. Nodes of
    onnxruntime's are the same at every opset of ONNX's.
    """
    read = {name: value for name, value in outer.items() if value is not None}
    nodes = (node, *nodes_inside(node))
    inside = [each for each in nodes if each.domain in ONNX_DOMAINS]
    if any(each.domain not in (*ONNX_DOMAINS, *RUNTIME_DOMAINS) for each in nodes):
        return opset
    if opset < oldest and all(carries_over(each.op_type, opset, oldest) for each in inside):
        opset = oldest
    used = {*_MADE, *(onnx_name(value.type.dtype) for value in read.values())}
    used |= {TensorProto.DataType.Name(code).lower() for code in _said(node)}
    used |= {"uint8"} if any(each.op_type in _MAKING_BYTES for each in nodes) else set[str]()
    used |= set(_nestings(nodes, read.values()))
    types = ElementTypes(node, opset, {name: schema_type(v.type) for name, v in read.items()})
    found = min(opset, oldest)
    for each in inside:
        newest = schema_of(each.op_type, "", opset)
        if newest is None:
            return opset
        found = max(found, _oldest_taking(each, newest, types, used))
    return found


def _oldest_taking(node: NodeProto, newest: Any, types: ElementTypes, used: Set[str]) -> int:
    """Returns the oldest version of an operator that means the same of a node as its newest one."""
    oldest = newest
    while (older := schema_of(node.op_type, "", oldest.since_version - 1)) is not None:
        if older.since_version >= oldest.since_version or not (
            carries_over(node.op_type, older.since_version, newest.since_version)
            and set(older.attributes).issuperset(each.name for each in node.attribute)
            and len(node.input) <= older.max_input
            and len(node.output) <= older.max_output
            and _takes_as_many(node, older, newest, types, used)
        ):
            break
        oldest = older
    return int(oldest.since_version)


def with_older_reductions(
    node: NodeProto, opset: int, operands: Sequence[Value | None], captured: Mapping[str, Value]
) -> NodeProto | None:
    """Returns a node whose bodies reduce by axes that are attributes, as before opset 18.

    None where something inside needs that opset, or would of what is not known.

    Args:
        node: A node of ONNX's with bodies in their one form.
        opset: ONNX's opset in its file.
        operands: What it reads.
        captured: What its bodies read from outside, by name.
    """
    inside = [each for each in nodes_inside(node) if each.domain not in RUNTIME_DOMAINS]
    reducing = [each for each in inside if each.op_type in REDUCTIONS]
    if opset < AXES_OPERAND or not reducing:
        return None
    read = {**dict(zip(node.input, operands, strict=False)), **captured}
    types = ElementTypes(node, opset, {n: schema_type(v.type) for n, v in read.items() if v})
    for each in (node, *inside):
        older = schema_of(each.op_type, "", AXES_OPERAND - 1)
        again = each.op_type in REDUCTIONS or carries_over(each.op_type, AXES_OPERAND - 1, opset)
        if each.domain not in ONNX_DOMAINS or older is None or not again:
            return None
        formals = along(older.inputs, len(each.input))
        if each is not node and not all(
            (found := types.of(name)) and found[0] in formal.types
            for name, formal in zip(each.input, formals, strict=False)
            if name
        ):
            return None
    found = NodeProto()
    found.CopyFrom(node)
    leave_out_defaults(found, opset)  # of attributes that older versions do not have
    holders = [body for a in found.attribute for body in bodies(a)]
    while holders:
        body = holders.pop()
        holders += [inner for each in body.node for a in each.attribute for inner in bodies(a)]
        tensors = {tensor.name: tensor for tensor in body.initializer}
        for each in body.node:
            if each.domain not in ONNX_DOMAINS or each.op_type not in REDUCTIONS:
                continue
            name = each.input[1] if len(each.input) > 1 else ""
            outside = read.get(name)
            held = None if outside is None else outside.constant
            if name and name not in tensors and held is None:
                return None
            axes = numpy_helper.to_array(tensors[name]) if name in tensors else None
            axes = held.numpy() if held is not None else axes
            reduced = with_axes_attribute(each, axes)
            if reduced is None:
                return None
            each.CopyFrom(reduced)
        read_in = {value.name for value in body.output}
        read_in |= {name for each in body.node for name in (*each.input, *captured_names(each))}
        for index in reversed(range(len(body.initializer))):
            if body.initializer[index].name not in read_in:
                del body.initializer[index]
    return found


def _nestings(nodes: Iterable[NodeProto], read: Iterable[Value]) -> Iterator[str]:
    """Yields which of sequences and optionals there may be, as types name them."""
    written = " ".join(schema_type(value.type) for value in read)
    for name, word in (("seq", "Sequence"), ("optional", "Optional")):
        if f"{name}(" in written or any(word in node.op_type for node in nodes):
            yield name


def _takes_as_many(
    node: NodeProto, older: Any, newer: Any, types: ElementTypes, used: Set[str]
) -> bool:
    """True where an operator takes and gives the element types in use as its later version does."""
    for names, before, after in (
        (node.input, older.inputs, newer.inputs),
        (node.output, older.outputs, newer.outputs),
    ):
        rows = zip(names, along(before, len(names)), along(after, len(names)), strict=False)
        for name, old, new in rows:
            possible = types.of(name) or (t for t in new.types if used >= set(_words(t)))
            if name and not set(possible).issubset(old.types):
                return False
    return True


def _words(type_: str) -> list[str]:
    return _WORD.findall(type_)


def _said(node: NodeProto) -> Iterator[int]:
    """Yields the element types that a node and its bodies name."""
    yield from named_types(node)
    for attribute in node.attribute:
        for body in bodies(attribute):
            yield from _declared(body)
            for inner in body.node:
                yield from _said(inner)


def _declared(body: GraphProto) -> Iterator[int]:
    for value in (*body.input, *body.output, *body.value_info):
        yield value.type.tensor_type.elem_type
    for tensor in body.initializer:
        yield tensor.data_type
    for sparse in body.sparse_initializer:
        yield sparse.values.data_type


# ---- What an opaque node states though ONNX says that it holds anyway: it is left out
#
# Runtimes and optimizers that save a file write every attribute; exporters write some.

_ALL_ONE = frozenset(("dilations", "strides"))
_ALL_ZERO = frozenset(("pads", "output_padding"))
_POOLS = frozenset(("LpPool", "MaxPool", "AveragePool"))
_WINDOWED = _POOLS | {"Conv", "ConvInteger", "ConvTranspose", "MaxUnpool"}
_ACTIVATIONS = {
    "GRU": [b"Sigmoid", b"Tanh"], "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "RNN": [b"Tanh"],
}  # fmt: skip


_OF_FIRST_OPERAND = frozenset(
    (
        "ArgMax", "ArgMin", "CenterCropPad", "Compress", "GatherElements", "Hardmax",
        "LpNormalization", "OneHot", "Scatter", "ScatterElements", "Split", "SplitToSequence",
        "TopK", "Unique",
    )
)  # fmt: skip
"""Operators whose axes are those of their first operand; so are those of all reductions."""


def count_axes_from_front(node: NodeProto, opset: int, rank: int) -> None:
    """Gives axes of a node their numbers from the front; a default stays what it is.

    Args:
        node: The node; it is changed.
        opset: The version of its domain.
        rank: That of its first operand.
    """
    reduces = node.op_type.startswith("Reduce")
    known = reduces or node.op_type in _OF_FIRST_OPERAND
    if node.domain or not rank or not known:
        return
    rank += node.op_type == "OneHot"  # its axis is one of the result
    schema = schema_of(node.op_type, "", opset)
    own = range(-rank, rank)
    for attribute in node.attribute:
        if attribute.name == "axis" and attribute.i in own:
            said = None if schema is None else schema.attributes.get("axis")
            default = said.default_value if said is not None else AttributeProto()
            stated = default.type == AttributeProto.INT and (default.i - attribute.i) % rank == 0
            attribute.i = default.i if stated else attribute.i % rank
        elif attribute.name == "axes" and all(axis in own for axis in attribute.ints):
            axes = [axis % rank for axis in attribute.ints]
            attribute.ints[:] = sorted(axes) if reduces else axes


def leave_out_defaults(node: NodeProto, opset: int) -> None:
    """Takes out of a node, and of those in its bodies, what it says without saying it.

    Args:
        node: The node; it is changed.
        opset: The version of its domain.
    """
    schema = schema_of(node.op_type, plain_domain(node.domain), opset)
    defaults = {} if schema is None else schema.attributes
    kept: list[AttributeProto] = []
    for attribute in node.attribute:
        known = defaults.get(attribute.name)
        if known is not None and (_is_default(attribute, known) or _is_implied(node, attribute)):
            continue
        for body in bodies(attribute):
            for inner in body.node:
                # no other domain says its version in a body, and defaults may differ
                leave_out_defaults(inner, 0 if inner.domain or node.domain else opset)
        kept.append(attribute)
    if len(kept) < len(node.attribute):
        kept = [AttributeProto.FromString(each.SerializeToString()) for each in kept]
        del node.attribute[:]
        node.attribute.extend(kept)


def _is_default(attribute: AttributeProto, known: Any) -> bool:
    """True where an attribute has the value that its schema gives it, bit for bit."""
    default = known.default_value
    if default.type != attribute.type or attribute.ref_attr_name:
        return False
    if attribute.type == AttributeProto.INT:
        return bool(default.i == attribute.i)
    if attribute.type == AttributeProto.FLOAT:
        return bool(default.f == attribute.f)
    return attribute.type == AttributeProto.STRING and bool(default.s == attribute.s)


def _is_implied(node: NodeProto, attribute: AttributeProto) -> bool:
    """True for what ONNX assumes in words: a window's steps, a recurrent layer's activations."""
    if node.op_type in _WINDOWED and attribute.name in _ALL_ONE | _ALL_ZERO:
        return set(attribute.ints) <= {int(attribute.name in _ALL_ONE)}
    activations = _ACTIVATIONS.get(node.op_type)
    if activations is None or attribute.name != "activations":
        return False
    named = [name.lower() for name in attribute.strings]
    return named in ([a.lower() for a in activations], [a.lower() for a in activations * 2])
