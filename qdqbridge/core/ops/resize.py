"""Resize: nearest, linear and cubic, op by op in the order of onnxruntime's CPU kernels.

Source of the order: onnxruntime/core/providers/cpu/tensor/upsample.cc and upsamplebase.h.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Flow, OnnxOp, Operands, Row, Types
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.core.ops.stored import moved, present

OF_OPSET_11 = "tf_half_pixel_for_nn"
"""Coordinates that no other opset has: ``(x + 0.5) / scale``."""
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    OF_OPSET_11,
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
"""``simple`` is what Resize of opset 10 and Upsample do."""


def sizes(attributes: ResizeAttrs, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the result; products with scales are float32 ones, truncated."""
    if attributes.sizes is not None:
        return attributes.sizes
    assert attributes.scales is not None
    return tuple(
        int(np.float32(scale) * np.float32(size))
        for scale, size in zip(attributes.scales, shape, strict=True)
    )


def scales(attributes: ResizeAttrs, shape: tuple[int, ...]) -> tuple[np.float32, ...]:
    """Returns the float32 scale of every axis."""
    if attributes.scales is not None and attributes.sizes is None:
        return tuple(np.float32(scale) for scale in attributes.scales)
    out = sizes(attributes, shape)
    return tuple(np.float32(o) / np.float32(i) for o, i in zip(out, shape, strict=True))


def coordinates(attributes: ResizeAttrs, shape: tuple[int, ...], axis: int, dtype: Any) -> Array:
    """Returns where every element along ``axis`` lies in the input, in ``dtype``."""
    f = np.dtype(dtype).type
    scale = f(scales(attributes, shape)[axis])
    size, length = sizes(attributes, shape)[axis], shape[axis]
    x, out, inn = np.arange(size).astype(f), f(size), f(length)
    half = f(0.5)
    match attributes.coordinate_transformation_mode:
        # Every mode is the identity there in exact numbers; float32 would not always come back to
        # x.
        case _ if scale == 1:
            return x
        case "asymmetric":
            return x / scale
        case "pytorch_half_pixel":
            return (x + half) / scale - half if size > 1 else np.zeros_like(x)
        case "tf_half_pixel_for_nn":
            return (x + half) / scale
        case "align_corners":
            return np.zeros_like(x) if size == 1 else x * (inn - f(1)) / (out - f(1))
        case "half_pixel_symmetric":
            adjustment = out / (scale * inn)
            offset = (inn / f(2)) * (f(1) - adjustment)
            wide = np.float64(offset) + (x.astype(np.float64) + 0.5) / np.float64(scale) - 0.5
            return wide.astype(f)
        case "tf_crop_and_resize":
            return _cropped(attributes, x, axis, size, length)
        case _:
            return (x + half) / scale - half


def _cropped(attributes: ResizeAttrs, x: Array, axis: int, size: int, length: int) -> Array:
    f = x.dtype.type
    rank = len(attributes.roi) // 2
    start, end, last = f(attributes.roi[axis]), f(attributes.roi[axis + rank]), f(length - 1)
    if size > 1:
        return start * last + (x * (end - start) * last) / f(size - 1)
    return np.full_like(x, 0.5 * float(start + end) * float(last))


def _nearest_index(mode: str, x: Array, *, shrinks: bool) -> Array:
    """Returns the input index next to every coordinate, by the rounding ``mode``."""
    if mode == "simple":
        return np.ceil(x) if shrinks else np.trunc(x)
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    # C's round, half away from zero: np.rint goes to even. Next to a half the sum with 0.5 may
    # round up to the next integer, which the second line takes back.
    away = np.trunc(x + np.copysign(np.float32(0.5), x))
    away = np.where(np.abs(x - np.trunc(x)) < 0.5, np.trunc(x), away)
    if mode == "round_prefer_floor":
        return np.where(x == np.trunc(x) + np.float32(0.5), np.floor(x), away)
    return away


def _nearest(attributes: ResizeAttrs, x: Array) -> Array:
    shape, factors = x.shape, scales(attributes, x.shape)
    for axis, length in enumerate(shape):
        if sizes(attributes, shape)[axis] == length and factors[axis] == 1:
            continue
        where = coordinates(attributes, shape, axis, np.float32)
        index = _nearest_index(
            attributes.nearest_mode, where, shrinks=bool(factors[axis] < 1)
        ).astype(np.int64)
        x = x.take(np.clip(index, 0, length - 1), axis=axis)
    return x


