"""QONNX: Quant (IntQuant), BipolarQuant and Trunc, float to float with integers in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.onnx_io.lowering.activation import clipped
from qdqbridge.onnx_io.lowering.site import LoweringSite

_ROUNDINGS = ("ROUND", "HALF_EVEN")
_MOST_BITS = 32
Integer = type[np.integer[Any]]


def quant(site: LoweringSite) -> None:
    """``DQ(Clip(Q(x)))`` with the range of ``bitwidth``, ``signed`` and ``narrow``.

    QONNX rounds ``x / scale + zero_point``, ONNX rounds before it adds: equal but at midpoints
    with an odd zero point. Source: qonnx custom_op/general/intquant.py.
    """
    bits = _bits(site, 3)
    signed = site.flag("signed", default=True)
    if bits == 1 and signed:
        _bipolar(site)
        return
    _check_rounding(site, "ROUND")
    scale, zero_point, axis = _parameters(site)
    dtype = _storage(site, bits, signed=signed)
    low, high = _range(bits, signed=signed, narrow=site.flag("narrow"))
    stored, scale_name, zero_name = _quantized(site, scale, zero_point, axis, dtype)
    info = np.iinfo(dtype)
    if (low, high) != (info.min, info.max):
        stored = clipped(site, stored, low, high, dtype)
    _real(site, stored, scale_name, zero_name, axis, site.proto.output[0])


def bipolar_quant(site: LoweringSite) -> None:
    """``DQ(x >= 0 ? 1 : -1)``.

    Source: qonnx custom_op/general/bipolar_quant.py.
    """
    _bipolar(site)


def _bipolar(site: LoweringSite) -> None:
    scale, axis = _squeezed(site, site.array(1, "its scale").astype(np.float32))
    one, minus = (site.enter(np.int8(sign), "sign") for sign in (1, -1))
    zero = site.enter(np.float32(0), "zero")
    negative = site.op("Less", [site.input(0), zero])
    stored = site.op("Where", [negative, minus, one])
    _real(site, stored, site.enter(scale, "scale"), "", axis, site.proto.output[0])


def trunc(site: LoweringSite) -> None:
    """``DQ(rint(q / 2^k))`` of ``q = Q(x)``, with the output's scale.

    QONNX 2 (seven inputs); the quotient is exact. Source: qonnx custom_op/general/trunc.py.
    """
    _check_rounding(site, "FLOOR")
    if len(site.proto.input) != 7:
        raise site.refusal(
            "the old form without an output scale",
            f"it has {len(site.proto.input)} inputs; the form with 7 says the result's scale",
            "export with qonnx 1.0 / Brevitas 0.12 or newer",
        )
    scale, zero_point, axis = _parameters(site)
    if zero_point.any() or axis is not None:
        raise site.refusal(
            "a zero point, or scales per channel",
            f"zero point {zero_point.reshape(-1)[:4]}, scale of shape {scale.shape}",
            "truncate a symmetric per-tensor value",
        )
    signed, wide, bits = site.flag("signed", default=True), _bits(site, 3), _bits(site, 6)
    result = np.float32(site.array(4, "its output scale").reshape(-1)[0])
    step = np.float32(2.0 ** np.round(np.log2(result / scale)))
    dtype = _storage(site, wide, signed=signed)
    stored, _, zero = _quantized(site, scale, zero_point, None, dtype)
    unit = site.dequantize(stored, site.enter(np.float32(1), "unit"), zero)
    small = _storage(site, bits, signed=signed)
    small_zero = site.enter(np.zeros((), small), "zero_point")
    low, high = _range(bits, signed=signed, narrow=site.flag("narrow"))
    cut = site.quantize(unit, site.enter(step, "step"), small_zero, "")
    cut = clipped(site, cut, low, high, small)
    _real(site, cut, site.enter(result, "scale"), small_zero, None, site.proto.output[0])


# ---- what the inputs say ----------------------------------------------------------------------


def _check_rounding(site: LoweringSite, default: str) -> None:
    mode = site.string("rounding_mode", default).upper()
    if mode not in _ROUNDINGS:
        raise site.refusal(
            f"rounding mode {mode}",
            "QuantizeLinear rounds halves to even and has no other mode",
            "train and export with rounding_mode ROUND",
        )


def _bits(site: LoweringSite, index: int) -> int:
    array = site.array(index, "its bit width").astype(np.float64)
    widths = sorted({float(width) for width in array.reshape(-1)})
    if len(widths) != 1 or not widths[0].is_integer() or not 1 <= widths[0] <= _MOST_BITS:
        raise site.refusal(
            "its bit width",
            f"it is {widths[:4]}; one whole number from 1 to {_MOST_BITS} is needed",
            "give the tensor one integer bit width",
        )
    return int(widths[0])


def _storage(site: LoweringSite, bits: int, *, signed: bool) -> Integer:
    for most, pair in ((8, (np.int8, np.uint8)), (16, (np.int16, np.uint16))):
        if bits <= most:
            return pair[0] if signed else pair[1]
    if not signed:
        raise site.refusal(
            f"unsigned integers of {bits} bits",
            "only signed ones are stored in more than 16 bits",
            "make it signed",
        )
    return np.int32


def _range(bits: int, *, signed: bool, narrow: bool) -> tuple[int, int]:
    if signed:
        return -(1 << (bits - 1)) + narrow, (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1 - narrow


def _parameters(site: LoweringSite) -> tuple[NDArray[Any], NDArray[Any], int | None]:
    """Returns scale and zero point of one shape, and the axis they vary along."""
    scale = site.array(1, "its scale").astype(np.float32)
    zero_point = site.array(2, "its zero point").astype(np.float64)
    if (zero_point != np.rint(zero_point)).any():
        raise site.refusal(
            "a zero point between two integers",
            f"it is {zero_point.reshape(-1)[:4]}",
            "train with an integer zero point",
        )
    shape = np.broadcast_shapes(scale.shape, zero_point.shape)
    scale, axis = _squeezed(site, np.broadcast_to(scale, shape))
    return scale, np.broadcast_to(zero_point, shape).reshape(scale.shape), axis


def _squeezed(site: LoweringSite, scale: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
    """Returns ``[1, C, 1, 1]`` as ``[C]``, and its axis counted from the end."""
    long = [axis for axis, extent in enumerate(scale.shape) if extent != 1]
    if len(long) > 1:
        raise site.refusal(
            "scales that vary along several axes",
            f"the scale has shape {scale.shape}",
            "quantize per tensor or per channel",
        )
    if not long:
        return scale.reshape(()), None
    return scale.reshape(-1), long[0] - scale.ndim


# ---- what is made -----------------------------------------------------------------------------


def _quantized(
    site: LoweringSite,
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    axis: int | None,
    dtype: Integer,
) -> tuple[str, str, str]:
    info = np.iinfo(dtype)
    if zero_point.size and (zero_point.min() < info.min or zero_point.max() > info.max):
        raise site.refusal(
            "a zero point outside of its range",
            f"it is {zero_point.reshape(-1)[:4]}, the integers are {info.min} to {info.max}",
            "train with a zero point among the integers",
        )
    scale_name = site.enter(scale, "scale")
    zero_name = site.enter(zero_point.astype(dtype), "zero_point")
    inputs = [site.input(0), scale_name, zero_name]
    stored = site.op("QuantizeLinear", inputs, domain="com.microsoft", axis=axis)
    return stored, scale_name, zero_name


def _real(
    site: LoweringSite, stored: str, scale: str, zero_point: str, axis: int | None, result: str
) -> None:
    inputs = [stored, scale, zero_point]
    site.op("DequantizeLinear", inputs, result, domain="com.microsoft", axis=axis)
