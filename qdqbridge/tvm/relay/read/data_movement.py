"""Rows of data-movement operators that only Relay has so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Origin, Value
from qdqbridge.core.layout.permutation import channels_first, channels_last
from qdqbridge.core.ops.attributes import AxisAttrs, PadAttrs
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.origin import converted, label, layout_of
from qdqbridge.tvm.qnn.read.site import TO_FIRST, TO_LAST, WITHOUT_PROVENANCE, Read, ReadSite
from qdqbridge.tvm.relay.read.provenance import spread

Array: TypeAlias = "NDArray[Any]"


def layout_transform(site: ReadSite) -> Value:
    """``layout_transform(x; src_layout, dst_layout)`` between layouts of the same axes."""
    source, target = site.text("src_layout"), site.text("dst_layout")
    if sorted(source) != sorted(target):
        raise site.refusal(f"{source} to {target} is a blocked layout")
    return site.transposed(site.value(0), tuple(source.index(axis) for axis in target))


def reshape(site: ReadSite) -> Read:
    """``reshape(x; newshape)``: nothing at all where x has that shape, as importers write it."""
    value = site.value(0)
    if site.call.provenance is None and value.type.shape == site.result.shape:
        return value
    found = _stacked(site, value) or spread(site.reading, site.call)
    return _perhaps_layout(site) if found is None else found


def _stacked(site: ReadSite, value: Value) -> Value | None:
    """Returns ``Dense(x)`` for ``reshape(Dense(reshape(x)))``: Relay's products have two axes."""
    node = value.producer
    if site.call.provenance is not None or node is None or node.op is not DENSE:
        return None
    flat = node.operand(0).producer
    if flat is None or flat.op is not RESHAPE or flat.origin.variant != WITHOUT_PROVENANCE:
        return None
    x, shape = flat.operand(0), site.result.shape
    if x.type.shape is None or shape is None or x.type.shape[:-1] != shape[:-1]:
        return None
    if x.type.shape[-1:] != (node.operand(0).type.shape or ())[-1:]:
        return None
    operands = [x, *node.inputs[1:]]
    type_ = value.type.with_shape(shape)
    return site.reading.node(node.op, node.attributes, operands, type_, site.call)


def transpose(site: ReadSite) -> Read:
    """``transpose(x; axes)``; around a convolution that TVM computes channels-first, a layout."""
    provenance, rank = site.call.provenance, len(site.result.shape or ())
    if (
        provenance is not None
        and provenance.op in ("Conv", "ConvTranspose")
        and layout_of(provenance) is not None
    ):
        perm = site.ints("axes")
        if rank > 2 and perm in (channels_first(rank), channels_last(rank)):
            return site.transposed(site.value(0), perm, layout=True)
    return _perhaps_layout(site)


def _perhaps_layout(site: ReadSite) -> Read:
    """Reads a call and marks its node where nothing says that a model had it."""
    value, last = site.shared(), converted(site.call.name)
    if site.call.provenance is None and isinstance(value, Value) and value.producer is not None:
        node = value.producer
        node.origin = replace(node.origin, variant=WITHOUT_PROVENANCE)
        if last is not None:
            node.origin = Origin(variant=TO_LAST if last else TO_FIRST)
            value.name = label(value.name)
    return value


def stack(site: ReadSite) -> Value:
    """``stack((x…); axis)``."""
    axis = site.axis(default=0, rank=len(site.result.shape or ()))
    parts = [site.unsqueezed(site.plain(value), (axis,)) for value in site.values(0)]
    return site.emit("Concat", parts, AxisAttrs(axis))


def take(site: ReadSite) -> Read:
    """``take(x, indices; axis, mode)``; without axis from the flattened tensor.

    Constant indices beyond the ends are what ``mode`` makes of them; others are taken to be within.
    """
    x, axis = site.value(0), site.call.attrs.get("axis")
    rank = len(site.shape(x))
    extent = int(np.prod(site.static(x))) if axis is None else site.shape(x)[int(axis) % rank]
    indices = site.array(1)
    if isinstance(extent, int) and indices is not None:
        inside = _inside(indices, extent, site.text("mode", "clip"))
        if not np.array_equal(inside, indices):
            operands = (x, site.constant(inside))
            site = replace(site, call=replace(site.call, args=operands))
    if axis is not None:
        return site.shared()
    flat = site.reshaped(x, (extent,))
    return site.emit("Gather", [flat, site.real(1)], AxisAttrs(0))


def _inside(indices: Array, extent: int, mode: str) -> Array:
    """Returns indices as Relay reads them; ``fast`` promises that they are within."""
    if mode == "wrap" and extent:
        return indices % extent
    return indices.clip(0, max(extent - 1, 0)) if mode == "clip" else indices


def mirror_pad(site: ReadSite) -> Value:
    """``nn.mirror_pad(x; pad_width, mode=REFLECT)``."""
    mode = site.text("mode", "SYMMETRIC")
    if mode != "REFLECT":
        raise site.refusal(f"its mode is {mode}")
    pairs: Sequence[Sequence[int]] = site.call.attrs["pad_width"]
    widths = [int(pair[side]) for side in (0, 1) for pair in pairs]
    return site.emit("Pad", [site.value(0)], PadAttrs(tuple(widths), "reflect"))


ROWS: Mapping[str, Callable[[ReadSite], Read]] = {
    "reshape": reshape,
    "transpose": transpose,
    "layout_transform": layout_transform,
    "stack": stack,
    "take": take,
    "nn.mirror_pad": mirror_pad,
}
