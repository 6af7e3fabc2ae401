"""The channels-last permutation, and which values do not notice it."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Value


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the permutation from (N, C, spatial…) to (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """Returns the inverse: axis ``a`` of (N, C, spatial…) is axis ``channels_first(r)[a]``."""
    return (0, rank - 1, *range(1, rank - 1))


def unmoved(value: Value) -> bool:
    """True where both layouts hold the elements in one order, so that a reshape converts them."""
    shape = value.type.shape
    return shape is not None and (shape[1:2] == (1,) or all(extent == 1 for extent in shape[2:]))
