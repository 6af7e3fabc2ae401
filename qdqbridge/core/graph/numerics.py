"""The elementary steps of the numeric contract, in NumPy, bit for bit.

Sources: ONNX QuantizeLinear/DequantizeLinear (opset 10 to 25): ``y = saturate(round(x / scale) +
zero_point)`` with round half to even, division (not multiplication by a reciprocal), and the zero
point added after rounding. NaN becomes the smallest stored value, as in onnxruntime; ONNX leaves
it open.

float16 and bfloat16 scales are widened exactly and both formulas computed in float32, as
onnxruntime does (QuantizeLinear: 0 of 63,000 float16 values differ for any 8- or 16-bit storage).
What an explicit DequantizeLinear yields is rounded once to its float16 result; inside an operator
on stored integers nothing is rounded in between. onnxruntime is not of one mind there: a pass that
cannot be disabled (InsertCastTransformer) runs a float16 DequantizeLinear whose neighbours have no
float16 kernel in float32, so the same weights give other bits as ``float16 -> Q -> DQ`` than as
``int8 -> DQ``.

float8 and float4 storage rounds to the nearest representable value, ties to even; beyond the
largest finite one it saturates, or, with ``saturate=False``, gives what the format has: infinity
(e5m2) or NaN (the others). NaN stays NaN where the format has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams

# A float32 exponential made of single IEEE operations, so that every backend repeats its bits.
#
# Cody-Waite range reduction with a two-part ln 2 and a degree-6 polynomial (the classic minimax
# coefficients of Cephes ``expf``); about 1 ulp. The result is 0 below ``LOWEST``.

LOG2E = np.float32(1.44269504088896341)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
LOWEST = np.float32(-87.0)
HIGHEST = np.float32(88.0)


def exp32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns ``exp(x)`` for float32 ``x``; the order of operations is the specification.

    n = rint(x * LOG2E); r = (x - n * LN2_HIGH) - n * LN2_LOW; p = Horner(POLYNOMIAL, r);
    y = ((p * r) * r + r) + 1; result = y * 2**n, where 2**n is built from its bits.
    """
    # 2**n is built from its bits below: n has to stay among the exponents of normal numbers.
    clamped = np.minimum(np.maximum(x, LOWEST), HIGHEST)
    n = np.rint(clamped * LOG2E)
    r = (clamped - n * LN2_HIGH) - n * LN2_LOW
    p = np.full_like(r, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = p * r + coefficient
    y = ((p * r) * r + r) + np.float32(1)  # NaN of NaN, whatever 2**n is
    power = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.where(x < LOWEST, np.float32(0), y * power)


Array = NDArray[Any]


def dequantize(stored: Array, params: QuantParams, dtype: Any = np.float32) -> Array:
    """Returns the real values of ``stored`` in ``dtype``: ``(stored - zero_point) * scale``.

    With ``dtype=np.float32``: one exact integer subtraction, one conversion, one multiplication.
    """
    scale = params.aligned(params.scale, stored.shape).astype(dtype)
    if not params.storage_dtype.is_integer:
        return stored.astype(dtype) * scale
    if params.zero_point.any():
        zero_point = params.aligned(params.zero_point, stored.shape)
        # A code of int32 less its zero point may lie outside int32.
        wide = np.int64 if params.storage_dtype.bits >= 32 else np.int32
        return (stored.astype(wide) - zero_point.astype(wide)).astype(dtype) * scale
    wide_stored = (
        stored
        if stored.dtype.itemsize > 1 or stored.dtype.kind in "iu"
        else stored.astype(np.int8 if params.storage_dtype.is_signed else np.uint8)
    )
    return wide_stored.astype(dtype) * scale


def quantize(real: Array, params: QuantParams, precision: DType | None = None) -> Array:
    """Returns ``saturate(rint(real / scale) + zero_point)`` in the storage type.

    The division is done in float32 by contract (float16 data is widened first, as onnxruntime
    does, and int32 data becomes float32), in float64 for the ideal; or in the float type
    ``precision``, which data and scale are rounded to before.
    """
    if precision is not None:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            divisor = params.aligned(params.scale, real.shape).astype(precision.numpy)
            quotient = real.astype(precision.numpy) / divisor
        return quantize(quotient.astype(np.float32), params.unscaled())
    if real.dtype.itemsize < 4 or real.dtype.kind in "iu":
        real = real.astype(np.float32)
    scale = params.aligned(params.scale, real.shape).astype(real.dtype)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # A product with the reciprocal differs in the last bit: numbers leave their ties.
        scaled = real / scale
    if not params.storage_dtype.is_integer:
        return _small_float(scaled, params.storage_dtype, saturate=params.saturate)
    zero_point = params.aligned(params.zero_point, real.shape)
    return saturate(scaled, params, zero_point)


def rounded_to(
    scaled: Array, dtype: DType, zero_point: Array | int = 0, *, saturate: bool = True
) -> Array:
    """Returns ``saturate(rint(scaled) + zero_point)`` over the whole range of a storage type.

    Args:
        scaled: float32 or float64.
        dtype: An integer type, or an 8-bit or 4-bit float type, which has no zero point.
        zero_point: Broadcastable against ``scaled``.
        saturate: False where a float type takes what is beyond its largest number as it can.
    """
    if not dtype.is_integer:
        return _small_float(scaled, dtype, saturate=saturate)
    return _integers(scaled, dtype, zero_point, dtype.qmin, dtype.qmax)


def _small_float(scaled: Array, dtype: DType, *, saturate: bool) -> Array:
    largest = float(dtype.largest)
    # float64 on the way down would round once more than float32 does.
    if saturate or dtype.is_finite:
        scaled = np.where(np.isnan(scaled), scaled, np.clip(scaled, -largest, largest))
    with np.errstate(over="ignore", invalid="ignore"):
        return scaled.astype(dtype.numpy)


def saturate(scaled: Array, params: QuantParams, zero_point: Array | int | None = None) -> Array:
    """Returns ``clip(rint(scaled) + zero_point, qmin, qmax)`` in the storage type."""
    if zero_point is None:
        zero_point = params.zero_point
    return _integers(scaled, params.storage_dtype, zero_point, params.qmin, params.qmax)


def _integers(scaled: Array, dtype: DType, zero_point: Array | int, low: int, high: int) -> Array:
    rounded = np.rint(scaled)
    shifted = rounded + np.asarray(zero_point).astype(rounded.dtype)
    if dtype.bits > 24:  # float32 does not hold 2**31 - 1: it would wrap
        shifted = shifted.astype(np.float64)
    # fmax takes the number where the other operand is NaN.
    clipped = np.minimum(np.fmax(shifted, low), high)
    return clipped.astype(np.int64).astype(dtype.numpy)


def multiplier(*numerator: Array, denominator: Array) -> NDArray[np.float32]:
    """Returns ``float32(float32(a * b) / c)``, the one multiplier of a requantization."""
    product = np.asarray(numerator[0], np.float32)
    for factor in numerator[1:]:
        product = np.asarray(product * np.asarray(factor, np.float32), np.float32)
    return np.asarray(product / np.asarray(denominator, np.float32), np.float32)


def requantize(accumulator: Array, scale: NDArray[np.float32], params: QuantParams) -> Array:
    """Returns ``saturate(rint(float32(accumulator) * scale) + zero_point)``.

    Args:
        accumulator: Exact integers (int32 or int64).
        scale: float32 multiplier, broadcastable against the accumulator.
        params: Per-tensor parameters of the result.
    """
    return saturate(accumulator.astype(np.float32) * scale, params)


def codes(params: QuantParams) -> Array:
    """Returns every stored value of an 8- or 16-bit type in the order of its bit pattern."""
    bits = params.storage_dtype.bits
    unsigned = np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)
    if params.storage_dtype.is_signed:
        return unsigned.view(np.int8 if bits <= 8 else np.int16)
    return unsigned
