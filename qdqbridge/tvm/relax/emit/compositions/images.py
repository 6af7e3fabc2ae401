"""Resize whose scales or sizes only the run knows, or which smooths what it makes smaller.

Every axis is resized by itself: a choice of elements, or a sum of shifted ones with weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.dialect.resize import open_resize
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    wide,
)
from qdqbridge.tvm.relax.emit.compositions.shapes import extents_of

_REAL = "float32"
_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                "asymmetric")  # fmt: skip
_SIZES = 3


@dataclass(frozen=True, slots=True)
class _ResizedAxis:
    """One axis that is resized.

    Attributes:
        index: Which one.
        length: Its extent, a float32 scalar.
        extent: The same as an extent.
        size: Its extent in the result, a float32 scalar.
        count: The same as an extent.
        scale: By what it is scaled, a float32 scalar.
        roi: Where the region of interest begins and ends, of that axis; empty without one.
    """

    index: int
    length: Expr
    extent: Any
    size: Expr
    count: Any
    scale: Expr
    roi: tuple[Expr, ...]


def _axis_by_axis(context: CompositionContext) -> Sequence[Expr]:
    new = context.onnx.opset >= 11 and context.onnx.op_type == "Resize"
    given = [i for i in range(1, len(context.onnx.operands)) if context.has(i)]
    smooth = context.onnx.flag("antialias")
    if not smooth and all(context.onnx.operand(i).is_constant for i in given):
        raise NoRow("its sizes are known")
    x, kind = context.arg(0), context.dtype(context.arg(0))
    axes = _resized_axes(context, x, new=new)
    mode = context.onnx.string("mode", "nearest")
    y = x if mode == "nearest" else context.cast(x, _REAL)
    for axis in axes:
        where = _coordinates(context, axis)
        if mode == "nearest":
            y = _nearest(context, axis, y, where, new=new)
        elif smooth:
            y = _smoothed(context, axis, y, where, cubic=mode == "cubic")
        else:
            y = (_cubic if mode == "cubic" else _linear)(context, axis, y, where)
    y = _extrapolated(context, axes, y)
    return [_cast_back(context, y, kind)]


def _cast_back(context: CompositionContext, y: Expr, kind: str) -> Expr:
    if "float" in kind or context.dtype(y) == kind:
        return context.cast(y, kind)
    # Cubic weights are negative in places, so that sums leave the type, and what a cast makes of
    # such a float is undefined.
    info, rounded = np.iinfo(kind), context("round", y)
    low, high = context.number(info.min, _REAL), context.number(info.max, _REAL)
    return context.cast(context("minimum", context("maximum", rounded, low), high), kind)


def _resized_axes(context: CompositionContext, x: Expr, *, new: bool) -> list[_ResizedAxis]:
    rank = context.rank(x)
    listed = context.onnx.ints("axes", ())
    chosen = [axis % rank for axis in listed] or list(range(rank))
    places = {axis: place for place, axis in enumerate(chosen)}
    lengths = context.cast(context.shape_vector(x), _REAL)
    vector = _take_axis_lengths(context, lengths, chosen)
    sized = new and context.has(3)
    if sized:
        wanted = context.cast(context.integers(3), _REAL)
        scales, sizes = _of_sizes(context, wanted, vector)
    else:
        scales = context.cast(context("reshape", context.arg(2 if new else 1), (-1,)), _REAL)
        sizes = context("floor", context("multiply", scales, vector))
    counts = context.bound(context.cast(sizes, "int64"), "size")
    roi = context.cast(context.arg(1), _REAL) if new and context.has(1) else None
    crop = context.onnx.string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return [
        _ResizedAxis(
            axis, context.element(lengths, axis), context.extents(x)[axis], context.element(sizes,
                place),
            counts[place], context.element(scales, place),
            () if roi is None or not crop
            # ONNX lists where all axes begin, then where they end.
            else (context.element(roi, place), context.element(roi, len(chosen) + place)),
        )
        for axis, place in places.items()
    ]  # fmt: skip


def _take_axis_lengths(context: CompositionContext, lengths: Expr, axes: list[int]) -> Expr:
    indices = context.number(np.asarray(axes), "int64")
    return context("take", lengths, indices, axis=0, mode="clip")


def _of_sizes(context: CompositionContext, wanted: Expr, lengths: Expr) -> tuple[Expr, Expr]:
    """Returns scales and sizes, those of one scale where the aspect ratio is kept."""
    scales = context("divide", wanted, lengths)
    policy = context.onnx.string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, wanted
    chosen = context("min" if policy == "not_larger" else "max", scales)
    half, product = context.number(0.5, _REAL), context("multiply", chosen, lengths)
    sizes = context("floor", context("add", product, half))  # halves go up
    return context("broadcast_to", chosen, tuple(context.extents(scales))), sizes


def _coordinates(context: CompositionContext, axis: _ResizedAxis) -> Expr:
    """Returns where each element of the result lies in the input, as float32."""
    x, scale, size, length = context.counted(axis.count, _REAL), axis.scale, axis.size, axis.length
    half, one, zero = (context.number(n, _REAL) for n in (0.5, 1.0, 0.0))
    # Resize 10 and Upsample had no choice: they are asymmetric.
    default = "half_pixel" if context.onnx.opset >= 11 else "asymmetric"
    default = default if context.onnx.op_type == "Resize" else "asymmetric"
    mode = context.onnx.string("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return context("divide", x, scale)
    if mode in ("align_corners", "tf_crop_and_resize"):
        # One element has no steps to divide by, and lies at the first place.
        steps = context("maximum", context("subtract", size, one), one)
        last = context("subtract", length, one)
        if mode == "align_corners":
            return context("divide", context("multiply", x, last), steps)
        start, end = axis.roi
        span = context("multiply", context("subtract", end, start), last)
        spread = context("divide", context("multiply", x, span), steps)
        single = context("multiply", half, context("multiply", context("add", start, end), last))
        many = context("add", context("multiply", start, last), spread)
        return context("where", context("greater", size, one), many, single)
    centre = context("add", x, half)
    if mode == "tf_half_pixel_for_nn":
        return context("divide", centre, scale)
    plain = context("subtract", context("divide", centre, scale), half)
    if mode == "pytorch_half_pixel":
        return context("where", context("greater", size, one), plain, zero)
    if mode == "half_pixel_symmetric":
        adjustment = context("divide", size, context("multiply", scale, length))
        middle = context("multiply", length, half)
        return context(
            "add", context("multiply", middle, context("subtract", one, adjustment)), plain
        )
    return plain


def _taken(context: CompositionContext, axis: _ResizedAxis, x: Expr, index: Expr) -> Expr:
    """Returns the elements at whole float32 positions, those beyond an end being the last one."""
    last = context("subtract", axis.length, context.number(1.0, _REAL))
    bounded = context("maximum", context("minimum", index, last), context.number(0.0, _REAL))
    return context("take", x, context.cast(bounded, "int64"), axis=axis.index, mode="clip")


def _nearest(
    context: CompositionContext, axis: _ResizedAxis, x: Expr, where: Expr, *, new: bool
) -> Expr:
    mode = context.onnx.string("nearest_mode", "round_prefer_floor")
    half = context.number(0.5, _REAL)
    if not new:  # what shrinks takes the next one, what grows the one before
        smaller = context("less", axis.scale, context.number(1.0, _REAL))
        index = context("where", smaller, context("ceil", where), context("floor", where))
    elif mode in ("floor", "ceil"):
        index = context(mode, where)
    # Halves go down here and up below, whatever a host's own rounding does with them.
    elif mode == "round_prefer_floor":
        index = context("ceil", context("subtract", where, half))
    else:
        index = context("floor", context("add", where, half))
    return _taken(context, axis, x, index)


def _weighted(
    context: CompositionContext, axis: _ResizedAxis, x: Expr, taps: list[tuple[Expr, Expr]]
) -> Expr:
    """Returns the sum of shifted elements with their weights."""
    total: Expr | None = None
    for index, weight in taps:
        factor = context.along(weight, axis.index, context.rank(x))
        term = context("multiply", _taken(context, axis, x, index), factor)
        total = term if total is None else context("add", total, term)
    assert total is not None
    return total


def _linear(context: CompositionContext, axis: _ResizedAxis, x: Expr, where: Expr) -> Expr:
    one, zero = context.number(1.0, _REAL), context.number(0.0, _REAL)
    last = context("subtract", axis.length, one)
    bounded = context("maximum", context("minimum", where, last), zero)
    # Of the last element the next one is beyond the end; it has the weight 0.
    low = context("floor", bounded)
    part = context("subtract", bounded, low)
    taps = [(low, context("subtract", one, part)), (context("add", low, one), part)]
    return _weighted(context, axis, x, taps)


def _keys(context: CompositionContext, distance: Expr, a: float) -> Expr:
    """Returns Keys' cubic convolution kernel at a distance."""

    def polynomial(*factors: float) -> Expr:
        total = context.number(factors[0], _REAL)
        for factor in factors[1:]:
            total = context("add", context("multiply", total, t), context.number(factor, _REAL))
        return total

    t = context("abs", distance)
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = context(
        "where", context("less", t, context.number(2.0, _REAL)), far, context("zeros_like", far)
    )
    return context("where", context("less_equal", t, context.number(1.0, _REAL)), near, outer)