def interpolated_axes(attributes: ResizeAttrs, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes over which linear and cubic modes interpolate, outermost first.

    As in onnxruntime: two axes for ranks 2 and 4 (also channels-last), three for 3 and 5 even
    where their scale is 1 (which changes the rounding, not the value); else the scaled ones.
    """
    factors, rank = scales(attributes, shape), len(shape)
    scaled = tuple(axis for axis in range(rank) if factors[axis] != 1)
    usual = {2: (0, 1), 3: (0, 1, 2), 4: (2, 3), 5: (2, 3, 4)}.get(rank)
    if rank == 4 and factors[1] != 1:
        usual = (1, 2)
    return usual if usual is not None and set(scaled) <= set(usual) else scaled


def _linear(attributes: ResizeAttrs, x: Array) -> Array:
    f = x.dtype.type
    lower: dict[int, Array] = {}
    upper: dict[int, Array] = {}
    weights: dict[int, tuple[Array, Array]] = {}
    axes = interpolated_axes(attributes, x.shape)
    for axis in axes:
        last = x.shape[axis] - 1
        where = coordinates(attributes, x.shape, axis, x.dtype)
        where = np.maximum(f(0), np.minimum(where, f(last)))
        lower[axis] = np.minimum(where.astype(np.int64), last)
        upper[axis] = np.minimum(lower[axis] + 1, last)
        # On the last element both neighbours are one: weights of 0.5 each give it back exactly,
        # those of a distance of 0 would be 0.
        same = lower[axis] == upper[axis]
        to_lower = np.where(same, f(0.5), np.abs(where - lower[axis].astype(f)))
        to_upper = np.where(same, f(0.5), np.abs(where - upper[axis].astype(f)))
        weights[axis] = (laid_along(to_upper, axis, x.ndim), laid_along(to_lower, axis, x.ndim))
    total: Array | None = None
    for corner in itertools.product((0, 1), repeat=len(axes)):
        values, weight = x, None
        # Innermost axis first: weights are multiplied in onnxruntime's order, which float32 shows.
        for axis, side in reversed(list(zip(axes, corner, strict=True))):
            values = values.take((upper if side else lower)[axis], axis=axis)
            factor = weights[axis][side]
            weight = factor if weight is None else weight * factor
        term = values if weight is None else weight * values
        total = term if total is None else total + term
    assert total is not None
    return total


def cubic_weights(s: Array, a: float) -> tuple[Array, Array, Array, Array]:
    """Returns the four weights of Keys' cubic convolution at fraction ``s`` of a pixel."""
    f = s.dtype.type
    a_, one, two = f(a), f(1), f(2)
    a5, a8, a4 = f(5) * a_, f(8) * a_, f(4) * a_

    def near(t: Array) -> Array:
        return ((a_ + two) * t - (a_ + f(3))) * t * t + one

    def far(t: Array) -> Array:
        return ((a_ * t - a5) * t + a8) * t - a4

    return far(s + one), near(s), near(one - s), far(two - s)


def _cubic(attributes: ResizeAttrs, x: Array) -> Array:
    axes = interpolated_axes(attributes, x.shape)
    for position, axis in enumerate(reversed(axes)):
        x = _cubic_axis(attributes, x, axis, innermost=position == 0)
    return x


def _cubic_axis(attributes: ResizeAttrs, x: Array, axis: int, *, innermost: bool) -> Array:
    """Interpolates along one axis.

    onnxruntime divides by the sum of the weights before it multiplies along the innermost axis,
    and after it along the others.
    """
    f, length = x.dtype.type, x.shape[axis]
    where = coordinates(attributes, x.shape, axis, x.dtype)
    floor = np.floor(where)
    weights = list(cubic_weights(where - floor, attributes.cubic_coeff_a))
    taps = [floor.astype(np.int64) + offset for offset in (-1, 0, 1, 2)]
    whole = np.full_like(where, 1)
    if attributes.exclude_outside:
        weights = [
            np.where((tap < 0) | (tap >= length), f(0), weight)
            for tap, weight in zip(taps, weights, strict=True)
        ]
        whole = ((f(0) + weights[0] + weights[1]) + weights[2]) + weights[3]
    total: Array | None = None
    whole = laid_along(whole, axis, x.ndim)
    for tap, weight in zip(taps, weights, strict=True):
        values = x.take(np.clip(tap, 0, length - 1), axis=axis)
        column = laid_along(weight, axis, x.ndim)
        term = column / whole * values if innermost else values * column / whole
        total = term if total is None else total + term
    assert total is not None
    return total


def _outside(attributes: ResizeAttrs, shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns where ``tf_crop_and_resize`` looks outside the input."""
    rank = len(shape)
    outside = np.zeros((1,) * rank, np.bool_)
    for axis in range(rank):
        where = coordinates(attributes, shape, axis, dtype)
        outside = outside | laid_along((where < 0) | (where > shape[axis] - 1), axis, rank)
    return outside


def _resize(attributes: ResizeAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    crops = attributes.coordinate_transformation_mode == "tf_crop_and_resize"
    if not crops and all(scale == 1 for scale in scales(attributes, x.shape)):
        return (x,)  # 0 times an infinite neighbour would be NaN
    if attributes.mode == "nearest":
        y = _nearest(attributes, x)
    else:
        wide = x if x.dtype == np.float64 else x.astype(np.float32)
        y = (_linear if attributes.mode == "linear" else _cubic)(attributes, wide)
    if crops:
        dtype = y.dtype if y.dtype.kind == "f" else np.float32
        value = np.asarray(attributes.extrapolation_value).astype(y.dtype)
        y = np.where(_outside(attributes, x.shape, dtype), value, y)
    return (y.astype(x.dtype, copy=False),)


_move = moved(_resize)


def moves(attributes: ResizeAttrs) -> bool:
    """True where Resize only copies elements, so that input and output share a quantization."""
    crops = attributes.coordinate_transformation_mode == "tf_crop_and_resize"
    return attributes.mode == "nearest" and not crops


def _contract(
    attributes: ResizeAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    return _move(attributes, operands, types, results) if moves(attributes) else None


def with_defaults(attributes: ResizeAttrs) -> ResizeAttrs:
    """Returns the attributes with the defaults of those that the mode does not look at."""
    mode, crop = (
        attributes.mode,
        attributes.coordinate_transformation_mode == "tf_crop_and_resize",
    )
    return replace(
        attributes,
        nearest_mode=attributes.nearest_mode if mode == "nearest" else "round_prefer_floor",
        cubic_coeff_a=attributes.cubic_coeff_a if mode == "cubic" else -0.75,
        exclude_outside=attributes.exclude_outside and mode != "nearest",
        extrapolation_value=attributes.extrapolation_value if crop else 0.0,
        roi=attributes.roi if crop else (),
    )


def _check_resize(node: Node, attributes: ResizeAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    if attributes.mode not in ("nearest", "linear", "cubic"):
        yield f"mode {attributes.mode!r} does not exist"
    if attributes.coordinate_transformation_mode not in COORDINATES:
        yield f"coordinates {attributes.coordinate_transformation_mode!r} do not exist"
    if attributes.mode == "nearest" and attributes.nearest_mode not in NEAREST:
        yield f"nearest mode {attributes.nearest_mode!r} does not exist"
    if attributes.antialias:
        yield "antialias is not supported"
    if attributes.scales is None and attributes.sizes is None:
        yield "neither scales nor sizes are given"
    for name, entries, count in (
        ("scales", attributes.scales, 1),
        ("sizes", attributes.sizes, 1),
        ("roi", attributes.roi or None, 2),
    ):
        if entries is not None and rank is not None and len(entries) != count * rank:
            yield f"{name} has {len(entries)} entries for an input of rank {rank}"
    if not all(0 < scale < math.inf for scale in attributes.scales or ()):
        yield f"scales {attributes.scales} are not all positive and finite"
    crops = attributes.coordinate_transformation_mode == "tf_crop_and_resize"
    if crops and not attributes.roi:
        yield "tf_crop_and_resize needs a region of interest"


RESIZE = Row(
    name="Resize",
    flow=Flow.ROUND,
    attributes=ResizeAttrs,
    compute=_resize,
    contract=_contract,
    data=(0,),
    check=_check_resize,
    onnx=(
        OnnxOp(
            name="Resize",
            operands=dict.fromkeys(("roi", "scales", "sizes"), 10),
            defaults={"roi": (), "scales": None, "sizes": None},
            unsaid=("roi", "scales", "sizes"),
            later={"antialias": 0},
            choices={
                "coordinate_transformation_mode": tuple(c for c in COORDINATES if c != OF_OPSET_11)
            },
            newer={"coordinate_transformation_mode": {"half_pixel_symmetric": 19}},
        ),
        OnnxOp(name="Upsample", read_only=True),
    ),
    qnn="resize{rank}d",
    numerics="nearest: stored values move. linear: weights and the weighted sum of the 4 (8) "
    "corners in float32, innermost axis fastest, each weight multiplied innermost first. cubic: "
    "innermost axis first, four terms added from the left. Coordinates in float32. Against "
    "onnxruntime 1.31: 0 results differ in any mode, not even in the bits of float ones, but where "
    "scales other than 1 keep every extent: onnxruntime hands the input on, ONNX interpolates. "
    "Along an axis of scale 1 that it interpolates, 0 times NaN and infinities is NaN as in "
    "onnxruntime; TVM leaves such an axis alone, as exact arithmetic does.",
)

OPERATORS = (RESIZE,)
