"""What ONNX's text says of Q and DQ, in integers and fractions: no float is computed with here."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from math import isinf
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"

TYPES: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "uint2": ml_dtypes.uint2,
    "int2": ml_dtypes.int2,
    "int32": np.int32,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
FLOATS = {"float32": (24, -126), "float16": (11, -14), "bfloat16": (8, -126)}
"""Bits of the significand, and the exponent of the least normal number."""


def ends(name: str) -> tuple[int, int]:
    """Returns the least and the greatest integer of a type."""
    bits = int(name.removeprefix("u").removeprefix("int"))
    return (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def nearest(value: Fraction, floats: str) -> Fraction:
    """Returns the nearest number of a float type, ties to the even significand.

    Raises:
        OverflowError: The type has no finite number there.
    """
    bits, least = FLOATS[floats]
    if not value:
        return value
    high = abs(value)
    exponent = high.numerator.bit_length() - high.denominator.bit_length()
    exponent -= high < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - bits + 1)
    found = round(value / unit) * unit
    if abs(found) >= Fraction(2) ** (2 - least):
        raise OverflowError(f"{float(value)} is beyond {floats}")
    return found


def spread(values: Array, shape: tuple[int, ...], axis: int = 1, block: int = 0) -> Array:
    """Returns scales or zero points, one for each value of a tensor."""
    if block:
        long = np.repeat(values, block, axis=axis)
        return np.take(long, range(shape[axis]), axis=axis)
    if values.ndim == 1:
        lined = [1] * len(shape)
        lined[axis] = -1
        values = values.reshape(lined)
    return np.broadcast_to(values, shape)


def fractions_of(values: Array) -> Array:
    """Returns the same numbers as fractions."""
    found = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        found[index] = Fraction(float(values[index]))
    return found


def quantized(
    x: Array,
    scale: Array,
    zero: Array | int,
    to: str,
    *,
    axis: int = 1,
    block: int = 0,
    precision: str = "",
) -> Array:
    """Returns ``saturate(round(x / scale) + zero)``; the division rounds to ``precision``."""
    low, high = ends(to)
    scales = spread(scale, x.shape, axis, block)
    zeros = spread(np.asarray(zero), x.shape, axis, block)
    found = np.empty(x.shape, np.int64)
    for index in np.ndindex(x.shape):
        if isinf(x[index]):
            found[index] = high if x[index] > 0 else low
            continue
        divisor = Fraction(float(scales[index]))
        ratio = Fraction(float(x[index])) / divisor
        with suppress(OverflowError):  # infinity saturates, and so does the number
            ratio = nearest(ratio, precision or scale.dtype.name)
        found[index] = min(max(round(ratio) + int(zeros[index]), low), high)
    return found.astype(TYPES[to])


def dequantized(
    x: Array, scale: Array, zero: Array | int, to: str = "", *, axis: int = 1, block: int = 0
) -> Array:
    """Returns ``(x - zero) * scale``; the product rounds to the type of the result."""
    scales = spread(scale, x.shape, axis, block)
    zeros = spread(np.asarray(zero), x.shape, axis, block)
    to = to or scale.dtype.name
    found = np.empty(x.shape, TYPES[to])
    for index in np.ndindex(x.shape):
        exact = (int(x[index]) - int(zeros[index])) * Fraction(float(scales[index]))
        found[index] = float(nearest(exact, to))
    return found


def stored(values: Array) -> Array:
    """Returns fractions as float32, which has to have each of them."""
    found = np.empty(values.shape, np.float32)
    for index in np.ndindex(values.shape):
        number: Any = values[index]
        value = Fraction(number)
        assert nearest(value, "float32") == value, f"float32 has no {value}"
        found[index] = float(value)
    return found


def convolved(
    x: Array,
    w: Array,
    *,
    pads: tuple[int, int] = (0, 0),
    stride: int = 1,
    dilation: int = 1,
    group: int = 1,
) -> Array:
    """Returns a convolution of fractions or integers, the same along every spatial axis."""
    rank, kernel = x.ndim - 2, w.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), *[pads] * rank], constant_values=0)
    sizes = [
        (padded.shape[2 + i] - dilation * (kernel[i] - 1) - 1) // stride + 1 for i in range(rank)
    ]
    found = np.zeros((x.shape[0], w.shape[0], *sizes), object)
    each, outs = x.shape[1] // group, w.shape[0] // group
    for n, m, *at in np.ndindex(found.shape):
        total = 0
        for c, *k in np.ndindex(w.shape[1:]):
            where = tuple(p * stride + q * dilation for p, q in zip(at, k, strict=True))
            total += padded[(n, m // outs * each + c, *where)] * w[(m, c, *k)]
        found[(n, m, *at)] = total
    return found


def whole(values: Array, zero: Array | int = 0, axis: int = 0) -> Array:
    """Returns integers without their zero points, as Python's own."""
    zeros = np.asarray(zero)
    if zeros.ndim == 1:
        zeros = spread(zeros, values.shape, axis)
    return values.astype(object) - zeros.astype(object)
