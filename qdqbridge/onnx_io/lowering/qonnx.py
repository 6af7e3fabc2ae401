"""QONNX: Quant (IntQuant), BipolarQuant and Trunc, float to float with integers in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext, reading_rule
from qdqbridge.onnx_io.lowering.elementwise import clipped
from qdqbridge.onnx_io.tensors import onnx_name

# ---- AMD Quark's ExtendedQuantizeLinear and ExtendedDequantizeLinear (Vitis* before) -------------

_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_QUARK = {"com.amd.quark": "Extended", "com.vai.quantize": "Vitis"}


def _extended(op_type: str, name: str) -> Rule:
    """Returns the rule of Quark's QuantizeLinear or DequantizeLinear."""
    names = tuple(f"{domain}::{prefix}{op_type}" for domain, prefix in _QUARK.items())

    @reading_rule(name, (names, "x", "scale", "zero?"))
    def lower(context: LoweringContext) -> Value:
        """``ExtendedQuantizeLinear(x) -> QuantizeLinear(x)``: the same node, its usual name.

        Storage types are checked where it is read.
        Source: AMD Quark, quark/onnx/operators/custom_ops.
        """
        zero = context.optional(2)
        if zero is not None and zero.type.dtype in _FLOATS:
            raise context.refusal(
                f"storage in {onnx_name(zero.type.dtype)}",
                f"its zero point '{context.proto.input[2]}' is of that type",
                "export with integers, or with 8-bit floats",
            )
        axis, inputs = context.int_("axis", 1), context.operands
        return context.op(op_type, inputs, context.output, domain=MICROSOFT, axis=axis)

    return lower


_ROUNDINGS = ("ROUND", "HALF_EVEN")
_MOST_BITS = 32
Integer = type[np.integer[Any]]


def _of_qonnx(*names: str) -> tuple[str, ...]:
    domains = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
    return tuple(f"{domain}::{name}" for domain in domains for name in names)


@reading_rule("qonnx-quant", (_of_qonnx("Quant", "IntQuant"), "x", "scale", "zero", "bits"))
def quant(context: LoweringContext) -> Value:
    """``Quant(x) -> DQ(Clip(Q(x)))`` with the range of its bits, ``signed`` and ``narrow``.

    QONNX rounds ``x / scale + zero_point``, ONNX rounds before it adds: equal but at midpoints
    with an odd zero point. Source: qonnx custom_op/general/intquant.py.
    """
    bits = _bits(context, 3)
    signed = context.flag("signed", default=True)
    # One signed bit has the codes -1 and 1, and no 0: no integer type of ONNX.
    if bits == 1 and signed:
        return _bipolar(context)
    _check_rounding(context, "ROUND")
    scale, zero_point, axis = _qonnx_scale_zero_point(context)
    dtype = _storage(context, bits, signed=signed)
    low, high = _range(bits, signed=signed, narrow=context.flag("narrow"))
    stored, scale_name, zero_name = _emit_qonnx_quantize(context, scale, zero_point, axis, dtype)
    info = np.iinfo(dtype)
    # Fewer bits, or a narrow range: a Clip of codes says it, as exporters of ONNX write it.
    if (low, high) != (info.min, info.max):
        stored = clipped(context, stored, low, high, dtype)
    return context.dequantize(stored, scale_name, zero_name, axis=axis, result=context.output)


@reading_rule("qonnx-bipolar-quant", (_of_qonnx("BipolarQuant"), "x", "scale"))
def bipolar_quant(context: LoweringContext) -> Value:
    """``BipolarQuant(x) -> DQ(x >= 0 ? 1 : -1)``.

    Source: qonnx custom_op/general/bipolar_quant.py.
    """
    return _bipolar(context)


def _bipolar(context: LoweringContext) -> Value:
    scale, axis = _squeezed(context, context.array(1, "its scale").astype(np.float32))
    one, minus = (context.enter(np.int8(sign), "sign") for sign in (1, -1))
    zero = context.enter(np.float32(0), "zero")
    negative = context.op("Less", [context.operand(0), zero])
    stored = context.op("Where", [negative, minus, one])
    own = context.enter(scale, "scale")
    return context.dequantize(stored, own, axis=axis, result=context.output)


