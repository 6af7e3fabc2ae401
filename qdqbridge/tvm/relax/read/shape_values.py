"""Shapes as values: extents that a function computes with become vectors of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.attributes import AxisAttrs, ExpandAttrs, ShapeAttrs
from qdqbridge.tvm.qnn.read import Call, Reading, Row
from qdqbridge.tvm.qnn.read.constants import constant_of
from qdqbridge.tvm.qnn.read.reading import tensor
from qdqbridge.tvm.relax.read.calls import calls_of, plain
from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.read.standard import standard

# ---- rows of tensors that are made from nothing: of one number, of a range, of a shape -----------

_LARGEST = 1 << 16
"""Elements up to which a constant is written out; a larger one is expanded from one number."""

_LONGEST = 1 << 24
"""Elements of a range that are written out; anybody may write a longer one in few letters."""


def filled(number: float) -> Row:
    """Returns the row of ``zeros`` and ``ones``, and of those like another tensor."""

    def read(reading: Reading, call: Call) -> Value:
        single = np.asarray(number, call.dtype.numpy)
        return _expand_scalar(reading, call, reading.constant(single))

    return read


def full(reading: Reading, call: Call) -> Value:
    """``full(shape, number)`` and ``full_like(x, number)``."""
    value = reading.plain(call.args[-1])
    found = constant_of(value)
    if found is not None and found.size == 1:
        single = found.reshape(()).astype(call.dtype.numpy)
        value = reading.constant(single)
    return _expand_scalar(reading, call, value)


def _expand_scalar(reading: Reading, call: Call, value: Value) -> Value:
    """Returns a value of one element as a tensor of the call's shape."""
    extents = static_shape(call.result.shape)
    if extents is None:
        return _like(reading, call, value)
    if value.constant is not None and int(np.prod(extents)) <= _LARGEST:
        return reading.constant(np.full(extents, value.constant.numpy().reshape(())))
    return reading.node("Expand", ExpandAttrs(extents), [value], tensor(call), call)


def _like(reading: Reading, call: Call, value: Value) -> Value:
    """Returns a value of one element in the shape of the call's first argument, a tensor."""
    first = call.args[0] if call.args else None
    if not isinstance(first, Value) or first.type.shape != call.result.shape:
        raise reading.refused("its shape is known at run time only")
    vector = TensorType(DType.INT64, (first.rank or 0,))
    shape = reading.node("Shape", ShapeAttrs(), [first], vector, call)
    return reading.node("Expand", ExpandAttrs(None), [value, shape], tensor(call), call)


def arange(reading: Reading, call: Call) -> Value:
    """``arange(start, end, step)`` between numbers."""
    ends = [call.get(name) for name in ("start", "end", "step")]
    if any(not isinstance(end, int | float) for end in ends):
        raise reading.refused("an end of its range is known at run time only")
    start, end, step = ends
    if step == 0 or (end - start) / step > _LONGEST:
        raise reading.refused(f"its range has more than {_LONGEST} elements, or a step of 0")
    return reading.constant(np.arange(start, end, step).astype(call.dtype.numpy))


def size(reading: Reading, call: Call) -> Value:
    """``size(x)``: the number of elements."""
    x = reading.value(call.args[0])
    return standard(reading, "Size", [x], [TensorType(DType.INT64, ())], call)[0]


ROWS: Mapping[str, Row] = {
    "zeros": filled(0),
    "ones": filled(1),
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "full": full,
    "full_like": full,
    "arange": arange,
    "size": size,
}
"""One row per operator, by Relax's name."""


# ---- whether a module has images whose channels come last ----------------------------------------

_LAST = ("NWC", "NHWC", "NDHWC")
_NAMES = ("data_layout", "layout")


@explained_errors(ReaderPlace("the module"))
def channels_last(module: ir.IRModule) -> bool:
    """Returns whether an operator of a module works on channels-last images.

    Such operators are read as channels-first ones between transposes, which then have to be
    carried to where they undo each other.
    """
    given = (call.attrs for call in calls_of(module) if call.attrs is not None)
    return any(str(_attribute(attrs, name)) in _LAST for attrs in given for name in _NAMES)


def _attribute(attrs: Any, name: str) -> Any:
    if isinstance(attrs, ir.DictAttrs):
        return attrs[name] if name in attrs.keys() else ""  # noqa: SIM118 (no mapping)
    return getattr(attrs, name, "")


# --------------------------------------------------------------------------------------------------

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
