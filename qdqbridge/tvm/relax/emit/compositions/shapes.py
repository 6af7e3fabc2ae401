"""Operators whose result's extents are operands: known at run time, or constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite


def _split(site: CompositionSite) -> Sequence[Expr]:
    if not site.has(1) or site.constant_ints(1) is not None:
        raise NoRow("its sizes are known")
    x, sizes = site.arg(0), site.integers(1)
    axis = site.onnx.wrap(site.onnx.int_("axis", 0))
    ends = site.bound(site("cumsum", sizes, 0), "end")
    parts: list[Expr] = []
    begin: Any = 0
    for end in ends:
        parts.append(site("strided_slice", x, axes=[axis], begin=[begin], end=[end]))
        begin = end
    return parts


def _one_hot(site: CompositionSite) -> Sequence[Expr]:
    """Indices beyond the depth are off everywhere; negative ones count from the end."""
    indices, depth = site.cast(site.arg(0), "int64"), site.integers(1)
    rank = site.rank(indices)
    axis = site.onnx.int_("axis", -1)
    axis = axis + rank + 1 if axis < 0 else axis
    constant = site.constant_ints(1) if site.onnx.operand(1).type.dtype.is_integer else None
    (extent,) = constant or tuple(site.bound(depth, "depth"))
    number = site("reshape", depth, ())
    zero = site.number(0, "int64")
    wrapped = site("where", site("less", indices, zero), site("add", indices, number), indices)
    each = site.along(site.counted(extent), axis, rank + 1)
    hit = site("equal", site("expand_dims", wrapped, axis), each)
    off, on = (site("reshape", v, ()) for v in site("split", site.arg(2), 2, 0))
    return [site("where", hit, on, off)]


def _hardmax(site: CompositionSite) -> Sequence[Expr]:
    """1 where the largest element is, the first of equal ones, and 0 elsewhere."""
    x, axis = site.arg(0), site.onnx.wrap(site.onnx.int_("axis", -1))
    place = site.cast(site("argmax", x, axis, True), "int64")
    each = site.along(site.counted(site.extents(x)[axis]), axis, site.rank(x))
    return [site.cast(site("equal", each, place), site.dtype(x))]


def _place(site: CompositionSite) -> Sequence[Expr]:
    """ArgMax and ArgMin of a scalar, which onnxruntime takes: the only element is element 0."""
    if site.rank(site.arg(0)):
        raise NoRow("it has an axis")
    return [site.number(0, "int64")]


def _non_zero(site: CompositionSite) -> Sequence[Expr]:
    """The place of a scalar has no axes; Relax's has one."""
    x = site.arg(0)
    if site.rank(x):
        raise NoRow("it has an axis")
    found = x if site.dtype(x) == "bool" else site("not_equal", x, site.number(0, x))
    (count,) = site.bound(site("reshape", site.cast(found, "int64"), (1,)), "count")
    return [site("zeros", (0, count), "int64")]


def _eye_like(site: CompositionSite) -> Sequence[Expr]:
    rows, columns = site.extents(site.arg(0))
    offset, kind = site.onnx.int_("k", 0), str(site.result_dtype())
    if 0 in (rows, columns):  # TVM compares no vectors of nothing
        return [site("zeros", (rows, columns), kind)]
    down = site.along(site.counted(rows), 0, 2)
    right = site.along(site.counted(columns), 1, 2)
    shifted = site("add", down, site.number(offset, "int64"))
    return [site.cast(site("equal", shifted, right), kind)]


def _top_k(site: CompositionSite) -> Sequence[Expr]:
    """The first of all in order; of equal ones those in front are first."""
    known = site.constant_ints(1) if site.has(1) else ()
    x, axis = site.arg(0), site.onnx.wrap(site.onnx.int_("axis", -1))
    extent = site.extents(x)[axis]
    if known == (0,):
        shape = [0 if place == axis else n for place, n in enumerate(site.extents(x))]
        return [site("zeros", shape, kind) for kind in (site.dtype(x), "int64")]
    if known is not None and isinstance(extent, int) and site.dtype(x) in _PICKED:
        raise NoRow("its k is known")
    largest = site.onnx.flag("largest", default=True)
    order = site("argsort", _ordered(site, x), axis, largest, "int64")
    (k,) = known or site.bound(site.integers(1), "k")
    site.scope.need_at_most(k, extent)
    first = site("strided_slice", order, axes=[axis], begin=[0], end=[k])
    return [site.cast(site("gather_elements", x, first, axis), site.dtype(x)), first]


def _ordered(site: CompositionSite, x: Expr) -> Expr:
    """Returns numbers in the order of those of ``x``, of a type that TVM sorts."""
    kind = site.dtype(x)
    if kind == "uint64":
        return site("bitwise_xor", site.cast(x, "int64"), site.number(np.iinfo("i8").min, "int64"))
    return x if kind in _SORTED else site.cast(x, "float32" if "float" in kind else "int64")


