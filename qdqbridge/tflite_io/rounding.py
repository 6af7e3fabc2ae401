"""How LiteRT's kernels round a product's accumulator, bit for bit.

Each formula is exact: ``scripts/engines/litert_rounding.py`` runs LiteRT beside them and counts
the results that differ, which are none for the kernels named here. So a difference between LiteRT
and the numeric contract of a product is explained where one of them gives LiteRT's result.

Sources: TFLite's ``kernels/internal/common.h`` (MultiplyByQuantizedMultiplier) and
``kernels/internal/quantization_util.cc`` (QuantizeMultiplier); XNNPACK's requantization in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Scaled: TypeAlias = "Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.int64]]"
"""``scaled(accumulator, real multiplier) -> integer``, before the zero point is added."""


def fixed_point(multiplier: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns a real multiplier as ``mantissa · 2**(shift - 31)``, the mantissa of 31 bits."""
    fraction, shift = np.frexp(multiplier)
    mantissa = np.floor(fraction * (1 << 31) + 0.5).astype(np.int64)
    full = mantissa == 1 << 31
    mantissa, shift = np.where(full, mantissa >> 1, mantissa), shift.astype(np.int64) + full
    gone = shift < -31
    return np.where(gone, 0, mantissa), np.where(gone, 0, shift)


def _high_half(
    total: NDArray[np.int64], multiplier: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rounded high half of the doubled product, and the shift that is left to do."""
    mantissa, shift = fixed_point(multiplier)
    product = (total << np.maximum(shift, 0)) * mantissa
    product = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.where(product >= 0, product >> 31, -((-product) >> 31))  # C divides towards zero
    return high, np.maximum(-shift, 0)


def rounded_twice(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """The high half of the doubled product, rounded; then a shift, rounded half away from zero."""
    high, right = _high_half(total, multiplier)
    mask = (np.int64(1) << right) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> right) + ((high & mask) > threshold)


def rounded_twice_up(
    total: NDArray[np.int64], multiplier: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The same with a shift that is rounded half up, as vector instructions do it."""
    high, right = _high_half(total, multiplier)
    return np.where(right > 0, (high + ((np.int64(1) << right) >> 1)) >> right, high)


def rounded_once(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """One shift of the product, rounded half up."""
    mantissa, shift = fixed_point(multiplier)
    places = 31 - shift
    return (total * mantissa + (np.int64(1) << (places - 1))) >> places


def rounded_of_sixteen(
    total: NDArray[np.int64], multiplier: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Beside 16-bit activations the mantissa has 15 bits; one shift, rounded half up."""
    mantissa, shift = fixed_point(multiplier)
    reduced = np.where(mantissa < 0x7FFF0000, (mantissa + (1 << 15)) >> 16, 0x7FFF)
    places = 15 - shift
    return (total * reduced + (np.int64(1) << (places - 1))) >> places


def double_round(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """TOSA's RESCALE: half up, after half a unit of 31 places away from zero."""
    mantissa, shift = fixed_point(multiplier)
    return rescaled_twice(total, mantissa, 31 - shift)


def rescaled_twice(
    total: NDArray[np.int64], mantissa: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """TOSA's ``apply_scale_32`` with DOUBLE_ROUND."""
    half = np.int64(1) << (places - 1)
    away = np.where(places > 31, np.where(total >= 0, 1 << 30, -(1 << 30)), 0)
    return (total * mantissa + half + away) >> places


def of_eight_places(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """XNNPACK's conversions: the multiplier has 8 binary places; one shift, rounded half up."""
    mantissa = np.rint(multiplier.astype(np.float32) * np.float32(256)).astype(np.int64)
    return (total * mantissa + 128) >> 8


def in_float32(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """A float32 product, rounded half to even."""
    product = total.astype(np.float32) * multiplier.astype(np.float32)
    return np.rint(product).astype(np.int64)


FORMULAS: Mapping[str, Scaled] = MappingProxyType({
    "fixed point, rounded twice": rounded_twice,
    "fixed point, rounded twice, up": rounded_twice_up,
    "fixed point, rounded once": rounded_once,
    "fixed point of 15 bits": rounded_of_sixteen,
    "fixed point of 8 places": of_eight_places,
    "float32": in_float32,
})  # fmt: skip


def furthest(multiplier: float, result: float, *, sixteen: bool = False) -> float:
    """Returns how far a fixed-point product may lie from the real one, in steps of the result.

    A mantissa of b bits is off by at most ``2**-(b + 1)`` of the product; the first of two
    roundings moves it by half a unit of what the second one shifts away.

    Args:
        multiplier: The real multiplier, ``scale_x · scale_w / scale_y``.
        result: The real result in steps of its scale, without its zero point.
        sixteen: Of 16-bit activations, whose mantissa has 15 bits and which are rounded once.
    """
    _, shift = np.frexp(multiplier)
    if sixteen:
        return abs(result) * 2.0**-15
    return abs(result) * 2.0**-31 + 2.0 ** (min(int(shift), 0) - 1)
