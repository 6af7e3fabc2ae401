"""Gathering and scattering by what only the run knows: TVM reads and writes wherever indices say.

An index that the data do not have, and what else does not fit them, ends a run with an error.
Indices are taken modulo the extents that they go along, so that negative ones count from the end,
and no other memory is touched before. A
ScatterElements is a ScatterND of every element, whatever is known of its extents: TVM's own takes
the updates for as wide as the data along the other axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, loops
from qdqbridge.tvm.relax.emit.index_bounds import need_indices

# --------------------------------------------------------------------------------------------------
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


# --------------------------------------------------------------------------------------------------
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
            step, length = tirx.Cast("int64", at[time]), tirx.min(lengths(at[batch]), last)
            place = tirx.if_then_else(step < length, length - 1 - step, step)
            return data(*(place if axis == time else index for axis, index in enumerate(at)))

        return te.compute(data.shape, element, name="reversed_rows")

    lengths = context.cast(context.arg(1), "int64")
    return [loops(context, "reverse_sequence", reversed_rows, context.arg(0), lengths)]


REVERSAL: Mapping[str, Composition] = {"ReverseSequence": _reverse_sequence}


# --------------------------------------------------------------------------------------------------

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
