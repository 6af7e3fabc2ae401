"""Ranges of integer types, and which accumulator holds a sum of products exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs, SoftmaxAttrs
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, NORMS
from qdqbridge.core.ops.table import OPERATORS

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


# ---- signatures ----------------------------------------------------------------------------------
# Where the operands of every qnn call stand, and the arguments that say what their integers mean.
#
# Said once, for everybody who reads a call: a node of a graph is made of it
# (``qdqbridge.tvm.qnn.read``), and a record for a backend (``qdqbridge.tvm.byoc.descriptions``).
# Attributes are read by the codecs of the row's record.


_SPATIAL = "DHW"


@dataclass(frozen=True, slots=True)
class QuantizedArgument:
    """An operand of a call, by the indices of its arguments.

    Attributes:
        data: The stored integers, or floats.
        scale: Their scale.
        zero_point: Their zero point.
        axis: The attribute that names the axis of several scales; empty where none does.
    """

    data: int
    scale: int
    zero_point: int
    axis: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a call.

    Attributes:
        operands: Those that have parameters.
        result: The scale of the result, which its zero point follows; None for a call whose result
            states none.
    """

    operands: tuple[QuantizedArgument, ...]
    result: int | None = None


def _beside(first: int, *axes: str) -> Signature:
    """Operands from ``first`` on, then a scale and zero point of each, and those of the result."""
    count = len(axes)
    operands = (
        QuantizedArgument(first + i, first + count + 2 * i, first + count + 2 * i + 1, axis)
        for i, axis in enumerate(axes)
    )
    return Signature(tuple(operands), first + 3 * count)


ONE = _beside(0, "")
"""``f(x, sx, zx, sy, zy)``: functions, pools, reductions; concatenations, of tuples."""
TWO = _beside(0, "lhs_axis", "rhs_axis")
"""``f(a, b, sa, za, sb, zb, sy, zy)``."""
CHOICE = _beside(1, "lhs_axis", "rhs_axis")
"""``where(condition, a, b, sa, za, sb, zb, sy, zy)``."""
NORM = _beside(0, "", "", "")
"""``f(x, gamma, beta, sx, zx, sg, zg, sb, zb, sy, zy)``."""
BATCH_NORM = Signature((QuantizedArgument(0, 5, 6),), 7)
"""``f(x, gamma, beta, mean, variance, sx, zx, sy, zy)``."""
PRODUCT = Signature((QuantizedArgument(0, 4, 2), QuantizedArgument(1, 5, 3)))
"""``f(x, w, zx, zw, sx, sw)``, whose result a requantize or dequantize gives parameters."""
DYNAMIC_PRODUCT = Signature((QuantizedArgument(1, 3, 2),))
"""``f(x, w, zw, sw)`` of float data."""
QUANTIZE = Signature((), 1)
DEQUANTIZE = Signature((QuantizedArgument(0, 1, 2, "axis"),))
REQUANTIZE = Signature((QuantizedArgument(0, 1, 2, "axis"),), 3)

SIGNATURES: Mapping[str, Signature] = {
    f"qnn.{name}": signature
    for name, signature in {
        "quantize": QUANTIZE,
        "dequantize": DEQUANTIZE,
        "requantize": REQUANTIZE,
        "concatenate": ONE,
        "where": CHOICE,
        "resize": ONE,
        "dense": PRODUCT,
        "batch_matmul": PRODUCT,
        "dynamic_dense": DYNAMIC_PRODUCT,
        "dynamic_block_dense": DYNAMIC_PRODUCT,
        **{f"dynamic_conv{rank}d": DYNAMIC_PRODUCT for rank in (1, 2, 3)},
        **{row.qnn: NORM for row in NORMS},
        BATCH_NORMALIZATION.qnn: BATCH_NORM,
        **{
            row.qnn: ONE
            for row in OPERATORS
            if row.qnn and (row.arity == 1 or row.attributes in (ReduceAttrs, SoftmaxAttrs))
        },
        **dict.fromkeys(("relu", "clip", "rsqrt"), ONE),  # Relay's, which no node is written as
        **{row.qnn: TWO for row in OPERATORS if row.qnn and row.arity == 2},
        **{
            row.qnn.format(rank=rank): ONE
            for row in OPERATORS
            if row.qnn and row.attributes is PoolAttrs
            for rank in (1, 2, 3)
        },
        **{f"resize{rank}d": ONE for rank in (1, 2, 3)},
        **{f"conv{rank}d{end}": PRODUCT for rank in (1, 2, 3) for end in ("", "_transpose")},
    }.items()
}
"""By the name of the operator."""


def data_letters(rank: int) -> str:
    """Returns the layout of data that have their channels first, ``NCHW`` for two spatial axes."""
    return "NC" + _SPATIAL[3 - rank :]


def kernel_letters(rank: int, *, transposed: bool) -> str:
    """Returns the layout of a kernel as the graph has it, ``OIHW`` for two spatial axes."""
    return ("IO" if transposed else "OI") + _SPATIAL[3 - rank :]
