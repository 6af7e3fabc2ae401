"""RoiAlign, as onnxruntime computes it: TVM's own operator scales and takes maxima otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

from qdqbridge.core.ops.shapes import extents, same_padding, span, window_count
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import ResolvedWindow, window_of
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root

# ---- nonMaxSuppression, as onnxruntime computes it -----------------------------------------------
# TVM's importer takes numbers that only the run knows for others, and what is left out for its
# own.

_REAL, _COUNT = "float32", "int64"
_INDICES = 3
"""An image, a class, a box."""

_Box = tuple[Any, Any, Any, Any]
"""Where a box begins and ends along two axes: begin, end, begin, end."""


def _suppression(context: CompositionContext) -> Sequence[Expr]:
    """Of each image and class the best boxes, none of which overlaps a better one too far."""
    boxes, scores = context.arg(0), context.arg(1)
    if {context.dtype(boxes), context.dtype(scores)} != {_REAL}:
        raise NoRow("its boxes or scores are no float32")
    images, count, _ = context.extents(boxes)
    _, classes, _ = context.extents(scores)
    for have, want in zip(context.extents(scores), (images, classes, count), strict=True):
        context.emitter.need_same(have, want)
    lowest = -np.inf  # without a threshold every score counts
    limits = [
        context("reshape", context.cast(context.arg(index), kind), (1,)) if context.has(index)
        else context.number([default], kind)
        for index, kind, default in ((2, _COUNT, 0), (3, _REAL, 0.0), (4, _REAL, lowest))
    ]  # fmt: skip
    order = context("argsort", scores, axis=2, descending=True, dtype=_COUNT)
    most = images * classes * count
    rows, found = _call_nms_loops(context, [boxes, scores, order, *limits], most)
    (kept,) = context.bound(found, "kept")
    return [context("strided_slice", rows, axes=[0], begin=[0], end=[kept])]


def _call_nms_loops(context: CompositionContext, operands: Sequence[Expr], most: Any) -> list[Expr]:
    """Emits a call of the loops; returns all rows that there is room for, and how many count."""
    centred = context.onnx.flag("center_point_box")
    thresholded = context.has(4)
    function = _nms_primfunc([context.extents(x) for x in operands[:3]], centred, thresholded)
    variable = context.emitter.builder.add_func(function, "non_max_suppression")
    shapes: Any = ([most, _INDICES], [1])
    types = [relax.TensorType(shape, _COUNT) for shape in shapes]
    args: Any = list(operands)
    both = context.emitter.emit(relax.call_tir(variable, args, types))
    return [context.emitter.emit(context.emitter.item(both, index)) for index in range(2)]


def _nms_primfunc(extents: Sequence[Sequence[Any]], centred: bool, thresholded: bool) -> Any:
    """Returns the PrimFunc ``(boxes, scores, order, most, overlap, score, rows, found)``."""
    opened: dict[str, Any] = {}

    def own(extent: Any) -> Any:
        if isinstance(extent, int):
            return extent
        return opened.setdefault(str(extent), tirx.Var(f"n{len(opened)}", "int64"))

    images, count, _ = map(own, extents[0])
    classes = own(extents[1][1])

    def body() -> None:
        boxes = T.arg("boxes", T.buffer((images, count, 4), _REAL))
        scores = T.arg("scores", T.buffer((images, classes, count), _REAL))
        order = T.arg("order", T.buffer((images, classes, count), _COUNT))
        most = T.arg("most", T.buffer((1,), _COUNT))
        overlap = T.arg("overlap", T.buffer((1,), _REAL))
        lowest = T.arg("lowest", T.buffer((1,), _REAL))
        rows = T.arg("rows", T.buffer((images * classes * count, _INDICES), _COUNT))
        found = T.arg("found", T.buffer((1,), _COUNT))
        with root():
            first = T.alloc_buffer((1,), _COUNT)
            T.buffer_store(found, tirx.const(0, _COUNT), [0])
            with T.serial(images) as image, T.serial(classes) as class_:
                T.buffer_store(first, found[0], [0])
                with T.serial(count) as place:
                    box = order[image, class_, place]
                    wanted = found[0] - first[0] < most[0]
                    if thresholded:
                        wanted = tirx.all(wanted, scores[image, class_, box] > lowest[0])
                    with T.If(wanted), T.Then():
                        alone = _apart(
                            boxes, rows, (image, box), (first[0], found[0]), overlap[0], centred
                        )
                        with T.If(alone), T.Then():
                            for index, each in enumerate((image, class_, box)):
                                T.buffer_store(rows, each, [found[0], index])
                            T.buffer_store(found, found[0] + 1, [0])

    return prim_func(body)


def _apart(
    boxes: Any, rows: Any, at: tuple[Any, Any], kept: tuple[Any, Any], overlap: Any, centred: bool
) -> Any:
    """Emits what looks at the boxes that are kept; returns whether a box is apart from them all."""
    alone = T.alloc_buffer((1,), "bool")
    T.buffer_store(alone, tirx.const(True, "bool"), [0])
    with T.serial(*kept) as other:
        better = _box(boxes, at[0], rows[other, 2], centred)
        apart = tirx.Not(_overlap(better, _box(boxes, *at, centred), overlap))
        T.buffer_store(alone, tirx.all(alone[0], apart), [0])
    return alone[0]


def _box(boxes: Any, image: Any, box: Any, centred: bool) -> _Box:
    a, b, c, d = (boxes[image, box, index] for index in range(4))
    if centred:
        half = [each / tirx.const(2.0, _REAL) for each in (c, d)]
        return a - half[0], a + half[0], b - half[1], b + half[1]
    return tirx.min(a, c), tirx.max(a, c), tirx.min(b, d), tirx.max(b, d)


def _overlap(one: _Box, other: _Box, most: Any) -> Any:
    """True where two boxes share more of what they cover together; those without an area do not."""
    sides = [tirx.min(one[i + 1], other[i + 1]) - tirx.max(one[i], other[i]) for i in (0, 2)]
    none = tirx.const(0.0, _REAL)
    areas = [(b - a) * (d - c) for a, b, c, d in (one, other)]
    shared = sides[0] * sides[1]
    together = areas[0] + areas[1] - shared
    meet = [each > none for each in (*sides, *areas, together)]
    return tirx.all(*meet, shared / together > most)


SUPPRESSION: Mapping[str, Composition] = {"NonMaxSuppression": _suppression}


# Col2Im: an image from the windows that were cut out of it, which are added where they overlap.


def _col2im(context: CompositionContext) -> Sequence[Expr]:
    """Of every pixel the sum of the windows' elements that lie on it.

    Which windows these are follows from the pixel, so that nothing is scattered.
    Source: ONNX Col2Im-18.
    """
    image, block = (_sizes(context, index) for index in (1, 2))
    rank = len(image)
    if len(block) != rank:
        raise NoRow(f"its image has {rank} axes, its blocks {len(block)}")
    strides, dilations = (context.onnx.ints(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = context.onnx.ints("pads", (0,) * (2 * rank))
    ends = [size + pads[axis] + pads[rank + axis] for axis, size in enumerate(image)]
    counts = [
        window_count(end - span(tap, dilation), stride)
        for end, tap, dilation, stride in zip(ends, block, dilations, strides, strict=True)
    ]
    columns = wide(context, context.arg(0))
    batch, rows, given = context.extents(columns)
    channels = rows // math.prod(block)
    context.emitter.need_same(rows, channels * math.prod(block))
    context.emitter.need_same(given, math.prod(counts))
    windows = context("reshape", columns, [batch, channels, *block, *counts])

    def fold(data: te.Tensor) -> te.Tensor:
        sizes, steps = data.shape[2 : 2 + rank], data.shape[2 + rank :]

        def pixel(*at: Any) -> Any:
            taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in sizes]
            ahead = [
                place + pads[axis] - taps[axis].var * dilations[axis]
                for axis, place in enumerate(at[2:])
            ]
            first = [tirx.floordiv(n, stride) for n, stride in zip(ahead, strides, strict=True)]
            within = tirx.all(*(
                test
                for n, window, stride, count in zip(ahead, first, strides, steps, strict=True)
                for test in (tirx.floormod(n, stride) == 0, window >= 0, window < count)
            ))  # fmt: skip
            element = data(*at[:2], *(tap.var for tap in taps), *first)
            zero = tirx.const(0, data.dtype)
            return te.sum(tirx.if_then_else(within, element, zero), axis=taps)

        return stage([*data.shape[:2], *image], pixel, name="pixels")

    return [context.cast(loops(context, "col2im", fold, windows), context.dtype(context.arg(0)))]


def _sizes(context: CompositionContext, index: int) -> list[Any]:
    """Returns the extents that an operand lists: numbers, or variables of the function."""
    known = context.constant_ints(index)
    return context.bound(context.integers(index)) if known is None else list(known)


FOLDING: Mapping[str, Composition] = {"Col2Im": _col2im}
"""By the operator's name in ONNX's own domain."""


_OWN_MODES = 16
"""The opset since which half a pixel is subtracted by default."""


@dataclass(frozen=True, slots=True)
class _RegionAxis:
    """One axis of the regions: how it is cut into bins, and the bins into samples.

    Attributes:
        first: The column of the region's begin; its end is two columns further.
        bins: Bins of the result along the axis.
        samples: Samples of a bin; 0 takes as many as it has pixels.
        scale: What a region's coordinates are multiplied by.
        offset: What is subtracted from them then: half a pixel, or nothing.
    """

    first: int
    bins: int
    samples: int
    scale: float
    offset: float

    def bin(self, rois: te.Tensor, roi: Expr) -> Expr:
        """Returns the length of a bin; without an offset a region has at least one pixel."""
        length = self._at(rois, roi, self.first + 2) - self._at(rois, roi, self.first)
        if not self.offset:
            length = tirx.max(length, tirx.const(1.0, rois.dtype))
        return length / tirx.const(float(self.bins), rois.dtype)

    def count(self, rois: te.Tensor, roi: Expr) -> Expr:
        """Returns how many samples a bin has."""
        if self.samples > 0:
            return tirx.const(self.samples, "int32")
        whole = tirx.ceil(self.bin(rois, roi)).astype("int32")
        return tirx.max(whole, tirx.const(0, "int32"))

    def where(self, rois: te.Tensor, roi: Expr, bin_: Expr, sample: Expr) -> Expr:
        """Returns the coordinate of a sample."""
        kind, length = rois.dtype, self.bin(rois, roi)
        begin = self._at(rois, roi, self.first) + bin_.astype(kind) * length
        within = (sample.astype(kind) + tirx.const(0.5, kind)) * length
        return begin + within / self.count(rois, roi).astype(kind)

    def _at(self, rois: te.Tensor, roi: Expr, column: int) -> Expr:
        scaled: Expr = rois(roi, column) * tirx.const(self.scale, rois.dtype)
        return scaled - tirx.const(self.offset, rois.dtype)


def _neighbours(
    where: Expr, extent: Expr, kind: str
) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """Returns the two pixels beside a coordinate, and their weights; both the last one at it."""
    last = (extent - 1).astype("int32")
    inside = tirx.max(where, tirx.const(0.0, kind))
    low = tirx.min(tirx.min(inside, last.astype(kind)).astype("int32"), last)
    distance = tirx.min(inside, last.astype(kind)) - low.astype(kind)
    return (low, tirx.min(low + 1, last)), (tirx.const(1.0, kind) - distance, distance)


def _outside(where: Expr, extent: Expr, kind: str) -> Expr:
    return tirx.any(where < tirx.const(-1.0, kind), where > extent.astype(kind))


def _roi_align(context: CompositionContext) -> Sequence[Expr]:
    """The mean of a bin's samples, or the greatest weighted pixel beside any of them.

    The text of ONNX leaves open what the maximum is taken of; onnxruntime and ONNX's own reference
    take it of the four products of pixel and weight at each sample, not of the samples.
    """
    onnx = context.onnx
    mode = onnx.string("mode", "avg")
    default = "half_pixel" if onnx.opset >= _OWN_MODES else "output_half_pixel"
    coordinates = onnx.string("coordinate_transformation_mode", default)
    if mode not in ("avg", "max") or coordinates not in ("half_pixel", "output_half_pixel"):
        raise NoRow(f"its mode is {mode}, its coordinates are {coordinates}")
    offset = 0.5 if coordinates == "half_pixel" else 0.0
    ratio, scale = onnx.int_("sampling_ratio", 0), onnx.float_("spatial_scale", 1.0)
    axes = [
        _RegionAxis(first, onnx.int_(name, 1), ratio, scale, offset)
        for first, name in ((1, "output_height"), (0, "output_width"))
    ]
    x, kind = context.arg(0), context.dtype(context.arg(0))
    wide = "float64" if kind == "float64" else "float32"

    def roi_align(data: te.Tensor, rois: te.Tensor, batch: te.Tensor) -> te.Tensor:
        return _pooled(axes, data, rois, batch, mode)

    operands = [context.cast(x, wide), context.cast(context.arg(1), wide), context.arg(2)]
    call = context.emitter.builder.call_te(roi_align, *operands, primfunc_name_hint="roi_align")
    return [context.cast(context.emitter.emit(call), kind)]


def _pooled(
    axes: Sequence[_RegionAxis], data: te.Tensor, rois: te.Tensor, batch: te.Tensor, mode: str
) -> te.Tensor:
    images, channels, *extents = data.shape
    kinds = [data.dtype] * len(axes)
    shape: list[Any] = [rois.shape[0], channels, *(axis.bins for axis in axes)]

    def products(i: Sequence[Any], samples: Sequence[Expr]) -> list[Expr]:
        """Returns the four pixels beside a sample, each times its weight."""
        image = tirx.max(tirx.min(batch(i[0]).astype("int64"), images - 1), 0)
        places = [
            axis.where(rois, i[0], bin_, sample)
            for axis, bin_, sample in zip(axes, i[2:], samples, strict=True)
        ]
        outside = tirx.any(*map(_outside, places, extents, kinds))
        (rows, heights), (columns, widths) = map(_neighbours, places, extents, kinds)
        zero = tirx.const(0.0, data.dtype)
        return [
            tirx.if_then_else(outside, zero, height * width * data(image, i[1], row, column))
            for row, height in zip(rows, heights, strict=True)
            for column, width in zip(columns, widths, strict=True)
        ]

    def reduced(*i: Any) -> Expr:
        samples: Any = [te.reduce_axis((0, axis.count(rois, i[0])), "s") for axis in axes]
        first, second, third, fourth = products(i, [sample.var for sample in samples])
        if mode == "avg":
            return te.sum(first + second + third + fourth, axis=samples)
        greatest = tirx.max(tirx.max(first, second), tirx.max(third, fourth))
        return te.max(greatest, axis=samples)

    total = stage(shape, reduced, name="reduced")

    def element(*i: Any) -> Expr:
        rows, columns = (axis.count(rois, i[0]) for axis in axes)
        count = rows * columns
        some = tirx.max(count, tirx.const(1, "int32")).astype(data.dtype)
        value = total(*i) / some if mode == "avg" else total(*i)
        # a reduction of no elements leaves its result as the memory was
        return tirx.Select(count > 0, value, tirx.const(0.0, data.dtype))

    return stage(shape, element, name="pooled")


REGIONS: Mapping[str, Composition] = {"RoiAlign": _roi_align}


# ---- pooling -------------------------------------------------------------------------------------
# Pools without a row: LpPool, which TVM's importer pads otherwise, and MaxPool with indices.


def _power_pool(context: CompositionContext) -> Sequence[Expr]:
    """``(sum |x|^p)^(1/p)`` over every window, zeros around the data.

    Source: ONNX LpPool-22; p is an integer, 2 where it is left out.
    """
    kernel = context.onnx.ints("kernel_shape", ())
    x = wide(context, context.arg(0))
    shape = context.extents(x)
    spatial = shape[2:]
    if not all(isinstance(extent, int) for extent in spatial):
        raise NoRow("an extent of space is known at run time only")
    window = window_of(context.onnx, kernel)
    pads, strides, dilations = window.pads, window.strides, window.dilations
    if window.same:
        pads = _same_pads(window, spatial)
    out = extents(spatial, kernel, strides, dilations, pads, ceil_mode=_ceil_mode(context, window))

    def total(data: te.Tensor) -> Any:
        taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in kernel]

        def element(*at: Any) -> Any:
            places = [
                at[2 + i] * strides[i] + tap * dilations[i] - pads[i] for i, tap in enumerate(taps)
            ]
            within = tirx.all(*(
                test
                for place, size in zip(places, spatial, strict=True)
                for test in (place >= 0, place < size)
            ))  # fmt: skip
            zero = tirx.const(0.0, data.dtype)
            return te.sum(tirx.if_then_else(within, data(*at[:2], *places), zero), axis=taps)

        return te.compute([*data.shape[:2], *out], element, name="power_sums")

    power = context.onnx.int_("p", 2)
    sums = loops(context, "lp_pool", total, _powers(context, x, power))
    return [context.cast(_root(context, sums, power), context.dtype(context.arg(0)))]


def _same_pads(window: ResolvedWindow, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the pads of SAME_UPPER or SAME_LOWER; below 0 where strides leave elements over.

    onnxruntime (1.32) leaves out as many of the first elements then, halves rounded towards zero.
    """
    begins: list[int] = []
    ends: list[int] = []
    for size, covered, stride in zip(sizes, window.spans(), window.strides, strict=True):
        total = same_padding(size, covered, stride)
        begins.append(int((total if window.auto_pad == "SAME_UPPER" else total + 1) / 2))
        ends.append(total - begins[-1])
    return (*begins, *ends)