def _cubic(context: CompositionContext, axis: _ResizedAxis, x: Expr, where: Expr) -> Expr:
    floor, one = context("floor", where), context.number(1.0, _REAL)
    a = context.onnx.float_("cubic_coeff_a", -0.75)
    taps: list[tuple[Expr, Expr]] = []
    # Unlike that of linear ones the place is not bounded: beyond an end the weights go on, of
    # elements that are all the last one.
    for offset in (-1.0, 0.0, 1.0, 2.0):
        index = context("add", floor, context.number(offset, _REAL))
        weight = _keys(context, context("subtract", where, index), a)
        taps.append((index, weight))
    if context.onnx.flag("exclude_outside"):
        last = context("subtract", axis.length, one)
        kept = [(i, _inside(context, i, w, last)) for i, w in taps]
        whole = kept[0][1]
        for _, weight in kept[1:]:
            whole = context("add", whole, weight)
        taps = [(index, context("divide", weight, whole)) for index, weight in kept]
    return _weighted(context, axis, x, taps)


def _inside(context: CompositionContext, index: Expr, weight: Expr, last: Expr) -> Expr:
    zero = context.number(0.0, _REAL)
    after, before = context("greater_equal", index, zero), context("less_equal", index, last)
    within = context("logical_and", after, before)
    return context("where", within, weight, context("zeros_like", weight))


