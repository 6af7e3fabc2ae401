"""LiteRT's integer arithmetic, bit for bit: how sums are rounded, and functions approximated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.attributes import ResizeAttrs, SoftmaxAttrs

# ---- How LiteRT's kernels round a product's accumulator, bit for bit -----------------------------
# Each formula is exact: ``scripts/engines/litert_rounding.py`` runs LiteRT beside them and counts
# the results that differ, which are none for the kernels named here. So a difference between LiteRT
# and the numeric contract of a product is explained where one of them gives LiteRT's result.
#
# Sources: TFLite's ``kernels/internal/common.h`` (MultiplyByQuantizedMultiplier) and
# ``kernels/internal/quantization_util.cc`` (QuantizeMultiplier); XNNPACK's requantization in
# float32.


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


# ---- What LiteRT's integer kernels give that approximate a function, bit for bit -----------------
# Softmax, Tanh and Sigmoid of 16 bits read tables and interpolate; Resize of integers lays its
# places to 1/1024 of an element. So they differ from the numeric contract, by more than a rounding;
# where one of these functions gives LiteRT's result, that is why. Sources: of TFLite's ``kernels``
# ``internal/reference/{softmax,resize_bilinear}.h``, ``internal/reference/integer_ops/{tanh,
# logistic}.h``, ``internal/common.h`` (LUTPopulate, LUTLookup) and ``activations.cc`` (how
# multipliers are chosen); of XNNPACK ``indirection.c`` and ``s8-ibilinear``.


Integers = NDArray[np.int64]
_QMIN, _QMAX = -(1 << 15), (1 << 15) - 1


def approximated(node: Node, x: NDArray[Any], rank: int) -> list[Integers]:
    """Returns what LiteRT's kernels of a node give; nothing for others, and of other integers.

    Args:
        x: Its first operand as it is stored.
        rank: The rank of its result.
    """
    quant, result = node.operand(0).quant, node.output.quant
    if quant is None or result is None or x.ndim != rank:
        return []
    scale, wide = float(quant.params.scale.flat[0]), x.astype(np.int64)
    attributes = node.attributes
    if isinstance(attributes, ResizeAttrs):
        return _interpolated(attributes, wide, node.output.type.shape)
    if quant.params.storage_dtype is not DType.INT16:
        return []
    match node.op.name:
        case "Tanh":
            return [_of_sigmoid(wide, scale, _tanh)]
        case "Sigmoid":
            return [_of_sigmoid(wide, scale, _sigmoid)]
        case "Softmax" if isinstance(attributes, SoftmaxAttrs) and len(attributes.axes) == 1:
            return [_softmax(wide, scale, attributes.axes[0])]
        case _:
            return []


# ---- Tanh and Sigmoid -------------------------------------------------------------------------


@cache
def _sigmoid_table() -> Integers:
    """Sigmoid at multiples of 1/24, in 16 bits, raised by half of what a chord is too low."""

    def value(places: NDArray[np.float64]) -> NDArray[np.float64]:
        return 65536 / (1 + np.exp(-places / 24))

    place = np.arange(256, dtype=np.float64)
    low = value(place + 0.5) - (value(place) + value(place + 1)) / 2
    found = np.rint(value(place) + low / 2).astype(np.int64)
    found[-1] = 65535
    return found


def _multiplier(scale: float, shifts: tuple[int, ...]) -> tuple[int, int]:
    """Returns the integer multiplier to steps of 1/(3 · 4096), and the shift behind it."""
    log = math.log2(scale)
    shift = 12 + round(log)
    if abs(log - round(log)) < 1e-3 and shift in shifts:
        return 3 << shift, 0
    multiplier, shift = scale * 4096 * 3, 0
    while multiplier <= _QMAX / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return int(multiplier), shift


def _of_sigmoid(
    x: Integers, scale: float, finish: Callable[[Integers, Integers], Integers]
) -> Integers:
    multiplier, shift = _multiplier(scale, (0, 1) if finish is _tanh else (0,))
    half = 1 << (shift - 1) if shift else 0
    return finish((x * multiplier + half) >> shift, np.int64(0) * x)


def _looked_up(place: Integers, bits: int) -> Integers:
    """Returns sigmoid of a magnitude, interpolated, with ``bits`` more bits."""
    table = _sigmoid_table()
    index, rest = place >> bits, place & ((1 << bits) - 1)
    low = np.minimum(index, 254)
    value = (table[low] << bits) + rest * (table[low + 1] - table[low])
    return np.where(index >= 255, -1, value)


def _tanh(x: Integers, zero: Integers) -> Integers:
    found = _looked_up(np.abs(x), 8)
    found = np.where(found < 0, 0xFFFF << 8, found)
    one, half = 1 << 23, 1 << 7
    return np.where(x >= zero, found - one + half, -found + one + half - 1) >> 8


def _sigmoid(x: Integers, zero: Integers) -> Integers:
    found = _looked_up(np.abs(x), 9)
    found = np.where(found < 0, 0x7FFF << 10, found)
    half = 1 << 9
    return np.where(x >= zero, found + half, (1 << 25) - found + half - 1) >> 10


# ---- Softmax ----------------------------------------------------------------------------------


def int16_lookup_table(
    function: Callable[[float], float], first: float, last: float, spread: float = 65536 / 2.0
) -> Integers:
    """Returns 513 values of a function on an interval, in 16 bits around zero.

    Args:
        function: Which one.
        first: Where the interval begins.
        last: Where it ends.
        spread: What the function's values are multiplied by.
    """
    step = (last - first) / 512

    def rounded(x: float) -> int:
        return int(math.copysign(math.floor(abs(x) + 0.5), x))

    def value(x: float) -> int:
        return rounded(function(x) * spread)

    found: list[int] = []
    for place in range(512):
        here = value(first + place * step)
        behind = function(first + (place + 1) * step) * spread
        between = rounded((behind + here) / 2)
        bias = rounded((between - value(first + place * step + step / 2)) / 2)
        found.append(min(max(here - bias, _QMIN), _QMAX))
    found.append(min(max(int(value(last)), _QMIN), _QMAX))
    return np.asarray(found, np.int64)


@cache
def _exponentials() -> Integers:
    return int16_lookup_table(math.exp, -10.0, 0.0)


@cache
def _reciprocals() -> Integers:
    return int16_lookup_table(lambda x: 1 / (1 + x), 0.0, 1.0)


def _entry(table: Integers, place: Integers) -> Integers:
    place = np.clip(place, _QMIN, _QMAX)
    index = 256 + (place >> 7)
    slope = table[index + 1] - table[index]
    return table[index] + ((slope * (place & 0x7F) + 64) >> 7)


def _softmax(x: Integers, scale: float, axis: int) -> Integers:
    difference = x - x.max(axis=axis, keepdims=True)
    multiplier = np.full(difference.shape, scale / (10.0 / 65535))
    found = _entry(_exponentials(), rounded_twice(difference, multiplier) + _QMAX)
    total = found.sum(axis=axis, keepdims=True)
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)  # the number of its digits
    room = 31 - bits
    shifted = ((total << room) + (1 << 13)) >> 14
    inverse = _entry(_reciprocals(), shifted - ((1 << 15) + (1 << 16)))
    right = 30 - room
    rounded = (found * inverse + (np.int64(1) << (right - 1))) >> right
    return np.clip(rounded, 0, _QMAX)


def tabulated_reach(node: Node) -> int:
    """Returns how many steps a Softmax of 16 bits may be off; 0 for what is not read from tables.

    What is far below the largest number of a row counts 2/32768 of it instead of nothing: that
    many of such elements take from the others, whose own errors are up to two steps.
    """
    attributes, quant = node.attributes, node.operand(0).quant
    if not isinstance(attributes, SoftmaxAttrs) or node.op.name != "Softmax":
        return 0
    if quant is None or quant.params.storage_dtype is not DType.INT16:
        return 0
    shape = node.output.type.shape
    extents = [None if shape is None else shape[axis] for axis in attributes.axes]
    count = math.prod(extent if isinstance(extent, int) else 1 << 15 for extent in extents)
    taken = int(_exponentials()[0]) * (count - 1)
    return math.ceil((1 << 15) * taken / ((1 << 15) + taken)) + 2


# ---- Resize -----------------------------------------------------------------------------------


_Places = tuple[Integers, Integers, Integers]
"""Two neighbours of each result along an axis, and how far it is from the first one."""


def _interpolated(attributes: ResizeAttrs, x: Integers, shape: Shape) -> list[Integers]:
    """Returns what LiteRT's own kernel and XNNPACK's give."""
    if attributes.mode != "linear" or x.ndim != 4 or shape is None:
        return []
    height, width = shape[2:]
    if isinstance(height, str) or isinstance(width, str):
        return []
    found: list[Integers] = []
    for places, bits in ((_in_1024ths, 10), (_in_2048ths, 11)):
        rows, columns = (
            places(attributes, old, new) for old, new in ((x.shape[2], height), (x.shape[3], width))
        )
        total = _weighted(x, rows, columns, 1 << bits)
        half = np.int64(1) << (2 * bits - 1)
        if bits == 10:  # half away from zero
            found.append(np.sign(total) * ((np.abs(total) + half) >> (2 * bits)))
        else:
            found.append((total + half) >> (2 * bits))
    return found


def _weighted(x: Integers, rows: _Places, columns: _Places, one: int) -> Integers:
    (top, bottom, below), (left, right, after) = rows, columns
    below = below[:, None]
    above, before = one - below, one - after
    upper, lower = x[:, :, top], x[:, :, bottom]
    return (upper[..., left] * before + upper[..., right] * after) * above + (
        lower[..., left] * before + lower[..., right] * after
    ) * below


def _in_1024ths(attributes: ResizeAttrs, old: int, new: int) -> _Places:
    mode = attributes.coordinate_transformation_mode
    scale = ((old << 10) + new // 2) // new
    if mode == "align_corners" and new > 1:
        scale = (((old - 1) << 10) + (new - 1) // 2) // (new - 1)
    place = np.arange(new, dtype=np.int64) * scale
    if mode in ("half_pixel", "pytorch_half_pixel"):
        place = place + scale // 2 - (1 << 9)
    low = np.maximum(place >> 10, 0)
    high = np.minimum((place + 1023) >> 10, old - 1)
    return low, high, place - (low << 10)


def _in_2048ths(attributes: ResizeAttrs, old: int, new: int) -> _Places:
    mode, f = attributes.coordinate_transformation_mode, np.float32
    corners = mode == "align_corners" and new > 1
    scale = f(old - 1) / f(new - 1) if corners else f(old) / f(new)
    place = np.arange(new).astype(f) * scale
    if mode in ("half_pixel", "pytorch_half_pixel"):
        place = place + (f(0.5) * scale - f(0.5))
    place = np.clip(place, f(0), f(old - 1))
    low = place.astype(np.int64)
    part = np.rint((place - low.astype(f)) * f(2048)).astype(np.int64)
    return low, np.minimum(low + 1, old - 1), part
