"""Operators whose result's extents are operands: known at run time, or constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.qnn.emit.emitter import Expr, tvm_dtype
from qdqbridge.tvm.relax.emit.broadcasting import need_indices
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

# ConstantOfShape and AffineGrid, whose extents are an operand, and SpaceToDepth's other order.


def extents_of(context: CompositionContext, vector: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents of the function."""
    if context.rank(vector) != 1:
        raise NoRow("its extents are no vector")
    (count,) = context.static(vector)
    variables: list[Any] = [tirx.Var(f"size_{i}", "int64") for i in range(count)]
    found = context.emitter.emit(relax.op.tensor_to_shape(vector))
    context.emitter.builder.match_cast(found, relax.ShapeType(variables))
    return variables


def _constant_of_shape(context: CompositionContext) -> Sequence[Expr]:
    dtype, attributes = context.result_dtype(), context.node.record(OpaqueAttrs)
    if dtype.is_small_float or not (dtype.is_integer or dtype.is_float):
        raise NoRow(f"a tensor of {dtype} is filled")
    value = attributes.node.number("value") or 0
    fill = context.emitter.number(np.asarray(value, tvm_dtype(dtype)))
    extents = extents_of(context, context.arg(0))
    return [relax.op.full(relax.ShapeExpr(extents), fill, tvm_dtype(dtype))]


