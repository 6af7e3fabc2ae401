"""How one ONNX form of an operator becomes a row of the operator table, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnx.defs
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import NestedType, QuantType, ValueType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.tensors import onnx_name

Operands: TypeAlias = "Sequence[Value | None]"
OLDEST = 13
"""The oldest opset that nodes are written for (the first one with per-axis quantization)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A node in the terms of the operator table.

    Attributes:
        op_name: The row.
        attributes: The row's attribute record.
        operands: The operands that stay operands; left-out ones at the end are dropped.
    """

    op_name: str
    attributes: Attributes
    operands: list[Value | None]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A node in ONNX's terms.

    Attributes:
        op_type: ONNX's name.
        domain: Its domain; empty for ONNX itself.
        attributes: By their names.
        inputs: Operands, None where left out; an array becomes an initializer.
        results: The places of the results among ONNX's; empty where none is left out.
        least: How many results it has though nobody reads the last of them.
    """

    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: list[Value | NDArray[Any] | None]
    results: Sequence[int] = ()
    least: int = 0


Decode: TypeAlias = "Callable[[NodeView], Decoded]"
"""Raises NoRow where the form has no row."""

Encode: TypeAlias = "Callable[[Any, Operands, int], Encoded]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One ONNX operator, in all its opset versions.

    Attributes:
        onnx_name: ONNX's name.
        domain: The domain; empty for ONNX itself.
        row: The row of the operator table that it belongs to.
        read: Node to row; raises :class:`~qdqbridge.onnx_io.codecs.view.NoRow`.
        write: Row to node at an opset; None for forms that are only read.
        introduced: The opset that a plain use of the operator needs.
        needs: The opset that these attributes need on top of that.
        known: Attribute names, for domains that have no schema in the onnx package.
    """

    onnx_name: str
    domain: str = ""
    row: str
    read: Decode
    write: Encode | None = None
    introduced: int = OLDEST
    needs: Callable[[Any], int] = field(default=lambda attributes: OLDEST)
    known: tuple[str, ...] = ()

    def since(self, attributes: Attributes) -> int:
        """Returns the lowest opset (13 or more) in which these attributes can be written."""
        return max(self.introduced, self.needs(attributes), OLDEST)


def decoded(row: str, attributes: Attributes, operands: Operands) -> Decoded:
    """Returns a :class:`Decoded` without left-out operands at its end."""
    kept = list(operands)
    while kept and kept[-1] is None:
        kept.pop()
    return Decoded(row, attributes, kept)


def encoded(
    op_type: str, inputs: Sequence[Value | NDArray[Any] | None], **attributes: Any
) -> Encoded:
    """Returns an :class:`Encoded` of ONNX's own domain without left-out inputs at its end."""
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return Encoded(op_type, "", attributes, kept)


def int64(numbers: Sequence[int]) -> NDArray[np.int64]:
    """Returns a rank-1 int64 array, the form of axes, shapes, pads and repeats.

    Raises:
        UnsupportedTargetError: A number is beyond int64: a product of extents, say.
    """
    try:
        return np.array(numbers, np.int64)
    except OverflowError as error:
        raise UnsupportedTargetError(
            "ONNX cannot hold an extent",
            why=f"{max(numbers, key=abs)} is beyond int64",
            fix="correct the extents of the model's inputs",
        ) from error


def real_dtype(value: Value | None) -> DType:
    """Returns the element type that a value has outside quantization; float32 if unknown."""
    if value is None:
        return DType.FLOAT32
    if isinstance(value.type, QuantType):
        return value.type.params.expressed_dtype
    return value.type.dtype


# ---- What a node must look like by ONNX's own schema, before a codec reads it --------------------


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
