"""Indices that their data do not have: TVM would read elsewhere, so a run ends with an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

_INT = "int64"
INDEXED_EXTENT = "indexed_extent"
"""What the extent is called that says how long an axis needs to be; errors of a run name it."""


def need_indices(
    emitter: RelaxEmitter,
    indices: Expr,
    data: Expr,
    axis: int,
    *,
    label: str = INDEXED_EXTENT,
    from_the_end: bool = True,
) -> None:
    """Ends a run with an error where an index is beyond an axis of the data.

    Args:
        emitter: The function.
        indices: Whole numbers of any shape.
        data: What they are indices of.
        axis: The axis that they go along.
        label: What the error of a run names.
        from_the_end: Negative indices count from there; else there are none.
    """
    count = emitter.extents(data)[axis]
    if 0 in emitter.extents(indices):
        return
    fixed = count if isinstance(count, int) else None

    def rows(places: te.Tensor, *held: te.Tensor) -> te.Tensor:
        own: Any = (
            tirx.const(fixed, _INT) if fixed is not None else held[0].shape[axis].astype(_INT)
        )

        def needed(i: Expr) -> Expr:
            at = places(*_unraveled(i, places.shape)).astype(_INT)
            return tirx.Select(at < 0, -at if from_the_end else own + 1, at + 1)

        total = math.prod(places.shape, start=tirx.const(1, _INT))
        every: Any = te.reduce_axis((0, total + 1), "i")  # one more, so that there is always one

        def most(_: Expr) -> Expr:
            return te.max(tirx.if_then_else(every < total, needed(every), own), axis=every)

        return stage((1,), most, name="rows")

    args = [indices] if fixed is not None else [indices, data]
    made = emitter.emit(emitter.builder.call_te(rows, *args, primfunc_name_hint="rows"))
    (most,) = emitter.bound_vector(made, 1, label)
    emitter.need_same(most, count)


def _unraveled(index: Expr, shape: Sequence[Any]) -> list[Expr]:
    """Returns the indices of an element by its place in order of rows; none of a scalar."""
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return [index, *found] if len(shape) else []
