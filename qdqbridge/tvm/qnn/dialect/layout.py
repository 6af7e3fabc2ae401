"""Layouts: which axis of a tensor in memory is which axis of its channels-first form.

The operators are written channels-first (``NCHW``, ``OIHW``); a layout turns their shapes and
indices into those of a tensor that is stored otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.context import CallContext

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Letters of the spatial axes, by their number."""


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """Where the axes of the channels-first form lie.

    Attributes:
        axes: For every channels-first axis, the axis in memory.
    """

    axes: tuple[int, ...]

    @property
    def straight(self) -> bool:
        """True where memory is channels-first itself."""
        return self.axes == tuple(range(len(self.axes)))

    def logical(self, stored: Sequence[Any]) -> list[Any]:
        """Returns extents or indices in channels-first order."""
        return [stored[axis] for axis in self.axes]

    def stored(self, logical: Sequence[Any]) -> list[Any]:
        """Returns extents or indices in the order of memory."""
        return [logical[self.axes.index(axis)] for axis in range(len(self.axes))]


def straight(rank: int) -> AxisLayout:
    """Returns the layout of a channels-first tensor with ``rank`` axes."""
    return AxisLayout(tuple(range(rank)))


def data_layout(context: CallContext, name: str, spatial: int) -> AxisLayout:
    """Returns the layout that attribute ``name`` states for data, ``NCHW`` or ``NHWC``."""
    letters = SPATIAL[spatial]
    return _layout(context, name, "NC" + letters, ("NC" + letters, "N" + letters + "C"))


def kernel_layout(context: CallContext, spatial: int, *, transposed: bool) -> AxisLayout:
    """Returns the layout of a weight; its channels-first form is ``OIHW``, transposed ``IOHW``.

    Every order in which the spatial axes stay together and in order is supported.
    """
    letters = SPATIAL[spatial]
    outer = "IO" if transposed else "OI"
    orders = [
        first + letters + last
        for pair in ("OI", "IO")
        for first, last in ((pair, ""), ("", pair), (pair[0], pair[1]))
    ]
    return _layout(context, "kernel_layout", outer + letters, orders)


def _layout(context: CallContext, name: str, canonical: str, allowed: Sequence[str]) -> AxisLayout:
    stated = context.attr(name)
    if stated not in allowed:
        context.fail(f"{name} is {stated}", f"use one of {', '.join(allowed)}")
    return AxisLayout(tuple(stated.index(letter) for letter in canonical))
