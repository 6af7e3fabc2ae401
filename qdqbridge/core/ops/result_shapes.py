"""Result shapes where extents have names: what follows beyond ONNX's own inference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.symbols import product, quotient, total
from qdqbridge.core.graph.types import Dim, Shape
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    ExpandAttrs,
    PadAttrs,
    PoolAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.shapes import sliced
from qdqbridge.core.ops.windows import extents, span

Open: TypeAlias = "tuple[Dim | None, ...]"
"""Extents of which some are not known."""


def result_shape(
    name: str, attributes: Attributes, shapes: Sequence[Shape], target: Sequence[Dim] | None
) -> Open | None:
    """Returns the shape of an operator's only result; None where nothing is known here.

    Args:
        name: The operator.
        attributes: Its attributes.
        shapes: The shapes of its operands.
        target: The elements of the shape that a Reshape or an Expand takes as its operand.
    """
    first = shapes[0] if shapes else None
    if isinstance(attributes, ReshapeAttrs | ExpandAttrs) and attributes.shape is not None:
        target = attributes.shape
    rank = _length(shapes[1]) if target is None and len(shapes) > 1 else None
    if isinstance(attributes, ReshapeAttrs):
        if rank == 1:
            target = (-1,)  # a vector has as many elements as there are
        elif rank is not None:
            return (None,) * rank
        return None if target is None else _reshaped(first, target, attributes.allow_zero)
    if first is None:
        return None
    if isinstance(attributes, TransposeAttrs) and len(attributes.perm) == len(first):
        return tuple(first[axis] for axis in attributes.perm)  # ONNX infers nothing of a scalar's
    if isinstance(attributes, ExpandAttrs):
        target = (-1,) * rank if rank is not None else target
        return None if target is None else _broadcast_open_shapes(first, target)
    if name == "Flatten" and isinstance(attributes, AxisAttrs):
        return (product(first[: attributes.axis]), product(first[attributes.axis :]))
    if name == "Concat" and isinstance(attributes, AxisAttrs):
        return _joined(shapes, attributes.axis)
    if isinstance(attributes, TileAttrs) and len(attributes.repeats) == len(first):
        return tuple(product(pair) for pair in zip(first, attributes.repeats, strict=True))
    if isinstance(attributes, SliceAttrs) and 0 not in attributes.steps:
        own = all(-len(first) <= axis < len(first) for axis in attributes.axes)
        return _sliced(first, attributes) if own else None
    if isinstance(attributes, PadAttrs) and len(attributes.pads) == 2 * len(first):
        ends = attributes.pads[len(first) :]
        return tuple(total(row) for row in zip(first, attributes.pads, ends, strict=False))
    return None


def _length(shape: Shape) -> int | None:
    """Returns how many elements a vector has; None for what is none, or of an open length."""
    return shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) else None


def windows_shape(
    attributes: ConvAttrs | ConvTransposeAttrs | PoolAttrs,
    data: Shape,
    kernel: Sequence[int | None],
    channels: Dim | None,
) -> Open | None:
    """Returns the shape of a convolution's or pool's result.

    Args:
        attributes: The operator's attributes.
        data: The shape of its first operand.
        kernel: The spatial extents of its window, None where only the run knows one.
        channels: How many channels the result has.
    """
    rank = len(kernel)
    lists = (attributes.strides, attributes.dilations, attributes.pads[:rank])
    if data is None or len(data) != rank + 2 or {len(each) for each in lists} != {rank}:
        return None
    spatial = (_windows(attributes, index, dim, kernel) for index, dim in enumerate(data[2:]))
    return (data[0], channels, *spatial)


def _windows(
    attributes: ConvAttrs | ConvTransposeAttrs | PoolAttrs,
    index: int,
    dim: Dim,
    kernel: Sequence[int | None],
) -> Dim | None:
    """Returns the extent of a result along one spatial axis, None where strides leave it open."""
    stride, dilation, size = attributes.strides[index], attributes.dilations[index], kernel[index]
    if size is None:
        return None
    pads = (attributes.pads[index], attributes.pads[index + len(kernel)])
    wide = span(size, dilation)
    if isinstance(attributes, ConvTransposeAttrs):
        grown = product([total([dim, -1]), stride])
        return total([grown, wide, attributes.output_padding[index], *(-pad for pad in pads)])
    pool = isinstance(attributes, PoolAttrs)
    ceil_mode = pool and attributes.ceil_mode
    if isinstance(dim, int):
        window = ([dim], [size], [stride], [dilation], pads)
        return extents(*window, ceil_mode=ceil_mode, clipped=pool)[0] if stride > 0 else None
    return total([dim, *pads, 1 - wide]) if stride == 1 and not ceil_mode else None


def _reshaped(source: Shape, target: Sequence[Dim], allow_zero: bool) -> Open:
    found: list[Dim | None] = []
    for index, dim in enumerate(target):
        if dim == 0 and not allow_zero:
            found.append(source[index] if source is not None and index < len(source) else None)
        else:
            found.append(dim)
    rest = found.index(-1) if -1 in found else _renamed(source, found)
    if rest is not None:
        others = product(dim for index, dim in enumerate(found) if index != rest)
        left = None if source is None else quotient(product(source), others)
        found[rest] = left if left is not None or found[rest] == -1 else found[rest]
    return tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in found)


def _renamed(source: Shape, target: Sequence[Dim | None]) -> int | None:
    """Returns the only axis of a target that has a name which the source does not have there.

    The elements that are left for it are as many as the source says, whatever it is named.
    """
    named = [
        index
        for index, dim in enumerate(target)
        if isinstance(dim, str) and (dim,) != (source or ())[index : index + 1]
    ]
    return named[0] if len(named) == 1 else None


def _sliced(source: Sequence[Dim], attributes: SliceAttrs) -> Open:
    extents: list[Dim | None] = list(source)
    cuts = zip(attributes.starts, attributes.ends, attributes.steps, strict=True)
    for axis, cut in zip(attributes.axes, cuts, strict=True):
        extent = source[axis]
        extents[axis] = len(sliced(extent, *cut)) if isinstance(extent, int) else None
    return tuple(extents)


def broadcast_columns(*shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns the extents that meet on each axis of what shapes broadcast to; in front stand 1s."""
    return list(zip_longest(*map(reversed, shapes), fillvalue=1))[::-1]


def broadcast_extents(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """Returns what two shapes broadcast to that are known to fit; also of expressions."""
    return [right if left == 1 else left for left, right in broadcast_columns(a, b)]


def _broadcast_open_shapes(a: Sequence[Dim], b: Sequence[Dim]) -> Open:
    return tuple(_common(left, right) for left, right in broadcast_columns(a, b))


def _common(a: Dim, b: Dim) -> Dim | None:
    if any(isinstance(dim, int) and dim < 0 for dim in (a, b)):
        return None
    if b in (a, 1):
        return a
    if a == 1:
        return b
    numbers = [dim for dim in (a, b) if isinstance(dim, int)]
    return numbers[0] if len(numbers) == 1 else None


def _joined(shapes: Sequence[Shape], axis: int) -> Open | None:
    known = [shape for shape in shapes if shape is not None]
    if len({len(shape) for shape in known}) != 1:
        return None
    columns: list[Dim | None] = []
    for index, column in enumerate(zip(*known, strict=True)):
        if index == axis:
            columns.append(total(column) if len(known) == len(shapes) else None)
        else:
            columns.append(next((dim for dim in column if isinstance(dim, int)), column[0]))
    return tuple(columns)