def _space_to_depth(context: CompositionContext) -> Sequence[Expr]:
    """Blocks of space behind each channel (mode CRD, opset 28); TVM's importer has one order."""
    x, size = context.arg(0), context.onnx.int_("blocksize", 1)
    n, c, h, w = context.extents(x)
    split = context("reshape", x, (n, c, h // size, size, w // size, size))
    permuted = context("permute_dims", split, [0, 1, 3, 5, 2, 4])
    return [context("reshape", permuted, (n, c * size * size, h // size, w // size))]


def _affine_grid(context: CompositionContext) -> Sequence[Expr]:
    """Where each pixel of a result looks, from -1 to 1, as a matrix per image says; x comes first.

    An axis of one pixel with ``align_corners`` looks at 1, as in onnxruntime: ONNX divides by 0.
    """
    theta = wide(context, context.arg(0))
    count, axes, columns = context.extents(theta)
    size = context.integers(1)
    if columns != axes + 1 or context.static(size) != (axes + 2,):
        raise NoRow(f"its matrices are of {axes} x {columns}, its size of {context.static(size)}")
    images, _, *space = context.constant_ints(1) or context.bound(size)
    context.emitter.need_same(count, images)
    result = _column(context, theta, axes)
    for column, extent in enumerate(reversed(space)):
        place = context.along(
            _pixels(context, extent, context.dtype(theta)), axes - column, axes + 2
        )
        result = context("add", context("multiply", _column(context, theta, column), place), result)
    return [context.cast(result, context.dtype(context.arg(0)))]


def _column(context: CompositionContext, theta: Expr, column: int) -> Expr:
    """Returns a column of every matrix, with axes of space that broadcast."""
    count, axes, _ = context.extents(theta)
    sliced = context("strided_slice", theta, axes=[2], begin=[column], end=[column + 1])
    return context("reshape", sliced, [count, *[1] * axes, axes])


def _pixels(context: CompositionContext, extent: Any, dtype: str) -> Expr:
    """Returns where pixels are: their middles, or the outer ones at the ends if corners align."""
    aligned, one, two = (
        context.onnx.flag("align_corners"),
        *(context.number(n, "int64") for n in (1, 2)),
    )
    counted = context.counted(extent)
    whole = context.emitter.run_time_extent(counted, 0, "int64")
    below = context("subtract", context("subtract", whole, one), counted)
    parts = context("maximum", context("subtract", whole, one), one) if aligned else whole
    above = context("subtract", parts, context("multiply", below, two))
    top = above if aligned else context("subtract", above, one)
    return context("divide", context.cast(top, dtype), context.cast(parts, dtype))


COMPUTED_SIZES: Mapping[str, Composition] = {
    "AffineGrid": _affine_grid,
    "ConstantOfShape": _constant_of_shape,
    "SpaceToDepth": _space_to_depth,
}


def _runtime_split(context: CompositionContext) -> Sequence[Expr]:
    if not context.has(1) or context.constant_ints(1) is not None:
        raise NoRow("its sizes are known")
    x, sizes = context.arg(0), context.integers(1)
    axis = context.onnx.wrap(context.onnx.int_("axis", 0))
    ends = context.bound(context("cumsum", sizes, 0), "end")
    parts: list[Expr] = []
    begin: Any = 0
    for end in ends:
        parts.append(context("strided_slice", x, axes=[axis], begin=[begin], end=[end]))
        begin = end
    return parts


def _one_hot(context: CompositionContext) -> Sequence[Expr]:
    """Indices beyond the depth are off everywhere; negative ones count from the end."""
    indices, depth = context.cast(context.arg(0), "int64"), context.integers(1)
    rank = context.rank(indices)
    axis = context.onnx.int_("axis", -1)
    axis = axis + rank + 1 if axis < 0 else axis
    constant = context.constant_ints(1) if context.onnx.operand(1).type.dtype.is_integer else None
    (extent,) = constant or tuple(context.bound(depth, "depth"))
    number = context("reshape", depth, ())
    zero = context.number(0, "int64")
    wrapped = context(
        "where", context("less", indices, zero), context("add", indices, number), indices
    )
    each = context.along(context.counted(extent), axis, rank + 1)
    hit = context("equal", context("expand_dims", wrapped, axis), each)
    off, on = (context("reshape", v, ()) for v in context("split", context.arg(2), 2, 0))
    return [context("where", hit, on, off)]


def _hardmax(context: CompositionContext) -> Sequence[Expr]:
    """1 where the largest element is, the first of equal ones, and 0 elsewhere."""
    x, axis = context.arg(0), context.onnx.wrap(context.onnx.int_("axis", -1))
    place = context.cast(context("argmax", x, axis, True), "int64")
    each = context.along(context.counted(context.extents(x)[axis]), axis, context.rank(x))
    return [context.cast(context("equal", each, place), context.dtype(x))]


def _place(context: CompositionContext) -> Sequence[Expr]:
    """ArgMax and ArgMin of a scalar, which onnxruntime takes: the only element is element 0."""
    if context.rank(context.arg(0)):
        raise NoRow("it has an axis")
    return [context.number(0, "int64")]


def _non_zero(context: CompositionContext) -> Sequence[Expr]:
    """The place of a scalar has no axes; Relax's has one."""
    x = context.arg(0)
    if context.rank(x):
        raise NoRow("it has an axis")
    found = x if context.dtype(x) == "bool" else context("not_equal", x, context.number(0, x))
    (count,) = context.bound(context("reshape", context.cast(found, "int64"), (1,)), "count")
    return [context("zeros", (0, count), "int64")]


def _eye_like(context: CompositionContext) -> Sequence[Expr]:
    rows, columns = context.extents(context.arg(0))
    offset, kind = context.onnx.int_("k", 0), str(context.result_dtype())
    if 0 in (rows, columns):  # TVM compares no vectors of nothing
        return [context("zeros", (rows, columns), kind)]
    down = context.along(context.counted(rows), 0, 2)
    right = context.along(context.counted(columns), 1, 2)
    shifted = context("add", down, context.number(offset, "int64"))
    return [context.cast(context("equal", shifted, right), kind)]


def _top_k(context: CompositionContext) -> Sequence[Expr]:
    """The first of all in order; of equal ones those in front are first."""
    known = context.constant_ints(1) if context.has(1) else ()
    x, axis = context.arg(0), context.onnx.wrap(context.onnx.int_("axis", -1))
    extent = context.extents(x)[axis]
    if known == (0,):
        shape = [0 if place == axis else n for place, n in enumerate(context.extents(x))]
        return [context("zeros", shape, kind) for kind in (context.dtype(x), "int64")]
    if known is not None and isinstance(extent, int) and context.dtype(x) in _PICKED:
        raise NoRow("its k is known")
    largest = context.onnx.flag("largest", default=True)
    order = context("argsort", _ordered(context, x), axis, largest, "int64")
    (k,) = known or context.bound(context.integers(1), "k")
    context.emitter.need_at_most(k, extent)
    first = context("strided_slice", order, axes=[axis], begin=[0], end=[k])
    return [context.cast(context("gather_elements", x, first, axis), context.dtype(x)), first]


def _ordered(context: CompositionContext, x: Expr) -> Expr:
    """Returns numbers in the order of those of ``x``, of a type that TVM sorts."""
    kind = context.dtype(x)
    if kind == "uint64":
        return context(
            "bitwise_xor", context.cast(x, "int64"), context.number(np.iinfo("i8").min, "int64")
        )
    return x if kind in _SORTED else context.cast(x, "float32" if "float" in kind else "int64")


_SORTED = ("float32", "float64", "int32", "int64")
_PICKED = (*_SORTED, "float16", "int8", "uint8")
"""Element types that TVM's own topk takes."""


def _accumulated(name: str, neutral: int) -> Composition:
    """Returns a running sum or product; over each axis where only the run knows which."""

    def along(context: CompositionContext, x: Expr, axis: int) -> Expr:
        reverse, exclusive = context.onnx.flag("reverse"), context.onnx.flag("exclusive")
        extents = context.extents(x)
        if reverse:
            x = context("flip", x, axis)
        y = context(name, x, axis, dtype=context.dtype(x))
        if exclusive:
            first = [*extents[:axis], 1, *extents[axis + 1 :]]
            start = context("broadcast_to", context.number(neutral, x), tuple(first))
            y = context("concat", [start, y], axis)  # cut behind it: of nothing stays nothing
            y = context("strided_slice", y, axes=[axis], begin=[0], end=[extents[axis]])
        return context("flip", y, axis) if reverse else y

    def emit(context: CompositionContext) -> Sequence[Expr]:
        x, known = context.arg(0), context.constant_ints(1)
        rank, kind = context.rank(x), context.dtype(x)
        if known is not None:
            return [along(context, x, context.onnx.wrap(known[0]))]
        axis = context("reshape", context.integers(1), ())
        zero = context.number(0, "int64")
        wrapped = context("add", axis, context.number(rank, "int64"))
        axis = context("where", context("less", axis, zero), wrapped, axis)
        y = along(context, x, 0)
        for index in range(1, rank):
            chosen = context("equal", axis, context.number(index, "int64"))
            y = context("where", chosen, along(context, x, index), y)
        return [context.cast(y, kind)]

    return emit


def _compose_dynamic_pad(context: CompositionContext) -> Sequence[Expr]:
    """Each axis is a choice of indices; negative pads crop, and constants fill what is outside."""
    if context.onnx.opset < 11:
        raise NoRow("its pads are attributes")
    known = [context.constant_ints(1) is not None, not context.has(3) or context.constant_ints(3)]
    if all(known) and (not context.has(2) or context.onnx.operand(2).is_constant):
        raise NoRow("its pads are known")
    x, mode = context.arg(0), context.onnx.string("mode", "constant")
    rank = context.rank(x)
    ends = _per_axis(context, rank)
    extents = context.bound(
        context("add", context.shape_vector(x), context("add", *ends)), "padded"
    )
    value = context("reshape", context.arg(2), ()) if context.has(2) else context.number(0, x)
    for axis, extent in enumerate(extents):
        begin = context.element(ends[0], axis)
        x = _padded(
            context, x, axis, context("subtract", context.counted(extent), begin), mode, value
        )
    return [x]


def _per_axis(context: CompositionContext, rank: int) -> tuple[Expr, Expr]:
    """Returns the pads in front of each axis and behind it."""
    pads = context.integers(1)
    count = context.static(pads)[0] // 2
    halves = [
        context("strided_slice", pads, axes=[0], begin=[begin], end=[begin + count])
        for begin in (0, count)
    ]
    if not context.has(3):
        return halves[0], halves[1]
    axes, size = context.integers(3), context.number(rank, "int64")
    each = context.along(context.counted(rank), 0, 2)
    hit = context("equal", each, context.along(context("floor_mod", axes, size), 1, 2))
    chosen = context.cast(hit, "int64")
    first, last = (context("sum", context("multiply", chosen, half), 1) for half in halves)
    return first, last


def _padded(
    context: CompositionContext, x: Expr, axis: int, index: Expr, mode: str, value: Expr
) -> Expr:
    """Returns the elements of ``x`` at positions of an axis that may lie outside."""
    extent = context.element(context.shape_vector(x), axis)
    zero, one = context.number(0, "int64"), context.number(1, "int64")
    last = context("subtract", extent, one)
    bounded = context("maximum", context("minimum", index, last), zero)
    if mode == "constant":
        taken = context("take", x, bounded, axis=axis, mode="clip")
        inside = context(
            "logical_and", context("equal", index, bounded), context("less", index, extent)
        )
        return context("where", context.along(inside, axis, context.rank(x)), taken, value)
    if mode == "wrap":
        bounded = context("floor_mod", index, extent)
    elif mode == "reflect":
        period = context("maximum", context("multiply", last, context.number(2, "int64")), one)
        folded = context("floor_mod", index, period)
        bounded = context("minimum", folded, context("subtract", period, folded))
        bounded = context("minimum", bounded, last)
    return context("take", x, bounded, axis=axis, mode="clip")


SHAPES: Mapping[str, Composition] = {
    "ArgMax": _place,
    "ArgMin": _place,
    "CumProd": _accumulated("cumprod", 1),
    "CumSum": _accumulated("cumsum", 0),
    "EyeLike": _eye_like,
    "Hardmax": _hardmax,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Pad": _compose_dynamic_pad,
    "Split": _runtime_split,
    "TopK": _top_k,
}


# ---- indexing ------------------------------------------------------------------------------------
# Gathering and scattering by what only the run knows: TVM reads and writes wherever indices say.
#
# An index that the data do not have, and what else does not fit them, ends a run with an error.
# Indices are taken modulo the extents that they go along, so that negative ones count from the end,
# and no other memory is touched before. A
# ScatterElements is a ScatterND of every element, whatever is known of its extents: TVM's own takes
# the updates for as wide as the data along the other axes.


# TensorScatter: rows that are written into a cache, each sequence's at a place of its own.


def _tensor_scatter(context: CompositionContext) -> Sequence[Expr]:
    """``present[b, .., (w[b] + t) % n, ..] = update[b, .., t, ..]``, the rest as it was.

    Source: ONNX TensorScatter-24.
    """
    mode = context.onnx.string("mode", "linear")
    if mode not in ("linear", "circular"):
        raise NoRow(f"its mode is '{mode}'")
    past, update = context.arg(0), context.arg(1)
    rank = context.rank(past)
    axis = context.onnx.int_("axis", -2) % rank
    if axis == 0:
        raise NoRow("its axis is that of the batch")
    first = [context.cast(context.arg(2), "int64")] if context.has(2) else []

    def scattered(old: te.Tensor, new: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        extent, length = old.shape[axis], new.shape[axis]

        def element(*i: Expr) -> Expr:
            place = i[axis].astype("int64")
            if starts:
                place = place - starts[0](i[0])
            if mode == "circular":
                place = tirx.floormod(place, extent.astype("int64"))
            inside = tirx.all(place >= 0, place < length.astype("int64"))
            most = length.astype("int64") - 1
            at = tirx.max(tirx.min(place, most), tirx.const(0, "int64"))
            return tirx.if_then_else(inside, new(*i[:axis], at, *i[axis + 1 :]), old(*i))

        return stage(old.shape, element, name="scattered")

    return [loops(context, "tensor_scatter", scattered, past, update, *first)]


CACHES: Mapping[str, Composition] = {"TensorScatter": _tensor_scatter}
"""By the operator's name in ONNX's own domain."""


# ReverseSequence: the first elements of every row, as many as it says, the other way round.


def _reverse_sequence(context: CompositionContext) -> Sequence[Expr]:
    """``y[t, b] = x[length[b] - 1 - t, b]`` below a row's length, else x; any extents may be open.

    A length beyond the extent of time, which onnxruntime refuses, counts as that extent.
    Source: ONNX ReverseSequence-10.
    """
    time, batch = context.onnx.int_("time_axis", 0), context.onnx.int_("batch_axis", 1)
    if sorted((time, batch)) != [0, 1]:
        raise NoRow(f"its axes are {time} and {batch}")

    def reversed_rows(data: te.Tensor, lengths: te.Tensor) -> Any:
        last = tirx.Cast("int64", data.shape[time])

        def element(*at: Any) -> Any:
            step: Any = tirx.Cast("int64", at[time])
            length: Any = tirx.min(lengths(at[batch]), last)
            place = tirx.if_then_else(step < length, length - 1 - step, step)
            return data(*(place if axis == time else index for axis, index in enumerate(at)))

        return te.compute(data.shape, element, name="reversed_rows")

    lengths = context.cast(context.arg(1), "int64")
    return [loops(context, "reverse_sequence", reversed_rows, context.arg(0), lengths)]


REVERSAL: Mapping[str, Composition] = {"ReverseSequence": _reverse_sequence}


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}
"""Relax's words for ONNX's."""


def _open(context: CompositionContext) -> tuple[Expr, Expr, list[Any], list[Any]]:
    """Returns the data and the indices, and the extents of both.

    Raises:
        NoRow: All of these and the indices are known, and none is 0: TVM's importer computes it.
    """
    data, indices = context.arg(0), context.cast(context.arg(1), "int64")
    extents, places = context.extents(data), context.extents(indices)
    fixed = all(isinstance(extent, int) and extent for extent in (*extents, *places))
    if fixed and context.onnx.operand(1).constant is not None:
        raise NoRow("its extents are known: TVM's importer is told how to bind indices to them")
    return data, indices, extents, places


def _reduction(context: CompositionContext) -> str:
    reduction = _REDUCTIONS.get(context.onnx.string("reduction", "none"))
    if reduction is None:
        raise NoRow("its reduction is unknown")
    return reduction


def _bound(
    context: CompositionContext, data: Expr, indices: Expr, axes: slice, places: Sequence[Any]
) -> Expr:
    """Returns indices within some axes of the data, which have elements where there are any.

    Of several axes, the last axis of the indices has an index of each.
    """
    several = axes.stop - axes.start > 1
    for extent in context.extents(data)[axes]:
        context.emitter.some_where_some(extent, places)
    for column, axis in enumerate(range(axes.start, axes.stop)):
        own = indices
        if several:
            bounds = {"begin": [column], "end": [column + 1]}
            own = context("strided_slice", indices, axes=[context.rank(indices) - 1], **bounds)
        need_indices(context.emitter, own, data, axis)
    whole = context.number(1, "int64")
    lengths = context(
        "maximum", context.shape_vector(data), whole
    )  # a division by 0 ends the process
    own = context("strided_slice", lengths, axes=[0], begin=[axes.start], end=[axes.stop])
    return context("floor_mod", indices, own)


def _fitting(context: CompositionContext, updates: Expr, wanted: Sequence[Any]) -> Expr:
    """Returns updates in the shape that they must have."""
    given = context.extents(updates)
    if len(given) != len(wanted):
        raise NoRow(f"its updates have {len(given)} axes, not {len(wanted)}")
    for have, want in zip(given, wanted, strict=True):
        context.emitter.need_same(have, want)
    return context("reshape", updates, tuple(wanted))


def _along(context: CompositionContext) -> tuple[Expr, Expr, list[Any], int]:
    """Returns data, bound indices of one axis, their extents, and the axis."""
    data, indices, extents, places = _open(context)
    axis = context.onnx.wrap(context.onnx.int_("axis", 0))
    if len(places) != len(extents):
        raise NoRow(f"its indices have {len(places)} axes, its data {len(extents)}")
    for other, (place, extent) in enumerate(zip(places, extents, strict=True)):
        if other != axis:
            context.emitter.need_at_most(place, extent)
    return data, _bound(context, data, indices, slice(axis, axis + 1), places), places, axis


def _gather_elements(context: CompositionContext) -> Sequence[Expr]:
    data, indices, places, axis = _along(context)
    if 0 in places:  # TVM's operator asks for an index
        return [context("zeros", places, context.dtype(data))]
    return [context("gather_elements", data, indices, axis)]


def _scatter_elements(context: CompositionContext) -> Sequence[Expr]:
    reduction, data = _reduction(context), context.arg(0)
    extents, places = context.extents(data), context.extents(context.arg(1))
    axis, rank = context.onnx.wrap(context.onnx.int_("axis", 0)), len(extents)
    if len(places) != rank:
        raise NoRow(f"its indices have {len(places)} axes, its data {rank}")
    for each, (place, extent) in enumerate(zip(places, extents, strict=True)):
        if each != axis and isinstance(place, int) and isinstance(extent, int) and place > extent:
            raise NoRow("its indices are wider than the data along another axis than theirs")
        if each != axis:
            context.emitter.need_at_most(place, extent)
    updates = _fitting(context, context.arg(2), places)
    if 0 in places:
        return [data]
    columns: list[Expr] = []
    for each, place in enumerate(places):
        column = context.cast(context.arg(1), "int64")
        if each != axis:
            along = context.along(context.counted(place), each, rank)
            column = context.emitter.emit(context.emitter.broadcast(along, tuple(places)))
        columns.append(context("expand_dims", column, rank))
    rows = _bound(context, data, context("concat", columns, rank), slice(0, rank), places)
    return [context("scatter_nd", data, rows, updates, reduction)]


def _bound_index_rows(context: CompositionContext, batch: int) -> tuple[Expr, Expr, list[Any]]:
    """Returns data, bound indices whose rows name places, and the extents of what they name."""
    data, indices, extents, places = _open(context)
    deep = places[-1]
    if not isinstance(deep, int) or not 0 < deep <= len(extents) - batch:
        raise NoRow(f"the rows of its indices have {deep} places, of {len(extents) - batch} axes")
    for place, extent in zip(places[:batch], extents[:batch], strict=True):
        context.emitter.need_same(place, extent)
    bound = _bound(context, data, indices, slice(batch, batch + deep), places[:-1])
    return data, bound, [*places[:-1], *extents[batch + deep :]]


def _gather_nd(context: CompositionContext) -> Sequence[Expr]:
    batch = context.onnx.int_("batch_dims", 0)
    data, indices, shape = _bound_index_rows(context, batch)
    if 0 in shape:
        return [context("zeros", shape, context.dtype(data))]
    return [context("gather_nd", data, indices, batch)]


def _scatter_nd(context: CompositionContext) -> Sequence[Expr]:
    reduction = _reduction(context)
    data, indices, wanted = _bound_index_rows(context, 0)
    updates = _fitting(context, context.arg(2), wanted)
    if 0 in wanted:
        return [data]
    return [context("scatter_nd", data, indices, updates, reduction)]


INDEXING: Mapping[str, Composition] = {
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
"""By the operator's name in ONNX's own domain."""
