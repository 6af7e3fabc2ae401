"""Rows of tensors that are made from nothing: of one number, of a range, of a shape."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.attributes import ExpandAttrs, ShapeAttrs
from qdqbridge.tvm.qnn.read import Call, Reading, Row
from qdqbridge.tvm.qnn.read.constants import constant_of
from qdqbridge.tvm.qnn.read.reading import tensor
from qdqbridge.tvm.relax.read.standard import standard

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
    shape = reading.node("Shape", ShapeAttrs(), [first], vector)
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
