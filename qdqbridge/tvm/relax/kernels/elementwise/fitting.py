"""Cheap formulas for two 8-bit operands, taken only where all 65,536 results are the contract's.

The contract dequantizes both operands, computes in float32 and divides. Where the parameters are
per tensor, a fused multiply-add or two give the same codes for nearly all scales; a formula is
tried on every pair of codes before it is used, so that no result can differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.elementwise import SUB

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The numbers of a formula.

    Attributes:
        factors: float32; ``linear``: those of a, of b, and what is added; ``product``: one factor.
        integers: int32; ``linear``: the zero point of the result; ``product``: those of a, b and
            the result.
    """

    factors: Floats
    integers: NDArray[np.int32]


def contract(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> NDArray[Any]:
    """Returns the result of every pair of codes, an array (256, 256), in int32."""
    left = dequantize(codes(a), a)[:, None]
    right = dequantize(codes(b), b)[None, :]
    with np.errstate(all="ignore"):
        (value,) = op.compute(NO_ATTRIBUTES, (left, right))
    return quantize(value, y).astype(np.int32)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """Returns ``a * b + c`` rounded once, for operands whose product and sum float64 holds."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def linear(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> Fit | None:
    """Returns ``rint(fma(a, factor, fma(b, factor, shift))) + zero point`` for Add or Sub."""
    wanted = contract(op, a, b, y)
    sign = -1.0 if op is SUB else 1.0
    scale = float(y.scale)
    first, second = float(a.scale) / scale, sign * float(b.scale) / scale
    shift = -(int(a.zero_point) * first + int(b.zero_point) * second)
    left, right = (codes(p).astype(np.float32) for p in (a, b))
    zero_point = np.asarray([y.zero_point], np.int32)
    for factors in _neighbours(first, second, shift):
        inner = fused(right, factors[1], factors[2])
        value = fused(left[:, None], factors[0], inner[None, :])
        if _equal(np.rint(value), zero_point[0], y, wanted):
            return Fit(factors, zero_point)
    return None


def product(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> Fit | None:
    """Returns ``rint((a - za) * (b - zb) * factor) + zero point`` for Mul."""
    wanted = contract(op, a, b, y)
    left, right = (codes(p).astype(np.int32) - int(p.zero_point) for p in (a, b))
    exact = (left[:, None] * right[None, :]).astype(np.float32)
    factor = float(a.scale) * float(b.scale) / float(y.scale)
    integers = np.asarray([a.zero_point, b.zero_point, y.zero_point], np.int32)
    for (one,) in _neighbours(factor):
        if _equal(np.rint(exact * one), integers[2], y, wanted):
            return Fit(np.asarray([one]), integers)
    return None


def _neighbours(*numbers: float) -> Iterator[Floats]:
    """Yields the numbers in float32, then with one of them moved by a unit in the last place."""
    base = np.asarray(numbers, np.float32)
    if not np.isfinite(base).all() or np.abs(base).max() > 2.0**20:
        return  # a rounded result must lie within int32
    yield base
    for i in range(base.size):
        for side in (np.inf, -np.inf):
            moved = base.copy()
            moved[i] = np.nextafter(base[i], np.float32(side))
            yield moved


def _equal(
    rounded: Floats, zero_point: np.int32, params: QuantParams, wanted: NDArray[np.int32]
) -> bool:
    shifted = rounded.astype(np.int64) + zero_point
    return np.array_equal(np.clip(shifted, params.qmin, params.qmax), wanted)
