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
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.computed_sizes import extents_of
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

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


def _axis_by_axis(site: CompositionSite) -> Sequence[Expr]:
    new = site.onnx.opset >= 11 and site.onnx.op_type == "Resize"
    given = [i for i in range(1, len(site.onnx.operands)) if site.has(i)]
    smooth = site.onnx.flag("antialias")
    if not smooth and all(site.onnx.operand(i).is_constant for i in given):
        raise NoRow("its sizes are known")
    x, kind = site.arg(0), site.dtype(site.arg(0))
    axes = _axes(site, x, new=new)
    mode = site.onnx.string("mode", "nearest")
    y = x if mode == "nearest" else site.cast(x, _REAL)
    for axis in axes:
        where = _coordinates(site, axis)
        if mode == "nearest":
            y = _nearest(site, axis, y, where, new=new)
        elif smooth:
            y = _smoothed(site, axis, y, where, cubic=mode == "cubic")
        else:
            y = (_cubic if mode == "cubic" else _linear)(site, axis, y, where)
    y = _extrapolated(site, axes, y)
    return [_cast_back(site, y, kind)]


def _cast_back(site: CompositionSite, y: Expr, kind: str) -> Expr:
    if "float" in kind or site.dtype(y) == kind:
        return site.cast(y, kind)
    info, rounded = np.iinfo(kind), site("round", y)
    low, high = site.number(info.min, _REAL), site.number(info.max, _REAL)
    return site.cast(site("minimum", site("maximum", rounded, low), high), kind)


def _axes(site: CompositionSite, x: Expr, *, new: bool) -> list[_ResizedAxis]:
    rank = site.rank(x)
    listed = site.onnx.ints("axes", ())
    chosen = [axis % rank for axis in listed] or list(range(rank))
    places = {axis: place for place, axis in enumerate(chosen)}
    lengths = site.cast(site.shape_vector(x), _REAL)
    vector = _vector(site, lengths, chosen)
    sized = new and site.has(3)
    if sized:
        wanted = site.cast(site.integers(3), _REAL)
        scales, sizes = _of_sizes(site, wanted, vector)
    else:
        scales = site.cast(site("reshape", site.arg(2 if new else 1), (-1,)), _REAL)
        sizes = site("floor", site("multiply", scales, vector))
    counts = site.bound(site.cast(sizes, "int64"), "size")
    roi = site.cast(site.arg(1), _REAL) if new and site.has(1) else None
    crop = site.onnx.string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return [
        _ResizedAxis(
            axis, site.element(lengths, axis), site.extents(x)[axis], site.element(sizes, place),
            counts[place], site.element(scales, place),
            () if roi is None or not crop
            else (site.element(roi, place), site.element(roi, len(chosen) + place)),
        )
        for axis, place in places.items()
    ]  # fmt: skip


def _vector(site: CompositionSite, lengths: Expr, axes: list[int]) -> Expr:
    indices = site.number(np.asarray(axes), "int64")
    return site("take", lengths, indices, axis=0, mode="clip")


def _of_sizes(site: CompositionSite, wanted: Expr, lengths: Expr) -> tuple[Expr, Expr]:
    """Returns scales and sizes, those of one scale where the aspect ratio is kept."""
    scales = site("divide", wanted, lengths)
    policy = site.onnx.string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, wanted
    chosen = site("min" if policy == "not_larger" else "max", scales)
    half, product = site.number(0.5, _REAL), site("multiply", chosen, lengths)
    sizes = site("floor", site("add", product, half))  # halves go up
    return site("broadcast_to", chosen, tuple(site.extents(scales))), sizes