def _whole_power_pool(context: CompositionContext) -> Sequence[Expr]:
    """:func:`_power_pool` whose window is all of space."""
    x, power = wide(context, context.arg(0)), context.onnx.int_("p", 2)
    axes = list(range(2, context.rank(x)))
    sums = context("sum", _powers(context, x, power), axes, keepdims=True)
    return [context.cast(_root(context, sums, power), context.dtype(context.arg(0)))]


_MULTIPLIED = 8
"""Powers up to which factors are multiplied one by one."""


def _powers(context: CompositionContext, x: Expr, power: int) -> Expr:
    size = context("abs", x)
    if power == 1:
        return size
    if power > _MULTIPLIED:
        return context("power", size, context.number(power, x))
    product = size
    for _ in range(1, power):
        product = context("multiply", product, size)
    return product


def _root(context: CompositionContext, sums: Expr, power: int) -> Expr:
    if power == 1:
        return sums
    if power == 2:
        return context("sqrt", sums)
    exponent = 1 / power if context.dtype(sums) == "float64" else np.float32(1) / np.float32(power)
    return context("power", sums, context.number(exponent, sums))


def _largest_and_where(context: CompositionContext) -> Sequence[Expr]:
    """MaxPool that also gives where each largest element stands in the flattened operand.

    Of equal ones the first; ``storage_order`` 1 counts the first axis of space fastest.
    Source: ONNX MaxPool-22.
    """
    if not context.asks(1):
        raise NoRow("it has no indices")
    own = context.dtype(context.arg(0))
    x = (
        context.arg(0) if "float" in own else context.cast(context.arg(0), "float32")
    )  # of 8 bits: exact
    spatial = context.static(x)[2:]
    window = window_of(context.onnx, context.onnx.ints("kernel_shape", ()))
    kernel, pads, strides, dilations = window.kernel, window.pads, window.strides, window.dilations
    out = extents(spatial, kernel, strides, dilations, pads, ceil_mode=_ceil_mode(context, window))
    order = range(len(spatial))
    weights = _weights(spatial, order[::-1] if context.onnx.int_("storage_order", 0) else order)
    channels, image = context.static(x)[1], int(np.prod(spatial))

    def pool(data: te.Tensor) -> Any:
        taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in kernel]
        lowest = tirx.min_value(data.dtype)
        later = te.comm_reducer(
            lambda one, other: (
                tirx.if_then_else(other[1] > one[1], other[0], one[0]),
                tirx.if_then_else(other[1] > one[1], other[1], one[1]),
            ),
            lambda at, _: (tirx.const(0, at), lowest),
            name="first_largest",
        )

        def element(*at: Any) -> Any:
            places = [
                at[2 + i] * strides[i] + tap * dilations[i] - pads[i] for i, tap in enumerate(taps)
            ]
            ends = zip(places, spatial, strict=True)
            within = tirx.all(*(test for p, n in ends for test in (p >= 0, p < n)))
            flat = (at[0] * channels + at[1]) * image
            flat = flat + sum(p * weight for p, weight in zip(places, weights, strict=True))
            value = tirx.if_then_else(within, data(*at[:2], *places), lowest)
            return later((tirx.Cast("int64", flat), value), axis=taps)

        return list(te.compute([*data.shape[:2], *out], element, name="max_pool"))

    found = loops(context, "max_pool_with_indices", pool, x)
    value, place = (context.emitter.emit(relax.TupleGetItem(found, index)) for index in (1, 0))
    return [context.cast(value, own), place]


def _ceil_mode(context: CompositionContext, window: ResolvedWindow) -> bool:
    """SAME has a number of windows of its own."""
    return context.onnx.flag("ceil_mode") and not window.same


def _weights(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Returns how far elements lie apart along each axis; the last of ``order`` is the nearest."""
    weights, step = [0] * len(sizes), 1
    for axis in reversed(order):
        weights[axis], step = step, step * sizes[axis]
    return weights


POOLING: Mapping[str, Composition] = {
    "GlobalLpPool": _whole_power_pool, "LpPool": _power_pool, "MaxPool": _largest_and_where,
}  # fmt: skip
