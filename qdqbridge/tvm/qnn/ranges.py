"""Ranges of integer types, and which accumulator holds a sum of products exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# ---- bounds of a slice along an axis whose extent only the run knows -----------------------------

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


# --------------------------------------------------------------------------------------------------

_INTEGERS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}


def limits(dtype: str) -> tuple[int, int]:
    """Returns the smallest and largest value of an integer type."""
    return _INTEGERS[dtype]


def is_integer(dtype: str) -> bool:
    """True for the integer types that the dialect stores."""
    return dtype in _INTEGERS


def is_code(dtype: str) -> bool:
    """True for 8- and 16-bit integers, the types of quantized activations."""
    return dtype in ("int8", "uint8", "int16", "uint16")


def magnitude(dtype: str, zero_point: Any) -> int:
    """Returns the largest ``|code - zero_point|`` of an integer type."""
    low, high = limits(dtype)
    zero_points = np.asarray(zero_point, np.int64)
    return max(abs(low - int(zero_points.max())), abs(high - int(zero_points.min())))


def accumulator_dtype(count: int, left: int, right: int, bias: int = 0) -> str:
    """Returns the type that holds every sum of ``count`` products exactly.

    Args:
        count: Number of products.
        left: Largest ``|x - zx|``; see :func:`magnitude`.
        right: Largest ``|w - zw|``.
        bias: Largest ``|bias|`` that is added later.

    Returns:
        ``int32`` or ``int64``.
    """
    return "int32" if count * left * right + bias < 1 << 31 else "int64"


def longest_row(dtype: str) -> int:
    """Returns of how many codes the square of the sum, and n times the squares, fit int64."""
    return math.isqrt((1 << 63) - 1) // (2 * magnitude(dtype, [0]))
