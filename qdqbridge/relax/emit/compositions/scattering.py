"""ScatterND where extents are open: TVM writes wherever indices say, so these are bound first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, CompositionSite

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}
"""Relax's words for ONNX's."""


def _scatter_nd(site: CompositionSite) -> Sequence[Expr]:
    """The data, and updates in the places that the indices' rows name, modulo its extents.

    Source: ONNX ScatterND-18.
    """
    data, indices, updates = (site.arg(index) for index in range(3))
    extents, places = site.extents(data), site.extents(indices)
    deep = places[-1]
    if all(isinstance(extent, int) for extent in (*extents, *places)):
        raise NoRow("its extents are known: TVM's importer is told how to bind indices to them")
    if not isinstance(deep, int) or not 0 < deep <= len(extents):
        raise NoRow(f"the rows of its indices have {deep} places, of {len(extents)} axes")
    reduction = _REDUCTIONS.get(site.onnx.string("reduction", "none"))
    if reduction is None:
        raise NoRow("its reduction is unknown")
    for extent in extents[:deep]:
        site.scope.at_least(extent, 1)
    wanted = [*places[:-1], *extents[deep:]]
    given = site.extents(updates)
    if len(given) != len(wanted):
        raise NoRow(f"its updates have {len(given)} axes, not {len(wanted)}")
    for have, want in zip(given, wanted, strict=True):
        site.scope.need_same(have, want)
    first = site("strided_slice", site.shape_vector(data), axes=[0], begin=[0], end=[deep])
    bound = site("floor_mod", site.cast(indices, "int64"), first)
    fitting = site("reshape", updates, tuple(wanted))
    return [site("scatter_nd", data, bound, fitting, reduction)]


SCATTERING: Mapping[str, Composition] = {"ScatterND": _scatter_nd}
"""By the operator's name in ONNX's own domain."""
