"""Resize whose scales or sizes only the run knows, or which smooths what it makes smaller.

Every axis is resized by itself: a choice of elements, or a sum of shifted ones with weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.interpolation import open_resize
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext
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
    default = "half_pixel" if context.onnx.opset >= 11 else "asymmetric"
    default = default if context.onnx.op_type == "Resize" else "asymmetric"
    mode = context.onnx.string("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return context("divide", x, scale)
    if mode in ("align_corners", "tf_crop_and_resize"):
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
