"""Rows that give values another shape or order, as only Relax writes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    CastAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    SliceAttrs,
)
from qdqbridge.tvm.qnn.read import Call, Entry, Reading, Row
from qdqbridge.tvm.qnn.read.data_movement import moved, per_tensor
from qdqbridge.tvm.qnn.read.reading import flat, tensor
from qdqbridge.tvm.qnn.read.windows import reduced_axes
from qdqbridge.tvm.relax.read.standard import standard

_END = (1 << 63) - 1


def flatten(reading: Reading, call: Call) -> Value:
    """``flatten(x)``: one axis."""
    return moved(reading, call, "Reshape", ReshapeAttrs((-1,)))


def batch_flatten(reading: Reading, call: Call) -> Value:
    """``nn.batch_flatten(x)``."""
    return moved(reading, call, "Flatten", AxisAttrs(1))


def pixel_shuffle(reading: Reading, call: Call) -> Value:
    """``nn.pixel_shuffle(x, upscale_factor)``: ONNX's DepthToSpace in CRD mode."""
    attributes = DepthSpaceAttrs(call.integer("upscale_factor"), "CRD")
    return moved(reading, call, "DepthToSpace", attributes)


def flip(reading: Reading, call: Call) -> Value:
    """``flip(x, axis)``."""
    axis = call.integer("axis") % max(reading.value(call.args[0]).rank or 0, 1)
    return moved(reading, call, "Slice", SliceAttrs((-1,), (-_END,), (axis,), (-1,)))


def stack(reading: Reading, call: Call) -> Value:
    """``stack((x…), axis)``."""
    rank = len(call.result.shape or ())
    axis = call.integer("axis", 0) % max(rank, 1)
    operands = [reading.plain(entry) for entry in flat([call.args[0]])]
    parts = [_unsqueezed(reading, value, axis) for value in operands]
    stacked = reading.node("Concat", AxisAttrs(axis), parts, tensor(call), call)
    reading.memory["stacked", stacked] = (operands, axis)
    return stacked


def _unsqueezed(reading: Reading, value: Value, axis: int) -> Value:
    shape = list(value.type.shape or ())
    shape.insert(axis, 1)
    type_ = TensorType(value.type.dtype, tuple(shape))
    return reading.node("Unsqueeze", AxesAttrs((axis,)), [value], type_)


def of_stack(row: Row, name: str) -> Row:
    """Returns ``row`` of a reduction that reads one over stacked tensors as their ``name``.

    TVM's ONNX importer writes Min, Max and Sum of several tensors so, each broadcast to the
    result's shape.
    """

    def read(reading: Reading, call: Call) -> Entry:
        data = reading.value(call.args[0])
        operands, axis = reading.memory.get(("stacked", data), ((), 0))
        given = reduced_axes(call, data)
        if not operands or call.provenance is not None or given.axes != (axis,) or given.keepdims:
            return row(reading, call)
        parts = [_unexpanded(value) for value in operands]
        if name != "Add":
            return reading.node(name, NO_ATTRIBUTES, parts, tensor(call), call)
        total = parts[0]
        for part in parts[1:]:
            total = reading.node("Add", NO_ATTRIBUTES, [total, part], tensor(call), call)
        return total

    return read


def _unexpanded(value: Value) -> Value:
    node = value.producer
    expands = node is not None and isinstance(node.attributes, ExpandAttrs)
    return node.operand(0) if node is not None and expands else value


def repeat(row: Row) -> Row:
    """Returns ``row`` of ``repeat`` that also knows what is not constant: Gather of an axis."""

    def read(reading: Reading, call: Call) -> Entry:
        data = per_tensor(reading, call.args[0])
        shape, axis = data.type.shape, call.get("axis")
        if data.constant is not None or shape is None or axis is None:
            return row(reading, call)
        place = int(axis) % max(len(shape), 1)
        extent = shape[place]
        if not isinstance(extent, int):
            raise reading.refused("it repeats elements of an axis of unknown length")
        picks = np.repeat(np.arange(extent, dtype=np.int64), call.integer("repeats"))
        return moved(reading, call, "Gather", AxisAttrs(place), reading.constant(picks))

    return read


def sort(reading: Reading, call: Call) -> Value:
    """``sort(x, axis, descending)``."""
    return _ordered(reading, call)[0]


def argsort(reading: Reading, call: Call) -> Value:
    """``argsort(x, axis, descending)``."""
    index = _ordered(reading, call)[1]
    if index.type.dtype is call.dtype:
        return index
    return reading.node("Cast", CastAttrs(call.dtype), [index], tensor(call), call)


def _ordered(reading: Reading, call: Call) -> list[Value]:
    x = reading.plain(call.args[0])
    shape = x.type.shape or ()
    axis = call.integer("axis", -1) % max(len(shape), 1)
    extent = shape[axis] if shape else None
    if not isinstance(extent, int):
        raise reading.refused("it sorts an axis of unknown length")
    count = reading.constant(np.asarray([extent], np.int64))
    types = [TensorType(x.type.dtype, shape), TensorType(DType.INT64, shape)]
    big = int(bool(call.get("descending", False)))
    return standard(reading, "TopK", [x, count], types, call, axis=axis, largest=big)


def rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows by Relax's name; some fall back to those of ``shared``."""
    return {
        "flatten": flatten,
        "nn.batch_flatten": batch_flatten,
        "nn.pixel_shuffle": pixel_shuffle,
        "flip": flip,
        "stack": stack,
        "repeat": repeat(shared["repeat"]),
        "sort": sort,
        "argsort": argsort,
        "max": of_stack(shared["max"], "Max"),
        "min": of_stack(shared["min"], "Min"),
        "sum": of_stack(shared["sum"], "Add"),
    }
