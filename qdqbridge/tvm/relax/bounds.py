"""Bounds of a slice along an open axis that only the run can compare."""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx


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
