"""Attribute records that name axes, for operands that are carried channels-last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qdqbridge.graph.operator import Attributes
from qdqbridge.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ExpandAttrs,
    PadAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TileAttrs,
)
from qdqbridge.qnn.layout.permutation import channels_first, channels_last

T = TypeVar("T")


def remapped(attributes: Attributes, rank: int) -> Attributes:
    """Returns the attributes for operands of ``rank`` axes whose axis 1 went to the end."""
    rule = _RULES.get(type(attributes))
    return attributes if rule is None else rule(attributes, rank)


def restored(attributes: Attributes, rank: int) -> Attributes:
    """Returns the attributes for operands of ``rank`` axes whose last axis went to place 1.

    The permutation of :func:`remapped` is a cycle of ``rank - 1`` axes.
    """
    for _ in range(rank - 2):
        attributes = remapped(attributes, rank)
    return attributes


def _axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(channels_first(rank)[axis] for axis in axes)


def _entries(entries: Sequence[T], rank: int) -> tuple[T, ...]:
    """Returns one entry per axis in the new order of the axes."""
    return tuple(entries[axis] for axis in channels_last(rank))


def _halves(entries: Sequence[T], rank: int) -> tuple[T, ...]:
    if not entries:
        return ()
    return _entries(entries[:rank], rank) + _entries(entries[rank:], rank)


def _resize(a: ResizeAttrs, rank: int) -> ResizeAttrs:
    return replace(
        a,
        scales=None if a.scales is None else _entries(a.scales, rank),
        sizes=None if a.sizes is None else _entries(a.sizes, rank),
        roi=_halves(a.roi, rank),
    )


def _expand(a: ExpandAttrs, rank: int) -> ExpandAttrs:
    return a if a.shape is None else replace(a, shape=_entries(a.shape, rank))


_RULES: dict[type[Attributes], Callable[[Any, int], Attributes]] = {
    AxisAttrs: lambda a, rank: replace(a, axis=channels_first(rank)[a.axis]),
    SplitAttrs: lambda a, rank: replace(a, axis=channels_first(rank)[a.axis]),
    SoftmaxAttrs: lambda a, rank: replace(a, axes=_axes(a.axes, rank)),
    ReduceAttrs: lambda a, rank: replace(a, axes=tuple(sorted(_axes(a.axes, rank)))),
    AxesAttrs: lambda a, rank: replace(a, axes=tuple(sorted(_axes(a.axes, rank)))),
    SliceAttrs: lambda a, rank: replace(a, axes=_axes(a.axes, rank)),
    PadAttrs: lambda a, rank: replace(a, pads=_halves(a.pads, rank)),
    TileAttrs: lambda a, rank: replace(a, repeats=_entries(a.repeats, rank)),
    ExpandAttrs: _expand,
    ResizeAttrs: _resize,
}
