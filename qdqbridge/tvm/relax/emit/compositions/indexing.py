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

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite
from qdqbridge.tvm.relax.emit.index_bounds import need_indices

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}
"""Relax's words for ONNX's."""


def _open(site: CompositionSite) -> tuple[Expr, Expr, list[Any], list[Any]]:
    """Returns the data and the indices, and the extents of both.

    Raises:
        NoRow: All of these and the indices are known, and none is 0: TVM's importer computes it.
    """
    data, indices = site.arg(0), site.cast(site.arg(1), "int64")
    extents, places = site.extents(data), site.extents(indices)
    fixed = all(isinstance(extent, int) and extent for extent in (*extents, *places))
    if fixed and site.onnx.operand(1).constant is not None:
        raise NoRow("its extents are known: TVM's importer is told how to bind indices to them")
    return data, indices, extents, places


def _reduction(site: CompositionSite) -> str:
    reduction = _REDUCTIONS.get(site.onnx.string("reduction", "none"))
    if reduction is None:
        raise NoRow("its reduction is unknown")
    return reduction


def _bound(
    site: CompositionSite, data: Expr, indices: Expr, axes: slice, places: Sequence[Any]
) -> Expr:
    """Returns indices within some axes of the data, which have elements where there are any.

    Of several axes, the last axis of the indices has an index of each.
    """
    several = axes.stop - axes.start > 1
    for extent in site.extents(data)[axes]:
        site.scope.some_where_some(extent, places)
    for column, axis in enumerate(range(axes.start, axes.stop)):
        own = indices
        if several:
            bounds = {"begin": [column], "end": [column + 1]}
            own = site("strided_slice", indices, axes=[site.rank(indices) - 1], **bounds)
        need_indices(site.scope, own, data, axis)
    whole = site.number(1, "int64")
    lengths = site("maximum", site.shape_vector(data), whole)  # a division by 0 ends the process
    own = site("strided_slice", lengths, axes=[0], begin=[axes.start], end=[axes.stop])
    return site("floor_mod", indices, own)


def _fitting(site: CompositionSite, updates: Expr, wanted: Sequence[Any]) -> Expr:
    """Returns updates in the shape that they must have."""
    given = site.extents(updates)
    if len(given) != len(wanted):
        raise NoRow(f"its updates have {len(given)} axes, not {len(wanted)}")
    for have, want in zip(given, wanted, strict=True):
        site.scope.need_same(have, want)
    return site("reshape", updates, tuple(wanted))


def _along(site: CompositionSite) -> tuple[Expr, Expr, list[Any], int]:
    """Returns data, bound indices of one axis, their extents, and the axis."""
    data, indices, extents, places = _open(site)
    axis = site.onnx.wrap(site.onnx.int_("axis", 0))
    if len(places) != len(extents):
        raise NoRow(f"its indices have {len(places)} axes, its data {len(extents)}")
    for other, (place, extent) in enumerate(zip(places, extents, strict=True)):
        if other != axis:
            site.scope.need_at_most(place, extent)
    return data, _bound(site, data, indices, slice(axis, axis + 1), places), places, axis


def _gather_elements(site: CompositionSite) -> Sequence[Expr]:
    data, indices, places, axis = _along(site)
    if 0 in places:  # TVM's operator asks for an index
        return [site("zeros", places, site.dtype(data))]
    return [site("gather_elements", data, indices, axis)]


def _scatter_elements(site: CompositionSite) -> Sequence[Expr]:
    reduction, data = _reduction(site), site.arg(0)
    extents, places = site.extents(data), site.extents(site.arg(1))
    axis, rank = site.onnx.wrap(site.onnx.int_("axis", 0)), len(extents)
    if len(places) != rank:
        raise NoRow(f"its indices have {len(places)} axes, its data {rank}")
    for each, (place, extent) in enumerate(zip(places, extents, strict=True)):
        if each != axis and isinstance(place, int) and isinstance(extent, int) and place > extent:
            raise NoRow("its indices are wider than the data along another axis than theirs")
        if each != axis:
            site.scope.need_at_most(place, extent)
    updates = _fitting(site, site.arg(2), places)
    if 0 in places:
        return [data]
    columns: list[Expr] = []
    for each, place in enumerate(places):
        column = site.cast(site.arg(1), "int64")
        if each != axis:
            along = site.along(site.counted(place), each, rank)
            column = site.scope.emit(site.scope.broadcast(along, tuple(places)))
        columns.append(site("expand_dims", column, rank))
    rows = _bound(site, data, site("concat", columns, rank), slice(0, rank), places)
    return [site("scatter_nd", data, rows, updates, reduction)]


def _rows(site: CompositionSite, batch: int) -> tuple[Expr, Expr, list[Any]]:
    """Returns data, bound indices whose rows name places, and the extents of what they name."""
    data, indices, extents, places = _open(site)
    deep = places[-1]
    if not isinstance(deep, int) or not 0 < deep <= len(extents) - batch:
        raise NoRow(f"the rows of its indices have {deep} places, of {len(extents) - batch} axes")
    for place, extent in zip(places[:batch], extents[:batch], strict=True):
        site.scope.need_same(place, extent)
    bound = _bound(site, data, indices, slice(batch, batch + deep), places[:-1])
    return data, bound, [*places[:-1], *extents[batch + deep :]]


def _gather_nd(site: CompositionSite) -> Sequence[Expr]:
    batch = site.onnx.int_("batch_dims", 0)
    data, indices, shape = _rows(site, batch)
    if 0 in shape:
        return [site("zeros", shape, site.dtype(data))]
    return [site("gather_nd", data, indices, batch)]


def _scatter_nd(site: CompositionSite) -> Sequence[Expr]:
    reduction = _reduction(site)
    data, indices, wanted = _rows(site, 0)
    updates = _fitting(site, site.arg(2), wanted)
    if 0 in wanted:
        return [data]
    return [site("scatter_nd", data, indices, updates, reduction)]


INDEXING: Mapping[str, Composition] = {
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
"""By the operator's name in ONNX's own domain."""