def _coordinates(site: CompositionSite, axis: _ResizedAxis) -> Expr:
    """Returns where each element of the result lies in the input, as float32."""
    x, scale, size, length = site.counted(axis.count, _REAL), axis.scale, axis.size, axis.length
    half, one, zero = (site.number(n, _REAL) for n in (0.5, 1.0, 0.0))
    default = "half_pixel" if site.onnx.opset >= 11 else "asymmetric"
    default = default if site.onnx.op_type == "Resize" else "asymmetric"
    mode = site.onnx.string("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return site("divide", x, scale)
    if mode in ("align_corners", "tf_crop_and_resize"):
        steps = site("maximum", site("subtract", size, one), one)
        last = site("subtract", length, one)
        if mode == "align_corners":
            return site("divide", site("multiply", x, last), steps)
        start, end = axis.roi
        span = site("multiply", site("subtract", end, start), last)
        spread = site("divide", site("multiply", x, span), steps)
        single = site("multiply", half, site("multiply", site("add", start, end), last))
        many = site("add", site("multiply", start, last), spread)
        return site("where", site("greater", size, one), many, single)
    centre = site("add", x, half)
    if mode == "tf_half_pixel_for_nn":
        return site("divide", centre, scale)
    plain = site("subtract", site("divide", centre, scale), half)
    if mode == "pytorch_half_pixel":
        return site("where", site("greater", size, one), plain, zero)
    if mode == "half_pixel_symmetric":
        adjustment = site("divide", size, site("multiply", scale, length))
        middle = site("multiply", length, half)
        return site("add", site("multiply", middle, site("subtract", one, adjustment)), plain)
    return plain


def _taken(site: CompositionSite, axis: _ResizedAxis, x: Expr, index: Expr) -> Expr:
    """Returns the elements at whole float32 positions, those beyond an end being the last one."""
    last = site("subtract", axis.length, site.number(1.0, _REAL))
    bounded = site("maximum", site("minimum", index, last), site.number(0.0, _REAL))
    return site("take", x, site.cast(bounded, "int64"), axis=axis.index, mode="clip")


def _nearest(site: CompositionSite, axis: _ResizedAxis, x: Expr, where: Expr, *, new: bool) -> Expr:
    mode = site.onnx.string("nearest_mode", "round_prefer_floor")
    half = site.number(0.5, _REAL)
    if not new:  # what shrinks takes the next one, what grows the one before
        smaller = site("less", axis.scale, site.number(1.0, _REAL))
        index = site("where", smaller, site("ceil", where), site("floor", where))
    elif mode in ("floor", "ceil"):
        index = site(mode, where)
    elif mode == "round_prefer_floor":
        index = site("ceil", site("subtract", where, half))
    else:
        index = site("floor", site("add", where, half))
    return _taken(site, axis, x, index)


def _weighted(
    site: CompositionSite, axis: _ResizedAxis, x: Expr, taps: list[tuple[Expr, Expr]]
) -> Expr:
    """Returns the sum of shifted elements with their weights."""
    total: Expr | None = None
    for index, weight in taps:
        factor = site.along(weight, axis.index, site.rank(x))
        term = site("multiply", _taken(site, axis, x, index), factor)
        total = term if total is None else site("add", total, term)
    assert total is not None
    return total


def _linear(site: CompositionSite, axis: _ResizedAxis, x: Expr, where: Expr) -> Expr:
    one, zero = site.number(1.0, _REAL), site.number(0.0, _REAL)
    last = site("subtract", axis.length, one)
    bounded = site("maximum", site("minimum", where, last), zero)
    low = site("floor", bounded)
    part = site("subtract", bounded, low)
    taps = [(low, site("subtract", one, part)), (site("add", low, one), part)]
    return _weighted(site, axis, x, taps)


def _keys(site: CompositionSite, distance: Expr, a: float) -> Expr:
    """Returns Keys' cubic convolution kernel at a distance."""

    def polynomial(*factors: float) -> Expr:
        total = site.number(factors[0], _REAL)
        for factor in factors[1:]:
            total = site("add", site("multiply", total, t), site.number(factor, _REAL))
        return total

    t = site("abs", distance)
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = site("where", site("less", t, site.number(2.0, _REAL)), far, site("zeros_like", far))
    return site("where", site("less_equal", t, site.number(1.0, _REAL)), near, outer)


def _cubic(site: CompositionSite, axis: _ResizedAxis, x: Expr, where: Expr) -> Expr:
    floor, one = site("floor", where), site.number(1.0, _REAL)
    a = site.onnx.float_("cubic_coeff_a", -0.75)
    taps: list[tuple[Expr, Expr]] = []
    for offset in (-1.0, 0.0, 1.0, 2.0):
        index = site("add", floor, site.number(offset, _REAL))
        weight = _keys(site, site("subtract", where, index), a)
        taps.append((index, weight))
    if site.onnx.flag("exclude_outside"):
        last = site("subtract", axis.length, one)
        kept = [(i, _inside(site, i, w, last)) for i, w in taps]
        whole = kept[0][1]
        for _, weight in kept[1:]:
            whole = site("add", whole, weight)
        taps = [(index, site("divide", weight, whole)) for index, weight in kept]
    return _weighted(site, axis, x, taps)


def _inside(site: CompositionSite, index: Expr, weight: Expr, last: Expr) -> Expr:
    zero = site.number(0.0, _REAL)
    after, before = site("greater_equal", index, zero), site("less_equal", index, last)
    within = site("logical_and", after, before)
    return site("where", within, weight, site("zeros_like", weight))


def _smoothed(
    site: CompositionSite, axis: _ResizedAxis, x: Expr, where: Expr, *, cubic: bool
) -> Expr:
    """Returns a product with a matrix: kernels as wide as the steps of what shrinks.

    A kernel reaches no further than two lengths beyond an end; what lies there is the last element.
    """
    one, zero = site.number(1.0, _REAL), site.number(0.0, _REAL)
    extent, length = axis.extent, axis.length
    reach = site("subtract", site.counted(5 * extent, _REAL),
                 site("multiply", length, site.number(2.0, _REAL)))  # fmt: skip
    each, centre = site.along(reach, 1, 2), site.along(where, 0, 2)
    scale = site("minimum", axis.scale, one)
    distance = site("multiply", site("subtract", each, centre), scale)
    if cubic:
        weight = _keys(site, distance, site.onnx.float_("cubic_coeff_a", -0.75))
    else:
        weight = site("maximum", site("subtract", one, site("abs", distance)), zero)
    if site.onnx.flag("exclude_outside"):
        weight = _inside(site, each, weight, site("subtract", length, one))
    weight = site("divide", weight, site("sum", weight, 1, keepdims=True))
    last = site("subtract", length, one)
    nearest = site("maximum", site("minimum", reach, last), zero)
    hit = site("equal", site.along(nearest, 0, 2), site.along(site.counted(extent, _REAL), 1, 2))
    matrix = site("matmul", weight, site.cast(hit, _REAL))
    rank = site.rank(x)
    order = [i for i in range(rank) if i != axis.index] + [axis.index]
    back = [order.index(i) for i in range(rank)]
    product = site("matmul", site("permute_dims", x, order), site("permute_dims", matrix, [1, 0]))
    return site("permute_dims", product, back)


def _extrapolated(site: CompositionSite, axes: list[_ResizedAxis], y: Expr) -> Expr:
    """Returns what a crop has where it reaches beyond the input."""
    value = site.number(site.onnx.float_("extrapolation_value", 0.0), y)
    for axis in axes:
        if axis.roi:
            where = _coordinates(site, axis)
            last = site("subtract", axis.length, site.number(1.0, _REAL))
            within = site(
                "logical_and", site("greater_equal", where, site.number(0.0, _REAL)),
                site("less_equal", where, last),
            )  # fmt: skip
            y = site("where", site.along(within, axis.index, site.rank(y)), y, value)
    return y


def _to_sizes(site: CompositionSite) -> Sequence[Expr]:
    """Resize to sizes of run time: batch and channels stay, which is checked where it matters."""
    onnx, x = site.onnx, site.arg(0)
    mode = onnx.string("mode", "nearest")
    coordinates = onnx.string("coordinate_transformation_mode", "half_pixel")
    policy = onnx.string("keep_aspect_ratio_policy", "stretch")
    rank = site.scope.rank(x)
    if len(site.node.inputs) <= _SIZES or onnx.optional(_SIZES) is None or onnx.opset < 11:
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
    dtype = site.scope.dtype(x)
    if dtype not in ("float32", "float16"):
        raise NoRow(f"it resizes {dtype}")
    extents = extents_of(site, site.arg(_SIZES))
    if mode != "nearest":  # which axes are interpolated depends on which are resized
        for axis in range(2):
            site.scope.need_same(extents[axis], site.scope.extents(x)[axis])

    def resize(data: te.Tensor, zero: te.Tensor) -> te.Tensor:
        return open_resize(attributes, data, extents, zero)

    fence = site.scope.number(np.zeros(2, np.int32))
    real = site.scope.cast(x, "float32")
    call = site.scope.builder.call_te(resize, real, fence, primfunc_name_hint="resize")
    return [site.scope.cast(site.scope.emit(call), dtype)]


def _resize(site: CompositionSite) -> Sequence[Expr]:
    """Emits one kernel where that knows how, else a choice or a sum for each axis."""
    with suppress(NoRow):
        return _to_sizes(site)
    return _axis_by_axis(site)


IMAGES: Mapping[str, Composition] = {"Resize": _resize, "Upsample": _resize}
