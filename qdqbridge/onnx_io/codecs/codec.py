"""How one ONNX form of an operator becomes a row of the operator table, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import QuantType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs.view import NodeView

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