def _smoothed(
    context: CompositionContext, axis: _ResizedAxis, x: Expr, where: Expr, *, cubic: bool
) -> Expr:
    """Returns a product with a matrix: kernels as wide as the steps of what shrinks.

    A kernel reaches no further than two lengths beyond an end; what lies there is the last element.
    """
    one, zero = context.number(1.0, _REAL), context.number(0.0, _REAL)
    extent, length = axis.extent, axis.length
    # Two lengths before the input, its own, and two behind it.
    reach = context("subtract", context.counted(5 * extent, _REAL),
                 context("multiply", length, context.number(2.0, _REAL)))  # fmt: skip
    each, centre = context.along(reach, 1, 2), context.along(where, 0, 2)
    scale = context("minimum", axis.scale, one)
    distance = context("multiply", context("subtract", each, centre), scale)
    if cubic:
        weight = _keys(context, distance, context.onnx.float_("cubic_coeff_a", -0.75))
    else:
        weight = context("maximum", context("subtract", one, context("abs", distance)), zero)
    if context.onnx.flag("exclude_outside"):
        weight = _inside(context, each, weight, context("subtract", length, one))
    weight = context("divide", weight, context("sum", weight, 1, keepdims=True))
    last = context("subtract", length, one)
    nearest = context("maximum", context("minimum", reach, last), zero)
    hit = context(
        "equal", context.along(nearest, 0, 2), context.along(context.counted(extent, _REAL), 1, 2)
    )
    matrix = context("matmul", weight, context.cast(hit, _REAL))
    rank = context.rank(x)
    order = [i for i in range(rank) if i != axis.index] + [axis.index]
    back = [order.index(i) for i in range(rank)]
    product = context(
        "matmul", context("permute_dims", x, order), context("permute_dims", matrix, [1, 0])
    )
    return context("permute_dims", product, back)


