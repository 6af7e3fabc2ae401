"""Pools, reductions, softmax and resizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.attributes import (
    ConvAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.reduction import reduction_of
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.shapes import span, window_count
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tflite_io.counterparts import RESIZE_PLACES, Counterpart, Family, of_families
from qdqbridge.tflite_io.writer.emission import Emission, Integers, WriteRow, WriterRow, written
from qdqbridge.tflite_io.writer.rows import kernels
from qdqbridge.tflite_io.writer.rows.kernels import stored
from qdqbridge.tflite_io.writer.tensors import NoCounterpart, extents

_IMAGE = 4


def pool(row: Counterpart) -> WriteRow:
    """Returns the row of a 2-D pool."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        attributes = node.record(PoolAttrs)
        if node.operand(0).rank != _IMAGE:
            raise NoCounterpart(f"its image has rank {node.operand(0).rank}", "use 2-D pools")
        if len(node.outputs) > 1:
            raise NoCounterpart("it gives the places of its maxima")
        if set(attributes.dilations) != {1}:
            raise NoCounterpart("it is dilated")
        if attributes.count_include_pad and any(attributes.pads):
            raise NoCounterpart("it counts padding")
        e.add(
            row.tflite, x[:1], y, row.options, e.version(x[0]),
            Padding=same_or_valid(node, attributes, attributes.kernel_shape),
            StrideH=attributes.strides[0], StrideW=attributes.strides[1],
            FilterHeight=attributes.kernel_shape[0], FilterWidth=attributes.kernel_shape[1],
            FusedActivationFunction=e.activation,
        )  # fmt: skip

    return write


def reduction(name: str) -> WriteRow:
    """Returns the row of a reduction along listed axes, those of space for a global pool."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        rank, first = node.operand(0).rank, 1 if e.channels_last(node) else 2
        if rank is None and not isinstance(node.attributes, ReduceAttrs):
            raise NoCounterpart("the rank of its image is not known")
        found = reduction_of(node, range(first, first + (rank or 0) - 2))
        e.add(
            name, [x[0], e.constant(list(found.axes), "axes")], y, "ReducerOptions",
            e.version(x[0]), KeepDims=found.keepdims,
        )  # fmt: skip

    return write


def softmax(row: Counterpart) -> WriteRow:
    """Returns the row of SOFTMAX and LOG_SOFTMAX, which go along the last axis."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        attributes, rank = node.record(SoftmaxAttrs), node.operand(0).rank or 0
        name, options = row.tflite, row.options
        if len(attributes.axes) != 1:
            raise NoCounterpart(f"it normalizes over the axes {list(attributes.axes)} together")
        fields = {"Beta": 1.0} if options == "SoftmaxOptions" else {}
        axis = attributes.axes[0]
        if axis == rank - 1:
            e.add(name, x[:1], y, options, e.version(x[0]), **fields)
            return
        order = [*(a for a in range(rank) if a != axis), axis]
        permuted = e.transposed(x[0], order)
        made = e.like(y[0], e.type_of(permuted)[1])
        e.add(name, [permuted], [made], options, e.version(x[0]), **fields)
        back = e.constant([order.index(a) for a in range(rank)], "perm")
        e.add("TRANSPOSE", [made, back], y, "TransposeOptions", 2)

    return write


_NEAREST = {place: flags for flags, place in RESIZE_PLACES.items()}
_LINEAR = {place: flags for flags, (place, _) in RESIZE_PLACES.items()}
_LINEAR["pytorch_half_pixel"] = _LINEAR["half_pixel"]


