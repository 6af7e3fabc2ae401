"""Operands that broadcast, where only the run can tell which of their extents are 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import sym, te, tirx

from qdqbridge.core.ops.shapes import broadcast_columns
from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.dialect.registration import broadcast_to

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter


Extent = Any
"""A Python int, or a TIR expression."""


def aligned(emitter: RelaxEmitter, exprs: Sequence[Expr], trailing: int = 0) -> list[Expr]:
    """Returns operands whose extents can be shown to broadcast.

    An axis on which an operand has one element, another a symbolic extent that is either the
    common one or 1, is decided at run time: operands are repeated there, and extents that do not
    fit end the run with an error.

    Args:
        emitter: Where operands are emitted.
        exprs: The operands.
        trailing: How many of the last axes do not broadcast.
    """
    shapes = [emitter.extents(expr) for expr in exprs]
    leads = [shape[: len(shape) - trailing] for shape in shapes]
    columns = broadcast_columns(*leads)
    if all(known_to_agree(column) for column in columns):
        return list(exprs)
    whole = [
        emitter.bound_extent(extent) if isinstance(extent, tirx.Select) else extent
        for column in columns
        for extent in (common(column),)
    ]
    return [
        _broadcast_symbolic_axes(emitter, expr, lead, shape[len(lead) :], columns, whole)
        for expr, lead, shape in zip(exprs, leads, shapes, strict=True)
    ]


def joinable(emitter: RelaxEmitter, exprs: Sequence[Expr], axis: int) -> list[Expr]:
    """Returns operands of a concat whose other extents can be shown to be the same.

    Those that have other names end a run with an error where they are not.
    """
    shapes = [emitter.extents(expr) for expr in exprs]
    if len({len(shape) for shape in shapes}) > 1:
        return list(exprs)
    columns = list(zip(*shapes, strict=True))
    wanted = [
        next((extent for extent in column if isinstance(extent, int)), column[0])
        for column in columns
    ]
    result: list[Expr] = []
    for expr, shape in zip(exprs, shapes, strict=True):
        target = [*wanted[:axis], shape[axis], *wanted[axis + 1 :]]
        differ = [(a, b) for a, b in zip(shape, target, strict=True) if not equal(a, b)]
        if any(isinstance(a, int) for a, _ in differ):
            return list(exprs)  # of numbers that do not fit the operator says so itself
        for have, want in differ:
            emitter.need_same(have, want)
        result.append(emitter.emit(broadcast_to(expr, target, implied=True)) if differ else expr)
    return result


def spread(emitter: RelaxEmitter, expr: Expr, shape: Sequence[Extent]) -> Expr:
    """Returns an operand repeated to a shape; extents that do not fit end the run with an error.

    TVM's operator is for those of which it is known whether they are 1.
    """
    own = emitter.extents(expr)
    pairs = list(zip(own, list(shape)[len(shape) - len(own) :], strict=True))
    for have, want in pairs:
        if not (isinstance(have, int) and isinstance(want, int)):
            need_one_or(emitter, have, want)
    if all(isinstance(a, int) or equal(a, b) for a, b in pairs):
        return emitter.op.broadcast_to(expr, list(shape))
    return broadcast_to(expr, list(shape), implied=False)


def fitted(emitter: RelaxEmitter, expr: Expr, shape: Sequence[Extent]) -> Expr:
    """Returns an operand that broadcasts to a shape, which does not grow by it."""
    own = emitter.extents(expr)
    target = [*own]
    wanted = list(shape)[len(shape) - len(own) :] if len(own) <= len(shape) else own
    for axis, (have, want) in enumerate(zip(own, wanted, strict=True)):
        numbers = isinstance(have, int) and isinstance(want, int)
        if not _is(have, 1) and not numbers and not equal(have, want):
            need_one_or(emitter, have, want)
            target[axis] = have if isinstance(have, int) else want
    return expr if target == own else emitter.emit(broadcast_to(expr, target, implied=True))


def need_one_or(emitter: RelaxEmitter, have: Extent, want: Extent) -> None:
    """Ends a run with an error where an extent is neither 1 nor another one."""
    if not _is(have, 1):
        emitter.need_same(have if isinstance(have, int) else chosen(have, want), want)


def known_to_agree(column: Sequence[Extent]) -> bool:
    """True where nothing has to be found out at run time about the extents of one axis."""
    wide = [extent for extent in column if not _is(extent, 1)]
    known = [extent for extent in wide if isinstance(extent, int)]
    if len(known) == len(wide):
        return True  # of numbers that do not fit the operator says so itself
    return all(equal(wide[0], extent) for extent in wide[1:])


def equal(a: Extent, b: Extent) -> bool:
    """True where two extents are certainly the same."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    analyzer: Any = sym.Analyzer()
    return analyzer.can_prove_equal(a, b)


