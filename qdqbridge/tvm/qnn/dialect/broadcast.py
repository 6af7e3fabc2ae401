"""NumPy broadcasting of extents that may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import Prim
from qdqbridge.tvm.qnn.dialect.context import CallContext, Extent
from qdqbridge.tvm.qnn.dialect.tir import analyzer, tirx


def _one(extent: Extent) -> bool:
    return _static_extent(extent) == 1


def _static_extent(extent: Extent) -> int | None:
    """Returns a known extent as an int, None where it is symbolic."""
    value = extent.value if isinstance(extent, tirx.IntImm) else extent
    return value if isinstance(value, int) else None


def _equal(a: Extent, b: Extent) -> bool:
    known = _static_extent(a), _static_extent(b)
    if None not in known:
        return known[0] == known[1]
    return analyzer().can_prove_equal(a, b)


def broadcast_shape(context: CallContext, *shapes: Sequence[Extent]) -> list[Extent]:
    """Returns the common shape.

    Raises:
        GraphError: Two extents differ, or cannot be shown to be equal, and neither is 1.
    """
    result: list[Extent] = []
    for extents in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = [extent for extent in extents if not _one(extent)]
        for extent in wide[1:]:
            if not _equal(wide[0], extent):
                context.fail(f"shapes {[list(shape) for shape in shapes]} do not broadcast")
        result.append(wide[0] if wide else 1)
    return result[::-1]


def broadcast_indices(indices: Sequence[Prim], shape: Sequence[Any]) -> list[Prim]:
    """Returns the indices of an operand of ``shape`` for an element of the broadcast result."""
    own = list(indices)[len(indices) - len(shape) :]
    return [0 if _one(extent) else index for index, extent in zip(own, shape, strict=True)]