def resize(
    e: Emission, node: Node, attributes: ResizeAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR."""
    if node.operand(0).rank != _IMAGE or not e.channels_last(node):
        raise NoCounterpart("it resizes no image")
    given, made = extents(node.operand(0)), extents(node.output)
    if given[0] != made[0] or given[-1] != made[-1] or -1 in made[1:-1]:
        raise NoCounterpart("it resizes batch or channels, or to extents of run time")
    mode = attributes.mode
    flags = resize_flags(attributes, given, made)
    if flags is None:
        raise NoCounterpart(
            f"its mode is {mode}, {attributes.coordinate_transformation_mode}, "
            f"{attributes.nearest_mode}, its factors {attributes.scales}",
            "TFLite has linear, and nearest, by the quotients of extents",
        )
    name = "RESIZE_NEAREST_NEIGHBOR" if mode == "nearest" else "RESIZE_BILINEAR"
    options = "ResizeNearestNeighborOptions" if mode == "nearest" else "ResizeBilinearOptions"
    size = e.constant([made[1], made[2]], "size")
    e.add(
        name, [x[0], size], y, options, 3 if flags[1] else 2, AlignCorners=flags[0],
        HalfPixelCenters=flags[1],
    )  # fmt: skip


def resize_flags(
    attributes: ResizeAttrs, given: Sequence[int | str], made: Sequence[int | str]
) -> tuple[bool, bool] | None:
    """Returns TFLite's flags (aligned corners, half-pixel centers) of a Resize; None without any.

    TFLite knows extents only, so that a factor has to be their quotient.
    """
    if attributes.antialias or attributes.exclude_outside:
        return None
    factors = sorted(attributes.scales or ())
    quotients = sorted(
        new / old if isinstance(old, int) and isinstance(new, int) and old > 0 and new > 0 else 1.0
        for old, new in zip(given, made, strict=True)
    )
    if any(abs(a - b) > 1e-6 * b for a, b in zip(factors, quotients, strict=False)):
        return None
    place, mode = attributes.coordinate_transformation_mode, attributes.mode
    if mode == "nearest":
        return _NEAREST.get((place, attributes.nearest_mode))
    if mode != "linear" or (place == "pytorch_half_pixel" and 1 in made[1:]):
        return None
    return _LINEAR.get(place)


def _resizes(node: Node) -> bool:
    return stored(DType.INT8, DType.INT16, same=True)(node)


def _integers(row: Counterpart) -> Integers:
    """Returns the rule of the kernel: one that picks values changes no parameter."""
    picks = BY_NAME[row.onnx].flow is Flow.MOVE
    return kernels.moves if picks else kernels.of_counterpart(row)


def _pool(row: Counterpart) -> WriterRow:
    return WriterRow(pool(row), _integers(row), fused=BY_NAME[row.onnx].flow is not Flow.MOVE)


ROWS: Mapping[str, WriterRow] = {
    **{
        row.onnx: WriterRow(reduction(row.tflite), _integers(row), own=(1,))
        for row in of_families(Family.REDUCTION)
    },
    **{row.onnx: _pool(row) for row in of_families(Family.POOL)},
    **{row.onnx: WriterRow(softmax(row), _integers(row)) for row in of_families(Family.SOFTMAX)},
    "GlobalAveragePool": WriterRow(reduction("MEAN"), stored(*kernels.ACTIVATIONS)),
    "GlobalMaxPool": WriterRow(reduction("REDUCE_MAX"), kernels.moves),
    **dict((written(RESIZE, resize, _resizes, own=(1, 2, 3)),)),
}


# ---- TFLite's two paddings, recognized by where the first window lies and how many there are

SAME, VALID = 0, 1


def padding_of(
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> int | None:
    """Returns SAME or VALID where one of them gives these windows, else None.

    Args:
        attributes: Strides, dilations and pads.
        kernel: The window's extents.
        given: The image's extents, -1 where open.
        made: The result's.
    """
    spans = [span(k, d) for k, d in zip(kernel, attributes.dilations, strict=True)]
    if not any(attributes.pads) and all(
        into < 0 or out == window_count(into - size, stride)
        for into, out, size, stride in zip(given, made, spans, attributes.strides, strict=True)
    ):
        return VALID
    for axis, (into, out, size, stride) in enumerate(
        zip(given, made, spans, attributes.strides, strict=True)
    ):
        begin = attributes.pads[axis]
        if into < 0:
            end = attributes.pads[axis + len(given)]
            if stride != 1 or begin + end != size - 1 or begin != (size - 1) // 2:
                return None
        else:
            total = max((out - 1) * stride + size - into, 0)
            if out != -(-into // stride) or begin != total // 2:
                return None
    return SAME


def same_or_valid(node: Node, attributes: ConvAttrs | PoolAttrs, kernel: Sequence[int]) -> int:
    """Returns the padding of a node that is stored channels-last.

    Raises:
        NoCounterpart: It is neither of the two.
    """
    given, made = (
        [-1 if isinstance(e, str) else e for e in (value.type.shape or ())][1:-1]
        for value in (node.operand(0), node.output)
    )
    found = padding_of(attributes, kernel, given, made)
    if found is None:
        raise NoCounterpart(
            f"its pads {list(attributes.pads)} are neither SAME nor VALID",
            "pad the image with a Pad node",
        )
    return found
