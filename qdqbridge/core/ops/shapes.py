"""Extents: what checks share, sliding windows, and results whose extents have names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Array, Attributes
from qdqbridge.core.graph.symbols import product, quotient, total
from qdqbridge.core.graph.types import Dim, QuantType, Shape
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    ExpandAttrs,
    PadAttrs,
    PoolAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TileAttrs,
    TransposeAttrs,
)

# ---- What the ``check`` functions of the operator table share: known extents and complaints ------


def sliced(extent: int, start: int, end: int, step: int) -> range:
    """Returns the elements that a Slice takes; backwards from before the first, from the first."""
    return range(extent)[slice(0 if step < 0 and start < -extent else start, end, step)]


def laid_along(vector: Array, axis: int | None, rank: int) -> Array:
    """Returns a vector as it is combined with tensors of ``rank`` axes, along one of them.

    Args:
        vector: Shape [n]; a single number without an axis stays as it is.
        axis: From either end.
        rank: Of the tensors.
    """
    if axis is None or vector.ndim == 0:
        return vector
    return vector.reshape([-1 if other == axis % rank else 1 for other in range(rank)])


def known(value: Value | None, axis: int) -> int | None:
    """Returns the extent of an axis where it is a number; negative axes count from the end."""
    if value is None or value.type.shape is None:
        return None
    shape = value.type.shape
    if not -len(shape) <= axis < len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) else None


def differ(a: int | None, b: int | None) -> bool:
    """True where both extents are known and unequal."""
    return a is not None and b is not None and a != b


def axes_fit(axes: Sequence[int], rank: int | None) -> Iterator[str]:
    """Complains of axes outside ``[0, rank)`` and of repeated ones."""
    if rank is None:
        return
    for axis in axes:
        if not 0 <= axis < rank:
            yield f"axis {axis} does not exist in an operand of rank {rank}"
    if len(set(axes)) != len(axes):
        yield f"axes {tuple(axes)} name an axis twice"


def vector_fits(value: Value | None, length: int | None, what: str) -> Iterator[str]:
    """Complains of an optional operand that is not a vector of ``length`` elements."""
    if value is None:
        return
    if value.rank is not None and value.rank != 1:
        yield f"{what} has rank {value.rank}, not 1"
    elif differ(known(value, 0), length):
        yield f"{what} has {known(value, 0)} elements, not {length}"


def per_tensor(node: Node, index: int, what: str) -> Iterator[str]:
    """Complains of a quantized operand with more than one scale, if others are quantized too."""
    return per_channel(node, index, None, what)


def per_channel(node: Node, index: int, axis: int | None, what: str) -> Iterator[str]:
    """Complains of a quantized operand with scales along another axis, if others are quantized too.

    Args:
        index: Which operand.
        axis: The one of its channels; None where it has to be per tensor.
        what: The operand in words.
    """
    value = node.optional(index)
    if value is None or not isinstance(value.type, QuantType):
        return
    params = value.type.params
    if params.per_tensor or (axis is not None and (params.blocked or params.axis == axis)):
        return
    others = (v for i, v in node.data_operands() if i != index)
    if any(isinstance(other.type, QuantType) for other in others):
        along = "" if axis is None else f" or along axis {axis}"
        yield f"{what} is quantized per axis {params.axis}; it has to be per tensor{along}"


def spatial_lengths(
    rank: int, attributes: Sequence[tuple[str, Sequence[int], int, int]]
) -> Iterator[str]:
    """Complains of attribute lists of wrong length or with too small entries.

    Args:
        rank: Number of spatial axes.
        attributes: ``(name, entries, entries per axis, smallest entry)``.
    """
    for name, entries, per_axis, smallest in attributes:
        if len(entries) != per_axis * rank:
            yield f"{name} has {len(entries)} entries for {rank} spatial axes"
        if any(entry < smallest for entry in entries):
            yield f"{name} {tuple(entries)} has an entry below {smallest}"


# ---- Sliding windows over the spatial axes of an ``(N, C, spatial…)`` array ----------------------


def span(kernel: int, dilation: int) -> int:
    """Returns how many elements a dilated kernel covers."""
    return (kernel - 1) * dilation + 1


def covered(count: int, stride: int, kernel: int, dilation: int) -> int:
    """Returns how many elements ``count`` windows cover together."""
    return (count - 1) * stride + span(kernel, dilation)


def window_count(room: Any, stride: int) -> Any:
    """Returns how many windows begin in the ``room`` that one of them leaves; also of expressions.

    Args:
        room: What is left of the padded input behind one window.
        stride: How far windows lie apart.
    """
    return room // stride + 1


def same_padding(size: int, span: int, stride: int) -> int:
    """Returns both pads of ``auto_pad`` SAME together: a window begins at every stride.

    Below 0 where strides leave elements over, which callers take for what their format says.
    """
    return (-(-size // stride) - 1) * stride + span - size


def split_padding(totals: Sequence[int], *, upper: bool) -> tuple[int, ...]:
    """Returns begin and end pads; an odd total's extra element goes to the end if ``upper``."""
    less = tuple(total // 2 for total in totals)
    more = tuple(total - half for total, half in zip(totals, less, strict=True))
    return (*less, *more) if upper else (*more, *less)


def extents(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    *,
    ceil_mode: bool = False,
    clipped: bool = False,
) -> tuple[int, ...]:
    """Returns the number of windows along every spatial axis.

    Args:
        sizes: The extents of the input.
        kernel: The extents of the window.
        strides: How far windows lie apart.
        dilations: How far the elements of a window lie apart.
        pads: Begin and end padding.
        ceil_mode: A last window may reach beyond the padding, but has to start inside the input or
            its begin padding (ONNX AveragePool and MaxPool).
        clipped: A window wider than the padded input by less than a stride counts as one (see
            :func:`fitted`).
    """
    result: list[int] = []
    for i, size in enumerate(sizes):
        room = size + pads[i] + pads[i + len(sizes)] - span(kernel[i], dilations[i])
        up = ceil_mode or (clipped and room < 0)
        count = window_count(room + (strides[i] - 1) * up, strides[i])
        # ONNX leaves out a last window that begins in the end padding; its inference counts it.
        if ceil_mode and (count - 1) * strides[i] >= size + pads[i]:
            count -= 1
        result.append(max(count, 0))
    return tuple(result)


def elements_read(
    count: int,
    size: int,
    stride: int,
    kernel: int,
    dilation: int,
    pads: tuple[int, int],
    *,
    with_padding: bool,
) -> Array:
    """Returns how many elements each of ``count`` windows reads along one axis.

    Padding counts with ``with_padding`` (``count_include_pad``); what lies beyond it never does.
    """
    begin, end = pads
    low, high = (0, begin + size + end) if with_padding else (begin, begin + size)
    reads = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation
    return ((reads >= low) & (reads < high)).sum(axis=1)


def reaching(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """Returns the end padding as far as the windows of ``ceil_mode`` reach along one axis.

    Less than there is where a last window would start in it: ONNX leaves that one out.
    """
    (count,) = extents((size,), (kernel,), (stride,), (dilation,), pads, ceil_mode=True)
    return max(0, covered(count, stride, kernel, dilation) - size - pads[0])


def fitted(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> tuple[int, int, int]:
    """Returns kernel, stride and end padding of a pool whose windows fit along one axis.

    A window that is wider than the padded input, by less than a stride, fits nowhere: ONNX's text,
    which rounds the number of windows down, yields none. ONNX's shape inference and onnxruntime
    (1.32) round it towards zero and yield one, of the elements there are; files are made for that.
    Where that leaves padding as wide as the window, which onnxruntime refuses, it stays as it is.
    """
    room = size + sum(pads)
    fewer = (room - 1) // dilation + 1
    end = max(pads[1] - (room - span(fewer, dilation)), 0)
    fits = not -stride < room - span(kernel, dilation) < 0
    if fits or max(pads[0], end) >= fewer:
        return kernel, stride, pads[1]
    whole = size + pads[0] + end
    return fewer, stride if whole == span(fewer, dilation) else whole, end


def padded(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    out: Sequence[int],
    fill: object,
) -> Array:
    """Returns ``x`` with ``fill`` around it, as far as the ``out`` windows reach."""
    widths = [(0, 0), (0, 0)]
    for i, size in enumerate(x.shape[2:]):
        wide = covered(out[i], strides[i], kernel[i], dilations[i])
        widths.append((pads[i], max(pads[i + len(out)], wide - size - pads[i])))
    if not any(width for pair in widths for width in pair):
        return x
    return np.pad(x, widths, constant_values=np.asarray(fill, x.dtype))  # pyright: ignore


def taps(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yields every position of the kernel with the view of ``x`` that it reads."""
    for tap in np.ndindex(*kernel):
        region = tuple(
            slice(t * d, t * d + (o - 1) * s + 1 if o else t * d, s)
            for t, d, s, o in zip(tap, dilations, strides, out, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *region)]


# ---- Result shapes where extents have names: what follows beyond ONNX's own inference ------------


Open: TypeAlias = "tuple[Dim | None, ...]"
"""Extents of which some are not known."""


def result_shape(
    name: str, attributes: Attributes, shapes: Sequence[Shape], target: Sequence[Dim] | None
) -> Open | None:
    """Returns the shape of an operator's only result; None where nothing is known here.

    Args:
        name: The operator.
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
        return None if target is None else broadcast_open_shapes(first, target)
    if name == "Unsqueeze" and isinstance(attributes, AxesAttrs):
        whole: list[Dim] = list(first)
        for axis in attributes.axes:
            whole.insert(axis, 1)
        return tuple(whole)
    if name == "Squeeze" and isinstance(attributes, AxesAttrs):
        return tuple(dim for axis, dim in enumerate(first) if axis not in attributes.axes)
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


def reduced_shape(attributes: ReduceAttrs, shape: Open) -> Open:
    """Returns the shape of a reduction's result."""
    kept: list[Dim | None] = []
    for axis, dim in enumerate(shape):
        if axis not in attributes.axes:
            kept.append(dim)
        elif attributes.keepdims:
            kept.append(1)
    return tuple(kept)


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
        extent, (start, end, step) = source[axis], cut
        if isinstance(extent, int):
            extents[axis] = len(sliced(extent, *cut))
        else:  # of any extent nothing lies between two places in the wrong order
            counted = (start >= 0 and end >= 0) or (step > 0 and start < 0 and end < 0)
            nothing = counted and (end - start) * step <= 0
            extents[axis] = 0 if nothing else None
    return tuple(extents)


def broadcast_columns(*shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns the extents that meet on each axis of what shapes broadcast to; in front stand 1s."""
    return list(zip_longest(*map(reversed, shapes), fillvalue=1))[::-1]


def broadcast_extents(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """Returns what two shapes broadcast to that are known to fit; also of expressions."""
    return [right if left == 1 else left for left, right in broadcast_columns(a, b)]


def broadcast_open_shapes(a: Sequence[Dim | None], b: Sequence[Dim | None]) -> Open:
    """Returns what two shapes broadcast to, as far as that is known."""
    return tuple(_common(left, right) for left, right in broadcast_columns(a, b))


def _common(a: Dim | None, b: Dim | None) -> Dim | None:
    if any(isinstance(dim, int) and dim < 0 for dim in (a, b)):
        return None
    if b in (a, 1):
        return a
    if a == 1:
        return b
    numbers = [dim for dim in (a, b) if isinstance(dim, int)]
    return numbers[0] if len(numbers) == 1 else None


def einsum_labels(term: str, rank: int) -> list[str]:
    """Returns the label of every axis of a term; those of an ellipsis are counted from its end."""
    head, dots, tail = term.replace(" ", "").partition("...")
    count = rank - len(head) - len(tail) if dots else 0
    return [*head, *(f".{place}" for place in range(count, 0, -1)), *tail]


def einsum_shape(equation: str, shapes: Sequence[Sequence[Dim]]) -> Open | None:
    """Returns the extents of an Einsum's result, whose operands may have one element on an axis.

    None of an equation that does not fit its operands.
    """
    terms, arrow, result = equation.partition("->")
    found: dict[str, Dim | None] = {}
    for term, shape in zip(terms.split(","), shapes, strict=False):
        labels = einsum_labels(term, len(shape))
        if len(labels) != len(shape):
            return None
        for label, extent in zip(labels, shape, strict=True):
            met = found.get(label, 1)
            found[label] = None if met is None else _common(met, extent)
    if not arrow:
        result = "..." + "".join(sorted(c for c in {*terms} - {*" ,."} if terms.count(c) == 1))
    count = sum(label[0] == "." for label in found)
    made = einsum_labels(result, len(result.replace(" ", "").replace("...", "")) + count)
    return tuple(found[label] for label in made) if {*made} <= {*found} else None


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