@reading_rule(
    "qonnx-trunc",
    (_of_qonnx("Trunc"), "x", "scale", "zero", "bits", "out_scale", "out_zero?", "out_bits?"),
)
def trunc(context: LoweringContext) -> Value:
    """``Trunc(x) -> DQ(rint(q / 2^k))`` of ``q = Q(x)``, with the output's scale.

    QONNX 2 (seven inputs); the quotient is exact. Source: qonnx custom_op/general/trunc.py.
    """
    _check_rounding(context, "FLOOR")
    if len(context.proto.input) != 7:
        raise context.refusal(
            "the old form without an output scale",
            f"it has {len(context.proto.input)} inputs; the form with 7 says the result's scale",
            "export with qonnx 1.0 / Brevitas 0.12 or newer",
        )
    scale, zero_point, axis = _qonnx_scale_zero_point(context)
    if zero_point.any() or axis is not None:
        raise context.refusal(
            "a zero point, or scales per channel",
            f"zero point {zero_point.reshape(-1)[:4]}, scale of shape {scale.shape}",
            "truncate a symmetric per-tensor value",
        )
    signed, wide, bits = context.flag("signed", default=True), _bits(context, 3), _bits(context, 6)
    result = np.float32(context.array(4, "its output scale").reshape(-1)[0])
    # QONNX shifts by whole bits, whatever the scales' quotient is in floats.
    step = np.float32(2.0 ** np.round(np.log2(result / scale)))
    dtype = _storage(context, wide, signed=signed)
    stored, _, zero = _emit_qonnx_quantize(context, scale, zero_point, None, dtype)
    # The codes as numbers, so that a second quantize divides them by a power of two, which is
    # exact.
    unit = context.dequantize(stored, context.enter(np.float32(1), "unit"), zero)
    small = _storage(context, bits, signed=signed)
    small_zero = context.enter(np.zeros((), small), "zero_point")
    low, high = _range(bits, signed=signed, narrow=context.flag("narrow"))
    cut = context.quantize(unit, context.enter(step, "step"), small_zero, small_zero)
    cut = clipped(context, cut, low, high, small)
    own = context.enter(result, "scale")
    return context.dequantize(cut, own, small_zero, result=context.output)


# ---- what the inputs say ----------------------------------------------------------------------
def _check_rounding(context: LoweringContext, default: str) -> None:
    mode = context.string("rounding_mode", default).upper()
    if mode not in _ROUNDINGS:
        raise context.refusal(
            f"rounding mode {mode}",
            "QuantizeLinear rounds halves to even and has no other mode",
            "train and export with rounding_mode ROUND",
        )


def _bits(context: LoweringContext, index: int) -> int:
    array = context.array(index, "its bit width").astype(np.float64)
    widths = sorted({float(width) for width in array.reshape(-1)})
    if len(widths) != 1 or not widths[0].is_integer() or not 1 <= widths[0] <= _MOST_BITS:
        raise context.refusal(
            "its bit width",
            f"it is {widths[:4]}; one whole number from 1 to {_MOST_BITS} is needed",
            "give the tensor one integer bit width",
        )
    return int(widths[0])


def _storage(context: LoweringContext, bits: int, *, signed: bool) -> Integer:
    for most, pair in ((8, (np.int8, np.uint8)), (16, (np.int16, np.uint16))):
        if bits <= most:
            return pair[0] if signed else pair[1]
    if not signed:
        raise context.refusal(
            f"unsigned integers of {bits} bits",
            "only signed ones are stored in more than 16 bits",
            "make it signed",
        )
    return np.int32


def _range(bits: int, *, signed: bool, narrow: bool) -> tuple[int, int]:
    if signed:
        return -(1 << (bits - 1)) + narrow, (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1 - narrow


def _qonnx_scale_zero_point(
    context: LoweringContext,
) -> tuple[NDArray[Any], NDArray[Any], int | None]:
    """Returns scale and zero point of one shape, and the axis they vary along."""
    scale = context.array(1, "its scale").astype(np.float32)
    zero_point = context.array(2, "its zero point").astype(np.float64)
    if (zero_point != np.rint(zero_point)).any():
        raise context.refusal(
            "a zero point between two integers",
            f"it is {zero_point.reshape(-1)[:4]}",
            "train with an integer zero point",
        )
    shape = np.broadcast_shapes(scale.shape, zero_point.shape)
    scale, axis = _squeezed(context, np.broadcast_to(scale, shape))
    return scale, np.broadcast_to(zero_point, shape).reshape(scale.shape), axis


def _squeezed(context: LoweringContext, scale: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
    """Returns ``[1, C, 1, 1]`` as ``[C]``, and its axis counted from the end."""
    long = [axis for axis, extent in enumerate(scale.shape) if extent != 1]
    if len(long) > 1:
        raise context.refusal(
            "scales that vary along several axes",
            f"the scale has shape {scale.shape}",
            "quantize per tensor or per channel",
        )
    if not long:
        return scale.reshape(()), None
    # From the end, since the scale may have fewer axes than the tensor.
    return scale.reshape(-1), long[0] - scale.ndim


# ---- what is made -----------------------------------------------------------------------------
def _emit_qonnx_quantize(
    context: LoweringContext,
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    axis: int | None,
    dtype: Integer,
) -> tuple[Value, Value, Value]:
    info = np.iinfo(dtype)
    if zero_point.size and (zero_point.min() < info.min or zero_point.max() > info.max):
        raise context.refusal(
            "a zero point outside of its range",
            f"it is {zero_point.reshape(-1)[:4]}, the integers are {info.min} to {info.max}",
            "train with a zero point among the integers",
        )
    own, zero = context.enter(scale, "scale"), context.enter(zero_point.astype(dtype), "zero_point")
    return context.quantize(context.operand(0), own, zero, zero, axis=axis), own, zero


RULES: tuple[Rule, ...] = (
    quant,
    bipolar_quant,
    trunc,
    _extended("QuantizeLinear", "quark-quantize"),
    _extended("DequantizeLinear", "quark-dequantize"),
)
