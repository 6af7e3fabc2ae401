"""Products of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.broadcasting import spread
from qdqbridge.relax.emit.compositions.site import Composition, Site


def _matmul_integer(site: Site) -> Sequence[Expr]:
    """``(a - za) @ (b - zb)`` in int32; TVM's importer loses shapes where extents are open."""
    operands = [_shifted(site, 0, 2, axis=0), _shifted(site, 1, 3, axis=1)]
    return [site("matmul", *site.scope.aligned(operands, 2), out_dtype="int32")]


def _shifted(site: Site, index: int, zero_index: int, *, axis: int) -> Expr:
    """Returns an operand less its zero point: one for all, or one for each row or column."""
    wide = site.cast(site.arg(index), "int32")
    if not site.has(zero_index):
        return wide
    shift = site.cast(site.arg(zero_index), "int32")
    extents, whole = site.extents(shift), site.extents(wide)
    if extents not in ([], [1]):
        if len(extents) == 1 and len(whole) > 1:
            column = [1, 1]
            column[axis] = extents[0]
            shift = site("reshape", shift, column)
        shift = site.scope.emit(spread(site.scope, shift, whole))
    return site("subtract", wide, shift)


PRODUCTS: Mapping[str, Composition] = {"MatMulInteger": _matmul_integer}
