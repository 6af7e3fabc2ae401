"""DFT and STFT whose axis, length or step only the run knows: sums over waves that it computes."""

from __future__ import annotations

import math
from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import CompositionSite, loops


def dft_of_run_time(
    site: CompositionSite, x: Expr, axis: Expr, length: Expr | None, *, inverse: bool,
    onesided: bool,
) -> Expr:  # fmt: skip
    """Returns the DFT along an axis, a vector of one integer, of a length that may be another.

    The data are taken as what lies before the axis, the axis, and what lies behind it.
    """
    *others, parts = site.extents(x)
    rank, one = len(others), site.number([1], "int64")
    whole = site.shape_vector(x)
    shape = site("strided_slice", whole, axes=[0], begin=[0], end=[rank])
    negative = site("less", axis, site.number([0], "int64"))
    ends = site("add", axis, site.number([rank + 1], "int64"))
    axis, places = site("where", negative, ends, axis), site.counted(rank)
    along = site("equal", places, axis)
    given = site("sum", site("where", along, shape, site.number([0], "int64")), keepdims=True)
    before, behind = (
        site("prod", site("where", site(side, places, axis), shape, one), keepdims=True)
        for side in ("less", "greater")
    )
    if length is None:
        twice = site("multiply", site("subtract", given, one), site.number([2], "int64"))
        length = twice if inverse and onesided else given
    outer, signal, inner, waves = site.bound(site("concat", [before, given, behind, length], 0))
    rows = site("reshape", x, [outer, signal, inner, parts])
    made = spectrum(site, rows, waves, inverse=inverse, onesided=onesided)
    *_, count, _, results = site.extents(made)
    found = site.shape_vector(site("zeros", [count], "int64"))
    results = site.number([results], "int64")
    wanted = site("concat", [site("where", along, found, shape), results], 0)
    return site("reshape", made, site.bound(wanted, "m"))


def frames_of_run_time(
    site: CompositionSite, x: Expr, step: Expr, length: Expr, window: Expr | None
) -> Expr:
    """Returns what lies in each frame: batch, frames, elements, parts."""
    batch, _, parts = site.extents(x)
    one = site.number([1], "int64")
    given = site("strided_slice", site.shape_vector(x), axes=[0], begin=[1], end=[2])
    rest = site("floor_divide", site("subtract", given, length), step)
    count, elements = site.bound(site("concat", [site("add", rest, one), length], 0))
    starts = site("reshape", site("multiply", site.counted(count), step), [count, 1])
    taken = site("add", starts, site("reshape", site.counted(elements), [1, elements]))
    flat = site("reshape", taken, [count * elements])
    frames = site("take", x, flat, axis=1, mode="clip")
    frames = site("reshape", frames, [batch, count, elements, parts])
    if window is None:
        return frames
    each = site("reshape", site.cast(window, site.dtype(x)), [1, 1, elements, 1])
    return site("multiply", frames, each)


def spectrum(
    site: CompositionSite, rows: Expr, length: Any, *, inverse: bool, onesided: bool
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

    return loops(site, "spectrum", transform, rows)