_SORTED = ("float32", "float64", "int32", "int64")
_PICKED = (*_SORTED, "float16", "int8", "uint8")
"""Element types that TVM's own topk takes."""


def _accumulated(name: str, neutral: int) -> Composition:
    """Returns a running sum or product; over each axis where only the run knows which."""

    def along(site: CompositionSite, x: Expr, axis: int) -> Expr:
        reverse, exclusive = site.onnx.flag("reverse"), site.onnx.flag("exclusive")
        extents = site.extents(x)
        if reverse:
            x = site("flip", x, axis)
        y = site(name, x, axis, dtype=site.dtype(x))
        if exclusive:
            first = [*extents[:axis], 1, *extents[axis + 1 :]]
            start = site("broadcast_to", site.number(neutral, x), tuple(first))
            shifted = site("strided_slice", y, axes=[axis], begin=[0], end=[extents[axis] - 1])
            y = site("concat", [start, shifted], axis)
        return site("flip", y, axis) if reverse else y

    def emit(site: CompositionSite) -> Sequence[Expr]:
        x, known = site.arg(0), site.constant_ints(1)
        rank, kind = site.rank(x), site.dtype(x)
        if known is not None:
            return [along(site, x, site.onnx.wrap(known[0]))]
        axis = site("reshape", site.integers(1), ())
        zero = site.number(0, "int64")
        wrapped = site("add", axis, site.number(rank, "int64"))
        axis = site("where", site("less", axis, zero), wrapped, axis)
        y = along(site, x, 0)
        for index in range(1, rank):
            chosen = site("equal", axis, site.number(index, "int64"))
            y = site("where", chosen, along(site, x, index), y)
        return [site.cast(y, kind)]

    return emit


def _pad(site: CompositionSite) -> Sequence[Expr]:
    """Each axis is a choice of indices; negative pads crop, and constants fill what is outside."""
    if site.onnx.opset < 11:
        raise NoRow("its pads are attributes")
    known = [site.constant_ints(1) is not None, not site.has(3) or site.constant_ints(3)]
    if all(known) and (not site.has(2) or site.onnx.operand(2).is_constant):
        raise NoRow("its pads are known")
    x, mode = site.arg(0), site.onnx.string("mode", "constant")
    rank = site.rank(x)
    ends = _per_axis(site, rank)
    extents = site.bound(site("add", site.shape_vector(x), site("add", *ends)), "padded")
    value = site("reshape", site.arg(2), ()) if site.has(2) else site.number(0, x)
    for axis, extent in enumerate(extents):
        begin = site.element(ends[0], axis)
        x = _padded(site, x, axis, site("subtract", site.counted(extent), begin), mode, value)
    return [x]


def _per_axis(site: CompositionSite, rank: int) -> tuple[Expr, Expr]:
    """Returns the pads in front of each axis and behind it."""
    pads = site.integers(1)
    count = site.static(pads)[0] // 2
    halves = [
        site("strided_slice", pads, axes=[0], begin=[begin], end=[begin + count])
        for begin in (0, count)
    ]
    if not site.has(3):
        return halves[0], halves[1]
    axes, size = site.integers(3), site.number(rank, "int64")
    each = site.along(site.counted(rank), 0, 2)
    hit = site("equal", each, site.along(site("floor_mod", axes, size), 1, 2))
    chosen = site.cast(hit, "int64")
    first, last = (site("sum", site("multiply", chosen, half), 1) for half in halves)
    return first, last


def _padded(site: CompositionSite, x: Expr, axis: int, index: Expr, mode: str, value: Expr) -> Expr:
    """Returns the elements of ``x`` at positions of an axis that may lie outside."""
    extent = site.element(site.shape_vector(x), axis)
    zero, one = site.number(0, "int64"), site.number(1, "int64")
    last = site("subtract", extent, one)
    bounded = site("maximum", site("minimum", index, last), zero)
    if mode == "constant":
        taken = site("take", x, bounded, axis=axis, mode="clip")
        inside = site("logical_and", site("equal", index, bounded), site("less", index, extent))
        return site("where", site.along(inside, axis, site.rank(x)), taken, value)
    if mode == "wrap":
        bounded = site("floor_mod", index, extent)
    elif mode == "reflect":
        period = site("maximum", site("multiply", last, site.number(2, "int64")), one)
        folded = site("floor_mod", index, period)
        bounded = site("minimum", folded, site("subtract", period, folded))
        bounded = site("minimum", bounded, last)
    return site("take", x, bounded, axis=axis, mode="clip")


SHAPES: Mapping[str, Composition] = {
    "ArgMax": _place,
    "ArgMin": _place,
    "CumProd": _accumulated("cumprod", 1),
    "CumSum": _accumulated("cumsum", 0),
    "EyeLike": _eye_like,
    "Hardmax": _hardmax,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Split": _split,
    "TopK": _top_k,
}
