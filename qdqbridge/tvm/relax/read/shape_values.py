"""Shapes as values: extents that a function computes with become vectors of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import AxisAttrs, ShapeAttrs
from qdqbridge.tvm.qnn.read import Reading
from qdqbridge.tvm.relax.read.plain import plain

_VECTOR = TensorType(DType.INT64, (1,))
_ARITHMETIC = ((tirx.Add, "Add"), (tirx.Sub, "Sub"), (tirx.Mul, "Mul"), (tirx.FloorDiv, "Div"))


class Extents:
    """Knows which tensor has which symbolic extent.

    Args:
        reading: The graph so far.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.sources: dict[Any, tuple[Value, int]] = {}

    def note(self, value: Value, type_: Any) -> None:
        """Enters the extents of a tensor that are variables."""
        extents: list[Any] = list(getattr(type_.shape, "values", None) or ())
        for axis, extent in enumerate(extents):
            if isinstance(extent, tirx.Var):
                self.sources.setdefault(extent, (value, axis))

    def vector(self, extents: Sequence[Any]) -> Value:
        """Returns extents as an int64 vector: a constant where all are numbers.

        Raises:
            UnsupportedModelError: An extent belongs to no tensor that is known.
        """
        known = [plain(extent) for extent in extents]
        if all(isinstance(extent, int) for extent in known):
            return self.reading.constant(np.asarray(known, np.int64))
        parts = [self._one(extent) for extent in extents]
        type_ = TensorType(DType.INT64, (len(parts),))
        return parts[0] if len(parts) == 1 else self._node("Concat", AxisAttrs(0), parts, type_)

    def target(self, shape: Sequence[Any], own: Sequence[Any]) -> Value | None:
        """Returns what a tensor of extents ``own`` is broadcast to, where that is not constant.

        An extent that the tensor has already is 1 in it, as in the target of ONNX's Expand.
        """
        wide = (*(1,) * (len(shape) - len(own)), *own)
        names = [e if isinstance(e, int) else str(getattr(e, "name", e)) for e in map(plain, shape)]
        rest = [1 if n == w else e for e, n, w in zip(shape, names, wide, strict=True)]
        return None if all(isinstance(plain(e), int) for e in rest) else self.vector(rest)

    def knows(self, extent: Any) -> bool:
        """True where an extent is arithmetic of extents of known tensors."""
        if isinstance(plain(extent), int):
            return True
        if isinstance(extent, tirx.Var):
            return extent in self.sources
        known = any(isinstance(extent, kind) for kind, _ in _ARITHMETIC)
        return known and self.knows(extent.a) and self.knows(extent.b)

    def _one(self, extent: Any) -> Value:
        """Returns one extent as a vector of one element."""
        number = plain(extent)
        if isinstance(number, int):
            return self.reading.constant(np.asarray([number], np.int64))
        if isinstance(extent, tirx.Var) and extent in self.sources:
            value, axis = self.sources[extent]
            return self._node("Shape", ShapeAttrs(axis, axis + 1), [value], _VECTOR)
        for kind, name in _ARITHMETIC:
            if isinstance(extent, kind):
                operands = [self._one(extent.a), self._one(extent.b)]
                return self._node(name, NO_ATTRIBUTES, operands, _VECTOR)
        raise self.reading.refused(f"the extent {extent} is no arithmetic of known extents")

    def _node(self, name: str, attributes: Any, operands: list[Value], type_: TensorType) -> Value:
        return self.reading.node(name, attributes, operands, type_)