def _extrapolated(context: CompositionContext, axes: list[_ResizedAxis], y: Expr) -> Expr:
    """Returns what a crop has where it reaches beyond the input."""
    value = context.number(context.onnx.float_("extrapolation_value", 0.0), y)
    for axis in axes:
        if axis.roi:
            where = _coordinates(context, axis)
            last = context("subtract", axis.length, context.number(1.0, _REAL))
            within = context(
                "logical_and", context("greater_equal", where, context.number(0.0, _REAL)),
                context("less_equal", where, last),
            )  # fmt: skip
            y = context("where", context.along(within, axis.index, context.rank(y)), y, value)
    return y


def _to_sizes(context: CompositionContext) -> Sequence[Expr]:
    """Resize to sizes of run time: batch and channels stay, which is checked where it matters."""
    onnx, x = context.onnx, context.arg(0)
    mode = onnx.string("mode", "nearest")
    coordinates = onnx.string("coordinate_transformation_mode", "half_pixel")
    policy = onnx.string("keep_aspect_ratio_policy", "stretch")
    rank = context.emitter.rank(x)
    if len(context.node.inputs) <= _SIZES or onnx.optional(_SIZES) is None or onnx.opset < 11:
        raise NoRow("its scales are known at run time only")
    if onnx.operand(_SIZES).constant is not None or onnx.ints("axes", None) is not None:
        raise NoRow("it resizes some axes")
    if coordinates not in _COORDINATES or policy != "stretch" or onnx.flag("antialias"):
        raise NoRow("it crops, smooths or keeps an aspect ratio")
    if mode != "nearest" and rank not in (3, 4, 5):
        raise NoRow(f"it interpolates {rank} axes")
    attributes = ResizeAttrs(
        mode, coordinates, onnx.string("nearest_mode", "round_prefer_floor"), None, (1,) * rank,
        cubic_coeff_a=onnx.float_("cubic_coeff_a", -0.75),
        exclude_outside=mode == "cubic" and onnx.flag("exclude_outside"),
    )  # fmt: skip
    dtype = context.emitter.dtype(x)
    if dtype not in ("float32", "float16"):
        raise NoRow(f"it resizes {dtype}")
    extents = extents_of(context, context.arg(_SIZES))
    if mode != "nearest":  # which axes are interpolated depends on which are resized
        for axis in range(2):
            context.emitter.need_same(extents[axis], context.emitter.extents(x)[axis])

    def resize(data: te.Tensor, zero: te.Tensor) -> te.Tensor:
        return open_resize(attributes, data, extents, zero)

    fence = context.emitter.number(np.zeros(2, np.int32))
    real = context.emitter.cast(x, "float32")
    call = context.emitter.builder.call_te(resize, real, fence, primfunc_name_hint="resize")
    return [context.emitter.cast(context.emitter.emit(call), dtype)]


def _resize(context: CompositionContext) -> Sequence[Expr]:
    """Emits one kernel where that knows how, else a choice or a sum for each axis."""
    with suppress(NoRow):
        return _to_sizes(context)
    return _axis_by_axis(context)


IMAGES: Mapping[str, Composition] = {"Resize": _resize, "Upsample": _resize}