def common(column: Sequence[Extent]) -> Extent:
    """Returns the extent to which those of one axis broadcast, if they do."""
    wide = [extent for extent in column if not _is(extent, 1)]
    wide = [e for e in wide if not any(_caps(e, other) for other in wide)]
    known = [extent for extent in wide if isinstance(extent, int)]
    if known:
        return known[0]
    result: Extent = wide[0] if wide else 1
    for extent in wide[1:]:
        result = chosen(result, extent)
    return result


def _caps(extent: Extent, other: Extent) -> bool:
    """True for ``min(other, k)``: beside ``other`` it fits where it is the same, or k is 1.

    A table cut to a length, positions say, has such an extent.
    """
    if not isinstance(extent, tirx.Min) or isinstance(other, int):
        return False
    sides = [(extent.a, extent.b), (extent.b, extent.a)]
    return any(isinstance(k, tirx.IntImm) and int(k) > 1 and equal(e, other) for e, k in sides)


def chosen(extent: Extent, other: Extent) -> Extent:
    """Returns ``other`` where ``extent`` is 1, else ``extent``."""
    if equal(extent, other):
        return extent
    one = tirx.const(1, "int64")
    return tirx.Select(_expression(extent) == one, _expression(other), _expression(extent))


def _expression(extent: Extent) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def _is(extent: Extent, number: int) -> bool:
    return isinstance(extent, int) and extent == number


def _broadcast_symbolic_axes(
    emitter: RelaxEmitter,
    expr: Expr,
    lead: Sequence[Extent],
    rest: Sequence[Extent],
    columns: Sequence[Sequence[Extent]],
    whole: Sequence[Extent],
) -> Expr:
    """Returns an operand with the common extent on every axis that is not settled."""
    first, target = len(columns) - len(lead), [*lead]
    for axis, own in enumerate(lead):
        if not known_to_agree(columns[first + axis]) and not isinstance(own, int):
            target[axis] = whole[first + axis]
            same = own if _caps(own, target[axis]) else chosen(own, target[axis])
            emitter.need_same(same, target[axis])
    if all(map(equal, target, lead)):
        return expr
    return emitter.emit(broadcast_to(expr, [*target, *rest], implied=True))


# ---- Bounds of a slice along an open axis that only the run can compare


def larger_bound(extent: Any, bound: int, other: int) -> Any:
    """Returns the larger one of two bounds, of which one counts from the end of the axis."""
    return tirx.max(_place(extent, bound), _place(extent, other))


def written_bound(extent: Any, larger: Any, other: int) -> int | None:
    """Returns the bound of which :func:`larger_bound` made an expression; None of another one."""
    if not isinstance(larger, tirx.Max):
        return None
    compare = sym.Analyzer().can_prove_equal
    parts = [part for part in (larger.a, larger.b) if not compare(part, _place(extent, other))]
    if len(parts) != 1:
        return None
    (part,) = parts
    counted = part if isinstance(part, tirx.IntImm) else sym.Analyzer().simplify(part - extent)
    return int(counted) if isinstance(counted, tirx.IntImm) else None


def _place(extent: Any, bound: int) -> Any:
    return tirx.const(bound, "int64") if bound >= 0 else extent + bound


# ---- index bounds --------------------------------------------------------------------------------
# Indices that their data do not have: TVM would read elsewhere, so a run ends with an error.


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
