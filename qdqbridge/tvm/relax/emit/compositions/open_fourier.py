"""DFT and STFT whose axis, length or step only the run knows: sums over waves that it computes."""

from __future__ import annotations

import math
from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import CompositionContext, loops


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