# ---- DFT and STFT, as products with the matrix of their waves ------------------------------------
# onnxruntime 1.32 takes a half spectrum that is inverted for one of another length where it has not
# the elements that the length asks for; ONNX's reference cuts it, or adds zeros, as here.


# DFT and STFT whose axis, length or step only the run knows: sums over waves that it computes.


def dft_of_run_time(
    context: CompositionContext, x: Expr, axis: Expr, length: Expr | None, *, inverse: bool,
    onesided: bool,
) -> Expr:  # fmt: skip
    """Returns the DFT along an axis, a vector of one integer, of a length that may be another.

    The data are taken as what lies before the axis, the axis, and what lies behind it.
    """
    *others, parts = context.extents(x)
    rank, one = len(others), context.number([1], "int64")
    whole = context.shape_vector(x)
    shape = context("strided_slice", whole, axes=[0], begin=[0], end=[rank])
    negative = context("less", axis, context.number([0], "int64"))
    ends = context("add", axis, context.number([rank + 1], "int64"))
    axis, places = context("where", negative, ends, axis), context.counted(rank)
    along = context("equal", places, axis)
    given = context(
        "sum", context("where", along, shape, context.number([0], "int64")), keepdims=True
    )
    before, behind = (
        context("prod", context("where", context(side, places, axis), shape, one), keepdims=True)
        for side in ("less", "greater")
    )
    if length is None:
        twice = context("multiply", context("subtract", given, one), context.number([2], "int64"))
        length = twice if inverse and onesided else given
    outer, signal, inner, waves = context.bound(
        context("concat", [before, given, behind, length], 0)
    )
    rows = context("reshape", x, [outer, signal, inner, parts])
    made = spectrum(context, rows, waves, inverse=inverse, onesided=onesided)
    *_, count, _, results = context.extents(made)
    found = context.shape_vector(context("zeros", [count], "int64"))
    results = context.number([results], "int64")
    wanted = context("concat", [context("where", along, found, shape), results], 0)
    return context("reshape", made, context.bound(wanted, "m"))


def frames_of_run_time(
    context: CompositionContext, x: Expr, step: Expr, length: Expr, window: Expr | None
) -> Expr:
    """Returns what lies in each frame: batch, frames, elements, parts."""
    batch, _, parts = context.extents(x)
    one = context.number([1], "int64")
    given = context("strided_slice", context.shape_vector(x), axes=[0], begin=[1], end=[2])
    rest = context("floor_divide", context("subtract", given, length), step)
    count, elements = context.bound(context("concat", [context("add", rest, one), length], 0))
    starts = context("reshape", context("multiply", context.counted(count), step), [count, 1])
    taken = context("add", starts, context("reshape", context.counted(elements), [1, elements]))
    flat = context("reshape", taken, [count * elements])
    frames = context("take", x, flat, axis=1, mode="clip")
    frames = context("reshape", frames, [batch, count, elements, parts])
    if window is None:
        return frames
    each = context("reshape", context.cast(window, context.dtype(x)), [1, 1, elements, 1])
    return context("multiply", frames, each)


def spectrum(
    context: CompositionContext, rows: Expr, length: Any, *, inverse: bool, onesided: bool
) -> Expr:
    """Returns the sums over the second axis of four, of which the last has real and imaginary part.

    Half a spectrum that is inverted has real results.
    """
    half = tirx.floordiv(length, 2) + 1
    mirrored = inverse and onesided
    count = half if onesided and not inverse else length

    def transform(data: te.Tensor) -> te.Tensor:
        outer, given, inner, parts = data.shape
        kind, zero = data.dtype, tirx.const(0.0, data.dtype)
        used = tirx.min(given, half if mirrored else length)

        def turned(function: Any) -> te.Tensor:
            def value(at: Any) -> Any:
                turns = at.astype("float64") * tirx.const(2 * math.pi, "float64")
                return function(turns / length.astype("float64")).astype(kind)

            return stage([length], value, name="waves")

        cosine, sine = turned(tirx.cos), turned(tirx.sin)

        def summed(*at: Any) -> Any:
            row, result, column, part = at
            element: Any = te.reduce_axis((0, used), name="element")
            place = tirx.floormod(result * element.var, length)
            across = sine(place) if inverse else zero - sine(place)
            real = data(row, element.var, column, 0)
            imaginary = data(row, element.var, column, 1) if parts == 2 else zero
            term = real * cosine(place) - imaginary * across
            if mirrored:
                own = tirx.any(element.var == 0, element.var * 2 == length)
                term *= tirx.Select(own, tirx.const(1.0, kind), tirx.const(2.0, kind))
            else:
                other = real * across + imaginary * cosine(place)
                term = tirx.Select(part == 0, term, other)
            return te.sum(term, axis=element)

        total = stage([outer, count, inner, 1 if mirrored else 2], summed, name="sums")
        if not inverse:
            return total
        return stage(total.shape, lambda *at: total(*at) / length.astype(kind), name="means")

    return loops(context, "spectrum", transform, rows)


