"""Rows of data-movement operators that only Relay has so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Origin, Value
from qdqbridge.core.layout import channels_first, channels_last
from qdqbridge.core.ops.attributes import AxisAttrs, PadAttrs
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.origin import converted, label, layout_of
from qdqbridge.tvm.qnn.read.reader import TO_FIRST, TO_LAST, WITHOUT_PROVENANCE, CallReader, Read
from qdqbridge.tvm.relay.read.provenance import spread

Array: TypeAlias = "NDArray[Any]"


def layout_transform(reader: CallReader) -> Value:
    """``layout_transform(x; src_layout, dst_layout)`` between layouts of the same axes."""
    source, target = reader.text("src_layout"), reader.text("dst_layout")
    if sorted(source) != sorted(target):
        raise reader.refusal(f"{source} to {target} is a blocked layout")
    return reader.transposed(reader.value(0), tuple(source.index(axis) for axis in target))


def reshape(reader: CallReader) -> Read:
    """``reshape(x; newshape)``: nothing at all where x has that shape, as importers write it."""
    value = reader.value(0)
    if reader.call.provenance is None and value.type.shape == reader.result.shape:
        return value
    found = _stacked(reader, value) or spread(reader.reading, reader.call)
    return _perhaps_layout(reader) if found is None else found


def _stacked(reader: CallReader, value: Value) -> Value | None:
    """Returns ``Dense(x)`` for ``reshape(Dense(reshape(x)))``: Relay's products have two axes."""
    node = value.producer
    if reader.call.provenance is not None or node is None or node.op is not DENSE:
        return None
    flat = node.operand(0).producer
    if flat is None or flat.op is not RESHAPE or flat.origin.variant != WITHOUT_PROVENANCE:
        return None
    x, shape = flat.operand(0), reader.result.shape
    if x.type.shape is None or shape is None or x.type.shape[:-1] != shape[:-1]:
        return None
    if x.type.shape[-1:] != (node.operand(0).type.shape or ())[-1:]:
        return None
    operands = [x, *node.inputs[1:]]
    type_ = value.type.with_shape(shape)
    return reader.reading.node(node.op, node.attributes, operands, type_, reader.call)


def transpose(reader: CallReader) -> Read:
    """``transpose(x; axes)``; around a convolution that TVM computes channels-first, a layout."""
    provenance, rank = reader.call.provenance, len(reader.result.shape or ())
    if (
        provenance is not None
        and provenance.op in ("Conv", "ConvTranspose")
        and layout_of(provenance) is not None
    ):
        perm = reader.ints("axes")
        if rank > 2 and perm in (channels_first(rank), channels_last(rank)):
            return reader.transposed(reader.value(0), perm, layout=True)
    return _perhaps_layout(reader)


def _perhaps_layout(reader: CallReader) -> Read:
    """Reads a call and marks its node where nothing says that a model had it."""
    value, last = reader.shared(), converted(reader.call.name)
    if reader.call.provenance is None and isinstance(value, Value) and value.producer is not None:
        node = value.producer
        node.origin = replace(node.origin, variant=WITHOUT_PROVENANCE)
        if last is not None:
            node.origin = Origin(variant=TO_LAST if last else TO_FIRST)
            value.name = label(value.name)
    return value


def stack(reader: CallReader) -> Value:
    """``stack((x…); axis)``."""
    axis = reader.axis(default=0, rank=len(reader.result.shape or ()))
    parts = [reader.unsqueezed(reader.plain(value), (axis,)) for value in reader.values(0)]
    return reader.emit("Concat", parts, AxisAttrs(axis))


def take(reader: CallReader) -> Read:
    """``take(x, indices; axis, mode)``; without axis from the flattened tensor.

    Constant indices beyond the ends are what ``mode`` makes of them; others are taken to be within.
    """
    x, axis = reader.value(0), reader.call.attrs.get("axis")
    rank = len(reader.shape(x))
    extent = int(np.prod(reader.static(x))) if axis is None else reader.shape(x)[int(axis) % rank]
    indices = reader.array(1)
    if isinstance(extent, int) and indices is not None:
        inside = _inside(indices, extent, reader.text("mode", "clip"))
        if not np.array_equal(inside, indices):
            operands = (x, reader.constant(inside))
            reader = replace(reader, call=replace(reader.call, args=operands))
    if axis is not None:
        return reader.shared()
    flat = reader.reshaped(x, (extent,))
    return reader.emit("Gather", [flat, reader.real(1)], AxisAttrs(0))


def _inside(indices: Array, extent: int, mode: str) -> Array:
    """Returns indices as Relay reads them; ``fast`` promises that they are within."""
    if mode == "wrap" and extent:
        return indices % extent
    return indices.clip(0, max(extent - 1, 0)) if mode == "clip" else indices


def mirror_pad(reader: CallReader) -> Value:
    """``nn.mirror_pad(x; pad_width, mode=REFLECT)``."""
    mode = reader.text("mode", "SYMMETRIC")
    if mode != "REFLECT":
        raise reader.refusal(f"its mode is {mode}")
    pairs: Sequence[Sequence[int]] = reader.call.attrs["pad_width"]
    widths = [int(pair[side]) for side in (0, 1) for pair in pairs]
    return reader.emit("Pad", [reader.value(0)], PadAttrs(tuple(widths), "reflect"))


ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    "reshape": reshape,
    "transpose": transpose,
    "layout_transform": layout_transform,
    "stack": stack,
    "take": take,
    "nn.mirror_pad": mirror_pad,
}
