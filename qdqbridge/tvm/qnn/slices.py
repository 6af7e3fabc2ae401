"""Bounds of a slice along an axis whose extent only the run knows."""

from __future__ import annotations

FAR = 1 << 31
"""A bound behind every axis."""


def open_bounds(start: int, end: int, step: int) -> tuple[int, int]:
    """Returns start and end in numbers that hosts compute with.

    Files have the largest numbers there are for what is behind every axis; where nothing is left,
    whatever the extent, both are the start.
    """
    first, last = (max(-FAR, min(bound, FAR)) for bound in (start, end))
    if are_ordered(first, last) and (last < first if step > 0 else first < last):
        return first, first
    return first, last


def are_ordered(start: int, end: int) -> bool:
    """True where both bounds count from one side of the axis."""
    return (start < 0) == (end < 0)