_AXIS_AS_OPERAND = 20
"""The opset since which the axis is an operand, the last but one by default."""

_LARGEST = 1 << 22
"""Elements of a matrix: those of 1024 complex numbers."""


def _dft(context: CompositionContext) -> Sequence[Expr]:
    """Sums over an axis, each times a wave; ``dft_length`` cuts the axis, or adds zeros to it."""
    x = wide(context, context.arg(0))
    extents, axis = context.extents(x), _dft_axis(context)
    parts = extents[-1]
    if parts not in (1, 2):
        raise NoRow("whether its signal is complex is known at run time only")
    inverse, onesided = context.onnx.flag("inverse"), context.onnx.flag("onesided")
    given = None if axis is None else extents[axis]
    if axis is None or not isinstance(given, int) or not _is_absent_or_constant(context, 1):
        along = context.integers(2) if axis is None else context.number([axis], "int64")
        count = context.integers(1) if context.has(1) else None
        made = dft_of_run_time(context, x, along, count, inverse=inverse, onesided=onesided)
        return [context.cast(made, context.dtype(context.arg(0)))]
    length = _length(context, 2 * (given - 1) if inverse and onesided else given)
    if not length:  # half of a spectrum of one element
        extents[axis], extents[-1] = (1, 2) if onesided and not inverse else (0, 2 - onesided)
        return [context("zeros", extents, context.dtype(context.arg(0)))]
    used = min(given, length // 2 + 1 if inverse and onesided else length)
    waves = (
        _real_inverse(length, used)
        if inverse and onesided
        else _waves(length, used, parts, inverse=inverse)
    )
    if onesided and not inverse:
        waves = waves[..., : length // 2 + 1]
    order = [i for i in range(len(extents) - 1) if i != axis]
    cut = context("strided_slice", x, axes=[axis], begin=[0], end=[used])
    turned = context("permute_dims", cut, [*order, len(extents) - 1, axis])
    made = _summed(context, turned, waves)
    back = list(range(len(order)))
    back.insert(axis, len(order) + 1)
    return [
        context.cast(
            context("permute_dims", made, [*back, len(order)]), context.dtype(context.arg(0))
        )
    ]


def _stft(context: CompositionContext) -> Sequence[Expr]:
    """The DFT of frames of a signal, which begin ``frame_step`` elements from each other."""
    x, step = wide(context, context.arg(0)), context.constant_ints(1)
    batch, given, parts = context.extents(x)
    if parts not in (1, 2):
        raise NoRow("whether its signal is complex is known at run time only")
    window = wide(context, context.arg(2)) if context.has(2) else None
    spans = [given, *(context.extents(window) if window is not None else ())]
    if (
        step is None
        or not _is_absent_or_constant(context, 3)
        or not all(isinstance(n, int) for n in spans)
    ):
        return [context.cast(_open_stft(context, x, window), context.dtype(context.arg(0)))]
    length = context.static(window)[0] if window is not None else _length(context, given, 3)
    count = (given - length) // step[0] + 1
    starts = np.arange(count)[:, None] * step[0] + np.arange(length)
    frames = context("take", x, context.number(starts.reshape(-1), "int64"), axis=1, mode="clip")
    frames = context("reshape", frames, [batch, count, length, parts])
    turned = context("permute_dims", frames, [0, 1, 3, 2])
    if window is not None:
        turned = context("multiply", turned, context.cast(window, context.dtype(x)))
    waves = _waves(length, length, parts, inverse=False)
    if context.onnx.flag("onesided", default=True):
        waves = waves[..., : length // 2 + 1]
    made = context("permute_dims", _summed(context, turned, waves), [0, 1, 3, 2])
    return [context.cast(made, context.dtype(context.arg(0)))]


def _open_stft(context: CompositionContext, x: Expr, window: Expr | None) -> Expr:
    """The same where the step, or a length, is known at run time only."""
    if window is not None:
        length = context.shape_vector(window)
    elif context.has(3):
        length = context.integers(3)
    else:
        length = context("strided_slice", context.shape_vector(x), axes=[0], begin=[1], end=[2])
    frames = frames_of_run_time(context, x, context.integers(1), length, window)
    batch, count, elements, parts = context.extents(frames)
    rows = context("reshape", frames, [batch * count, elements, 1, parts])
    onesided = context.onnx.flag("onesided", default=True)
    made = spectrum(context, rows, elements, inverse=False, onesided=onesided)
    return context("reshape", made, [batch, count, context.extents(made)[1], 2])


def _summed(context: CompositionContext, x: Expr, waves: NDArray[Any]) -> Expr:
    """Returns the products of rows of real and imaginary parts with waves: of each the results."""
    if waves.size > _LARGEST:
        raise NoRow(f"its matrix has {waves.size} elements")
    parts, used, results, count = waves.shape
    others = context.extents(x)[:-2]
    rows = context("reshape", x, [*others, parts * used])
    matrix = context.number(waves.reshape(parts * used, results * count), context.dtype(x))
    return context("reshape", context("matmul", rows, matrix), [*others, results, count])


def _is_absent_or_constant(context: CompositionContext, index: int) -> bool:
    """True where an operand is left out, or is a constant."""
    return not context.has(index) or context.constant_ints(index) is not None


def _dft_axis(context: CompositionContext) -> int | None:
    """Returns the axis; None where only the run knows it."""
    rank = context.rank(context.arg(0))
    if context.onnx.opset < _AXIS_AS_OPERAND:
        return context.onnx.int_("axis", 1) % rank
    if not context.has(2):
        return rank - 2
    axis = context.constant_ints(2)
    return None if axis is None else axis[0] % rank


def _length(context: CompositionContext, default: int, index: int = 1) -> int:
    """Returns how many waves there are, which an operand may say."""
    if not context.has(index):
        return default
    length = context.constant_ints(index)
    if length is None:
        raise NoRow("its length is known at run time only")
    return length[0]


def _angles(length: int, used: int) -> NDArray[Any]:
    """Returns how far each wave has turned at each element."""
    turns = np.outer(np.arange(used), np.arange(length)) % length
    return 2 * math.pi * turns / length


def _waves(length: int, used: int, parts: int, *, inverse: bool) -> NDArray[Any]:
    """Returns what real and imaginary parts of each element are multiplied by for each result."""
    angles = _angles(length, used)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    rows = [np.stack([cosine, sine], 1), np.stack([-sine, cosine], 1)]
    return np.stack(rows[:parts]) / (length if inverse else 1)


def _real_inverse(length: int, used: int) -> NDArray[Any]:
    """The same of the first half of a spectrum whose other half mirrors it, of real results."""
    angles = _angles(length, used)
    index = np.arange(used)[:, None]
    mirrored = np.where((index == 0) | (2 * index == length), 1, 2) / length
    return np.stack([mirrored * np.cos(angles), -mirrored * np.sin(angles)])[:, :, None]


FOURIER: Mapping[str, Composition] = {"DFT": _dft, "STFT": _stft}
