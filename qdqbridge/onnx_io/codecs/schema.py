"""What a node must look like by ONNX's own schema, before a codec reads it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx.defs

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import NestedType, ValueType
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.tensors import onnx_name


@lru_cache(maxsize=1024)
def schema_of(op_type: str, domain: str, opset: int) -> Any:
    """Returns the onnx package's schema in force at an opset; None where there is none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: the name is not UTF-8
        return None


@lru_cache(maxsize=1024)
def oldest_alike(op_type: str, domain: str, opset: int) -> tuple[Any, ...]:
    """Returns the versions of an operator that mean what it means at an opset, the oldest first.

    They differ in the element types that they take. Empty where the onnx package has no schema.
    """
    found = [schema_of(op_type, domain, opset)]
    if found[0] is None:
        return ()
    while (older := schema_of(op_type, domain, found[0].since_version - 1)) is not None:
        if older.since_version >= found[0].since_version or not widened(older, found[0]):
            break
        found.insert(0, older)
    return tuple(found)


_CHANGED = {
    ("GroupNormalization", 21), ("Max", 8), ("Mean", 8), ("Min", 8), ("Mod", 28), ("RoiAlign", 16),
    ("Split", 18), ("Sum", 8),
}  # fmt: skip
"""Versions that changed a meaning which their signature does not show: scale and bias per channel,
not per group; operands are broadcast; floats without fmod; half a pixel by default; the number of
parts has to be said."""


def changed(older: Any, newer: Any) -> bool:
    """True where a version between two of an operator changed what its signature does not show."""
    versions = (version for name, version in _CHANGED if name == older.name)
    return any(older.since_version < version <= newer.since_version for version in versions)


def widened(older: Any, newer: Any) -> bool:
    """True where a later version of an operator differs in more element types only."""

    def signature(schema: Any) -> Any:
        operands = [(o.name, str(o.option)) for o in (*schema.inputs, *schema.outputs)]
        attributes = {
            name: (str(a.type), a.required, a.default_value.SerializeToString())
            for name, a in schema.attributes.items()
        }
        return operands, attributes

    if changed(older, newer) or signature(older) != signature(newer):
        return False
    allowed = [[set(o.types) for o in (*s.inputs, *s.outputs)] for s in (older, newer)]
    return all(a <= b for a, b in zip(*allowed, strict=True))


def check(node: NodeView, known: tuple[str, ...]) -> None:
    """Checks attribute names, and that a string tensor goes where the operator takes one.

    How many operands there are, and which attributes of which type, is checked of a whole file
    before (:func:`qdqbridge.onnx_io.reading.operators_known.check_known`).

    Args:
        node: The node.
        known: Its attribute names, where the onnx package has no schema for its domain.

    Raises:
        InvalidModelError: The node breaks its operator's schema.
    """
    schema = schema_of(node.op_type, node.domain, node.opset)
    _check_names(node, known if schema is None else schema.attributes)
    if schema is None:
        return
    for index, value in enumerate(node.operands):
        if value is None or value.type.dtype is not DType.STRING:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if "tensor(string)" not in formal.types:
            raise node.fault(
                f"input {index} ({formal.name}) is a string tensor",
                why=f"{node.op_type} takes numbers",
            )


def narrowed(node: NodeView, opset: int) -> bool:
    """True where an operator takes the type of a node's first operand, and a later opset not."""
    own, later = schema_of(node.op_type, "", node.opset), schema_of(node.op_type, "", opset)
    first = node.operands[0] if node.operands else None
    if first is None or own is None or later is None or not (own.inputs and later.inputs):
        return False
    return schema_type(first.type) in own.inputs[0].types - later.inputs[0].types


def _check_names(node: NodeView, known: Any) -> None:
    unknown = [name for name in node.attribute_names if name not in known]
    if unknown:
        raise node.fault(
            f"attribute '{unknown[0]}' is not one of {node.op_type}'s",
            why=f"in opset {node.opset} it takes: {', '.join(sorted(known)) or 'none'}",
            fix="declare the opset that the exporter used",
        )


def schema_type(type_: ValueType) -> str:
    """Returns a type as ONNX's schemas write it: ``seq(tensor(float))``."""
    text = f"tensor({onnx_name(type_.dtype)})"
    if isinstance(type_, NestedType):
        for layer in reversed(type_.layers):
            text = f"{'seq' if layer == 'sequence' else layer}({text})"
    return text


def check_nested(node: NodeView) -> None:
    """Checks that sequences and optionals go where the operator takes them.

    Raises:
        InvalidModelError: One stands where a tensor belongs.
    """
    nested = [i for i, v in enumerate(node.operands) if v and isinstance(v.type, NestedType)]
    schema = schema_of(node.op_type, node.domain, node.opset) if nested else None
    if schema is None:
        return
    for index in nested:
        formal, type_ = schema.inputs[min(index, len(schema.inputs) - 1)], node.operand(index).type
        if schema_type(type_) not in formal.types:
            raise node.fault(
                f"input {index} ({formal.name}) is not a tensor",
                why=f"it is {type_}, and {node.op_type} does not take that",
            )
