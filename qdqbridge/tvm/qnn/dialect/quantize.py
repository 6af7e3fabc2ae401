"""qnn.quantize, qnn.dequantize and qnn.requantize."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.run_time_parameters import CODES
from qdqbridge.tvm.qnn.dialect.arithmetic import (
    ROUNDINGS,
    Prim,
    clipped,
    entry,
    fenced,
    real,
    rounded,
    saturated,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import REQUIRED, Attribute, CallContext, QnnOp, ResultType
from qdqbridge.tvm.qnn.ranges import is_code, is_integer, limits

FLOATS = ("float32", "float16")
AXIS = Attribute("axis", -1, "the channel axis of rank-1 parameters")
COMPUTE = ("float32", "float64", "int64")


def channel_axis(context: CallContext, scale: int, zero_point: int) -> int:
    """Returns the channel axis of argument 0 after checking its parameters against it."""
    shape = context.shape(0)
    if not shape:
        context.expect_params(scale, zero_point)
        return 0
    axis = context.axis(len(shape))
    context.expect_params(scale, zero_point, shape[axis], what=f"axis {axis}")
    return axis


def _infer_quantize(context: CallContext) -> ResultType:
    context.expect_dtype(0, *FLOATS)
    channel_axis(context, 1, 2)
    out = context.attr("out_dtype")
    if not (is_code(out) or out == "int32"):
        context.fail(f"out_dtype is {out}", "use an 8- or 16-bit integer, or int32")
    return ResultType.of(context.shape(0), out)


def _lower_quantize(context: CallContext) -> Any:
    axis, out, rounding = channel_axis(context, 1, 2), context.attr("out_dtype"), _rounding(context)

    def quantize(
        x: te.Tensor, scale: te.Tensor, zero_point: te.Tensor, zero: te.Tensor
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            value = x(*i).astype("float32") / entry(scale, i, axis)
            return saturated(rounded(value, rounding, zero), entry(zero_point, i, axis), out)

        return stage(x.shape, element, name="quantize")

    scale, zero_point = (
        context.const(context.vector(1), "float32"),
        context.const(context.vector(2), "int32"),
    )
    return context.call_te(
        "quantize", quantize, [context.args[0], scale, zero_point, context.fence()]
    )


def _infer_dequantize(context: CallContext) -> ResultType:
    shape, dtype = context.tensor(0)
    if not is_integer(dtype):
        context.fail(f"data has dtype {dtype}", "give integers")
    channel_axis(context, 1, 2)
    out = context.attr("out_dtype")
    if out not in FLOATS:
        context.fail(f"out_dtype is {out}", f"use one of {FLOATS}")
    return ResultType.of(shape, out)


def _lower_dequantize(context: CallContext) -> Any:
    axis, out = channel_axis(context, 1, 2), context.attr("out_dtype")

    def dequantize(x: te.Tensor, scale: te.Tensor, zero_point: te.Tensor) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            value = real(x(*i), entry(zero_point, i, axis), entry(scale, i, axis))
            return value.astype(out)

        return stage(x.shape, element, name="dequantize")

    scale, zero_point = (
        context.const(context.vector(1), "float32"),
        context.const(context.vector(2), "int32"),
    )
    return context.call_te("dequantize", dequantize, [context.args[0], scale, zero_point])


def _rounding(context: CallContext) -> str:
    rounding = context.attr("rounding")
    if rounding not in ROUNDINGS:
        context.fail(f"rounding is {rounding!r}", f"use one of {', '.join(ROUNDINGS)}")
    return rounding


def _infer_requantize(context: CallContext) -> ResultType:
    shape, dtype = context.tensor(0)
    out, compute = context.attr("out_dtype"), context.attr("compute_dtype")
    if not is_integer(dtype):
        context.fail(f"data has dtype {dtype}", "give integers")
    if not (is_code(out) or out == "int32"):
        context.fail(f"out_dtype is {out}", "use an 8- or 16-bit integer, or int32")
    if compute not in COMPUTE:
        context.fail(f"compute_dtype is {compute!r}", f"use one of {', '.join(COMPUTE)}")
    _rounding(context)
    channel_axis(context, 1, 2)
    context.expect_params(3, 4)
    return ResultType.of(shape, out)


def _lower_requantize(context: CallContext) -> Any:
    if context.attr("compute_dtype") == "int64":
        return _lower_fixed_point(context)
    if is_code(context.dtype(0)) and context.attr("compute_dtype") == "float32":
        return _lower_recode(context)
    return _lower_multiply(context)


def _lower_multiply(context: CallContext) -> Any:
    """``sat(rint(f(x - z_in) * M) + z_out)`` with ``M = f(s_in / s_out)``, f float32 or float64."""
    axis, out, rounding = channel_axis(context, 1, 2), context.attr("out_dtype"), _rounding(context)
    compute = context.attr("compute_dtype")
    multiplier = context.vector(1).astype(compute) / context.vector(3).astype(compute)
    shifted = bool(context.vector(2).any())

    def requantize(
        x: te.Tensor, m: te.Tensor, z_in: te.Tensor, z_out: te.Tensor, zero: te.Tensor
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            code = x(*i)
            if shifted:
                code = code.astype("int64") - entry(z_in, i, axis).astype("int64")
            scaled = code.astype(compute) * entry(m, i, axis)
            return saturated(rounded(scaled, rounding, zero), z_out[0], out, nan=False)

        return stage(x.shape, element, name="requantize")

    return context.call_te(
        "requantize",
        requantize,
        [
            context.args[0],
            context.const(multiplier, compute),
            context.const(context.vector(2), "int32"),
            context.const(context.vector(4), "int32"),
            context.fence(),
        ],
    )


def _lower_recode(context: CallContext) -> Any:
    """8- and 16-bit codes: dequantize, then quantize by division."""
    axis, out, rounding = channel_axis(context, 1, 2), context.attr("out_dtype"), _rounding(context)

    def requantize(
        x: te.Tensor,
        s_in: te.Tensor,
        z_in: te.Tensor,
        s_out: te.Tensor,
        z_out: te.Tensor,
        zero: te.Tensor,
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            value = real(x(*i), entry(z_in, i, axis), entry(s_in, i, axis)) / s_out[0]
            return saturated(rounded(value, rounding, zero), z_out[0], out, nan=False)

        return stage(x.shape, element, name="requantize")

    params = context.params((1, 2), (3, 4))
    return context.call_te("requantize", requantize, [context.args[0], *params, context.fence()])


def fixed_point(
    scale_in: NDArray[np.float32], scale_out: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns Relay's multiplier in Q31 and shift of ``scale_in / scale_out``, per channel.

    Source: ``GetFixedPointMultiplierShift`` in TVM's ``src/relay/qnn/utils.cc``.
    """
    pairs: list[tuple[int, int]] = []
    for ratio in scale_in.astype(np.float64) / scale_out.astype(np.float64):
        significand, exponent = math.frexp(float(ratio))
        fixed = math.floor(abs(significand) * (1 << 31) + 0.5)
        if fixed == 1 << 31:
            fixed, exponent = fixed // 2, exponent + 1
        pairs.append((fixed, exponent))
    multipliers, shifts = zip(*pairs, strict=True)
    return np.asarray(multipliers, np.int64), np.asarray(shifts, np.int64)


def _lower_fixed_point(context: CallContext) -> Any:
    """Relay's int64 arithmetic: ``(x << left) * Q31``, rounded by adding a half, shifted right."""
    axis, out, rounding = channel_axis(context, 1, 2), context.attr("out_dtype"), _rounding(context)
    multipliers, shifts = fixed_point(context.vector(1), context.vector(3))
    low, high = limits(out)

    def requantize(
        x: te.Tensor,
        m: te.Tensor,
        left: te.Tensor,
        right: te.Tensor,
        z_in: te.Tensor,
        z_out: te.Tensor,
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            code = x(*i).astype("int64") - entry(z_in, i, axis).astype("int64")
            shift = entry(right, i, axis)
            product = (code << entry(left, i, axis)) * entry(m, i, axis)
            one = tirx.const(1, "int64")
            half = one << (shift - one)
            if rounding == "TONEAREST":
                half = tirx.Select(code >= 0, half, half - one)
            elif rounding == "TONEAREST_EVEN":
                half = half - one + ((product >> shift) & one)
            result = ((product + half) >> shift) + z_out[0].astype("int64")
            return clipped(result, low, high).astype(out)

        return stage(x.shape, element, name="requantize")

    return context.call_te(
        "requantize",
        requantize,
        [
            context.args[0],
            context.const(multipliers, "int64"),
            context.const(np.maximum(shifts, 0), "int64"),
            context.const(31 - np.minimum(shifts, 0), "int64"),
            context.const(context.vector(2), "int32"),
            context.const(context.vector(4), "int32"),
        ],
    )


ROUNDING = Attribute("rounding", "TONEAREST_EVEN", f"one of {', '.join(ROUNDINGS)}")

REQUANTIZE = QnnOp(
    "qnn.requantize",
    ("data", "input_scale", "input_zero_point", "output_scale", "output_zero_point"),
    (
        AXIS,
        ROUNDING,
        Attribute("compute_dtype", "float32", f"one of {', '.join(COMPUTE)}"),
        Attribute("out_dtype", "int8", "integer type of the result"),
    ),
    _infer_requantize,
    _lower_requantize,
    "int32/int64: sat(rint(f32(x - z_in) * f32(s_in / s_out)) + z_out); "
    "8/16-bit codes: dequantize, then quantize by division",
)

OPS = (
    QnnOp(
        "qnn.quantize",
        ("data", "output_scale", "output_zero_point"),
        (AXIS, Attribute("out_dtype", REQUIRED, "integer type of the result"), ROUNDING),
        _infer_quantize,
        _lower_quantize,
        "sat(rint(x / scale) + zero_point); NaN: the smallest",
    ),
    QnnOp(
        "qnn.dequantize",
        ("data", "input_scale", "input_zero_point"),
        (AXIS, Attribute("out_dtype", "float32", "float32 or float16")),
        _infer_dequantize,
        _lower_dequantize,
        "f32(q - zero_point) * scale",
    ),
    REQUANTIZE,
)


# ---- qnn.simulated_quantize and qnn.simulated_dequantize: the type and the parameters are tensors
#
# Relay has both, with these names, arguments and order; these records are for hosts that lack
# them. The type of the codes is a number at run time, so one compiled module tries all of them.

_CODE = 1


def _infer_simulated_quant(context: CallContext) -> ResultType:
    shape, dtype = context.tensor(0)
    if dtype != "float32":
        context.fail(f"data has dtype {dtype}", "give float32: codes are simulated by real numbers")
    context.expect_vector(_CODE, "int32")
    channel_axis(context, 2, 3)
    return ResultType.of(shape, "float32")


def _channel_parameter(vector: te.Tensor, indices: Any, axis: int) -> Prim:
    return vector() if len(vector.shape) == 0 else entry(vector, indices, axis)


def _simulated_lower_quantize(context: CallContext) -> Any:
    axis = channel_axis(context, 2, 3)

    def simulated_quantize(
        x: te.Tensor, code: te.Tensor, scale: te.Tensor, zero_point: te.Tensor
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            shift = _channel_parameter(zero_point, i, axis).astype("float32")
            value = tirx.nearbyint(x(*i) / _channel_parameter(scale, i, axis)) + shift
            return _saturated(value, x(*i), _channel_parameter(code, i, axis))

        return stage(x.shape, element, name="simulated_quantize")

    return context.call_te("simulated_quantize", simulated_quantize, context.args)


def _saturated(value: Prim, otherwise: Prim, code: Prim) -> Prim:
    """Returns ``value`` clipped to the type that ``code`` names; ``otherwise`` for no type."""
    low = tirx.const(0.0, "float32")
    high = tirx.const(0.0, "float32")
    for dtype, number in CODES.items():
        chosen = code == tirx.const(number, "int32")
        low = tirx.Select(chosen, tirx.const(float(dtype.qmin), "float32"), low)
        high = tirx.Select(chosen, tirx.const(float(dtype.qmax), "float32"), high)
    # min and max leave NaN to the host's instruction; quantize makes it the smallest code.
    number = tirx.Select(tirx.isnan(value), low, value)
    clipped = tirx.min(tirx.max(number, low), high)
    return tirx.Select(code == tirx.const(0, "int32"), otherwise, clipped)


def _simulated_lower_dequantize(context: CallContext) -> Any:
    axis = channel_axis(context, 2, 3)

    def simulated_dequantize(
        x: te.Tensor, code: te.Tensor, scale: te.Tensor, zero_point: te.Tensor, zero: te.Tensor
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            shift = _channel_parameter(zero_point, i, axis).astype("float32")
            real = fenced((x(*i) - shift) * _channel_parameter(scale, i, axis), zero)
            disabled = _channel_parameter(code, i, axis) == tirx.const(0, "int32")
            return tirx.Select(disabled, x(*i), real)

        return stage(x.shape, element, name="simulated_dequantize")

    return context.call_te(
        "simulated_dequantize", simulated_dequantize, [*context.args, context.fence()]
    )


_TYPES = ", ".join(f"{number} {dtype}" for dtype, number in CODES.items())

SIMULATED_OPS = (
    QnnOp(
        "qnn.simulated_quantize",
        ("data", "out_dtype", "output_scale", "output_zero_point"),
        (AXIS,),
        _infer_simulated_quant,
        _simulated_lower_quantize,
        "clip(rint(x / scale) + zero_point) in float32; out_dtype is an int32 tensor: "
        f"0 data itself, {_TYPES}",
    ),
    QnnOp(
        "qnn.simulated_dequantize",
        ("data", "in_dtype", "input_scale", "input_zero_point"),
        (AXIS,),
        _infer_simulated_quant,
        _simulated_lower_dequantize,
        "(q - zero_point) * scale in float32; in_dtype is an int32 tensor: "
        f"0 data itself, {_TYPES}",
    ),
)


# ---- qnn.unpack: codes of less than a byte, as files pack them, one to a byte

_WIDTHS = (2, 4)


def _infer_unpack(context: CallContext) -> ResultType:
    context.expect_dtype(0, "uint8")
    shape, bits = context.shape(0), context.attr("bits")
    if not shape:
        context.fail("data has no axes", "give bytes along an axis")
    if bits not in _WIDTHS:
        context.fail(f"bits is {bits}", "give 2 or 4")
    dtype = "int8" if context.attr("signed") else "uint8"
    return ResultType.of([*shape[:-1], shape[-1] * (8 // bits)], dtype)


def _lower_unpack_bits(context: CallContext) -> Any:
    bits, signed = context.attr("bits"), bool(context.attr("signed"))
    each = 8 // bits

    def unpack(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            byte: Any = x(*at[:-1], tirx.floordiv(at[-1], each))
            place = tirx.floormod(at[-1], each) * bits
            shifted = tirx.shift_right(byte.astype("int32"), place.astype("int32"))
            code = tirx.bitwise_and(shifted, tirx.const((1 << bits) - 1, "int32"))
            if not signed:
                return code.astype("uint8")
            half = tirx.const(1 << (bits - 1), "int32")
            # Carries the sign bit of the code on to all bits.
            return (tirx.bitwise_xor(code, half) - half).astype("int8")

        return stage([*x.shape[:-1], x.shape[-1] * each], element, name="unpack")

    return context.call_te("qnn_unpack", unpack, context.args)


UNPACK_OPS = (
    QnnOp(
        "qnn.unpack",
        ("data",),
        (
            Attribute("bits", REQUIRED, "bits of a code, 2 or 4"),
            Attribute("signed", REQUIRED, "codes are two's complement, and the result is int8"),
        ),
        _infer_unpack,
        _lower_unpack_bits,
        "the codes in every byte of the last axis, the lowest bits first",
    ),
)


# ---- qnn.quantize_minifloat and qnn.dequantize_minifloat: floats of 8 bits and fewer as bytes
#
# TVM compiles these types for GPUs only. On a CPU a tensor of them is one of uint8, an element
# per byte, whose bits are the number's; only these two operators know what they mean. A finite
# format with ``m`` bits of mantissa and smallest normal exponent ``k`` has the codes ``0, 1, 2
# …`` in the order of their magnitudes, ``n * 2**(e - m)`` with ``n < 2**(m + 1)`` and ``e >= k``
# has code ``((e - k) << m) + n``, and the code behind the largest number is that of overflow.

FORMATS = {dtype.label: dtype for dtype in DType if dtype.is_small_float}
MINIFLOAT_ROUNDINGS = ("nearest", "up", "down")


@dataclass(frozen=True, slots=True)
class _Format:
    """What the bits of a signed format mean.

    Attributes:
        mantissa: Bits of its mantissa.
        lowest: Exponent of its smallest normal number.
        largest: Its largest finite number.
        beyond: The number that the code behind the largest one would be.
        sign: The bit of the sign.
        nan: The code of NaN.
        negative_zero: Whether it has one.
    """

    mantissa: int
    lowest: int
    largest: float
    beyond: float
    sign: int
    nan: int
    negative_zero: bool

    @staticmethod
    def of(dtype: DType) -> _Format:
        info: Any = ml_dtypes.finfo(dtype.numpy)
        largest = float(info.max)
        ulp = 2.0 ** (int(np.floor(np.log2(largest))) - info.nmant)
        stored: Any = np.array([np.nan, -0.0], np.float32).astype(dtype.numpy).view(np.uint8)
        sign = 1 << (dtype.bits - 1)
        return _Format(
            int(info.nmant),
            int(np.log2(float(info.smallest_normal))),
            largest,
            largest + ulp,
            sign,
            int(stored[0]),
            int(stored[1]) == sign,
        )


def decoded(dtype: DType) -> NDArray[np.float32]:
    """Returns the number of every code."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    return codes.view(dtype.numpy).astype(np.float32)


def _format(context: CallContext) -> DType:
    name = context.attr("format")
    if name not in FORMATS:
        context.fail(f"format is {name!r}", f"use one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _checked_scale_axis(context: CallContext) -> int:
    shape = context.shape(0)
    axis = context.axis(len(shape)) if shape else 0
    context.expect_vector(1, "float32", *(shape[axis : axis + 1] or [1]), what=f"axis {axis}")
    return axis


def _minifloat_infer_quantize(context: CallContext) -> ResultType:
    context.expect_dtype(0, *FLOATS)
    _format(context)
    _checked_scale_axis(context)
    if context.attr("rounding") not in MINIFLOAT_ROUNDINGS:
        context.fail(
            f"rounding is {context.attr('rounding')!r}",
            f"use one of {', '.join(MINIFLOAT_ROUNDINGS)}",
        )
    return ResultType.of(context.shape(0), "uint8")


def _minifloat_infer_dequantize(context: CallContext) -> ResultType:
    context.expect_dtype(0, "uint8")
    _format(context)
    _checked_scale_axis(context)
    return ResultType.of(context.shape(0), "float32")


def _bits(value: Prim) -> Prim:
    return tirx.reinterpret("int32", value)


def _int(value: int) -> Prim:
    return tirx.const(value, "int32")


def _float(value: float) -> Prim:
    return tirx.const(value, "float32")


def _code(value: Prim, known: _Format, *, saturate: bool) -> Prim:
    """Returns the code nearest to a float32 value, ties to even."""
    # The code behind the largest one is that of overflow, so that no case needs a branch.
    size = tirx.min(tirx.abs(value), _float(known.largest if saturate else known.beyond))
    # Subnormal numbers have the unit of the smallest normal one.
    exponent = tirx.max((_bits(size) >> _int(23)) - _int(127), _int(known.lowest))
    unit = tirx.reinterpret("float32", (_int(known.mantissa + 127) - exponent) << _int(23))
    # A product with a power of two is exact: the number is rounded once.
    whole = tirx.nearbyint(size * unit)
    count = whole.astype("int32")
    code = ((exponent - _int(known.lowest)) << _int(known.mantissa)) + count
    sign = tirx.Select(_bits(value) < _int(0), _int(known.sign), _int(0))
    if not known.negative_zero:
        # The bits of -0 are NaN in such a format.
        sign = tirx.Select(whole == _float(0), _int(0), sign)
    return tirx.Select(tirx.isnan(value), _int(known.nan), tirx.bitwise_or(code, sign))


_E8M0_NAN, _E8M0_LARGEST = 255, 254


def _exponent(value: Prim, rounding: str, *, saturate: bool) -> Prim:
    """Returns the code of float8_e8m0fnu, a power of two without a sign: its biased exponent.

    Infinity is NaN, and halves are rounded as ONNX's reference rounds them.
    """
    bits = tirx.bitwise_and(_bits(value), _int(0x7FFFFFFF))
    whole, rest = bits >> _int(23), tirx.bitwise_and(bits, _int(0x7FFFFF))
    if rounding == "up":
        raised = rest > _int(0)
    elif rounding == "nearest":
        raised = tirx.Select(whole == _int(0), rest > _int(0x400000), rest >= _int(0x400000))
    else:
        raised = None
    code = whole if raised is None else tirx.Select(raised, whole + _int(1), whole)
    most = _E8M0_LARGEST if saturate else _E8M0_NAN
    finite = tirx.min(code, _int(most))
    return tirx.Select(whole == _int(_E8M0_NAN), _int(_E8M0_NAN), finite)


def _minifloat_lower_quantize(context: CallContext) -> Any:
    axis, dtype, rounding = _checked_scale_axis(context), _format(context), context.attr("rounding")
    saturate = bool(context.attr("saturate"))
    unsigned = dtype is DType.FLOAT8_E8M0
    known = None if unsigned else _Format.of(dtype)

    def quantize_minifloat(x: te.Tensor, scale: te.Tensor) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            value = x(*i).astype("float32") / entry(scale, i, axis)
            if known is None:
                code = _exponent(value, rounding, saturate=saturate)
            else:
                code = _code(value, known, saturate=saturate)
            return code.astype("uint8")

        return stage(x.shape, element, name="quantize_minifloat")

    scale = context.const(context.vector(1), "float32")
    return context.call_te("quantize_minifloat", quantize_minifloat, [context.args[0], scale])


def _minifloat_lower_dequantize(context: CallContext) -> Any:
    axis, dtype = _checked_scale_axis(context), _format(context)
    last = _int((1 << dtype.bits) - 1)

    def dequantize_minifloat(x: te.Tensor, scale: te.Tensor, table: te.Tensor) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            number = table[tirx.bitwise_and(x(*i).astype("int32"), last)]
            return number * entry(scale, i, axis)

        return stage(x.shape, element, name="dequantize_minifloat")

    scale = context.const(context.vector(1), "float32")
    table = context.const(decoded(dtype), "float32")
    return context.call_te(
        "dequantize_minifloat", dequantize_minifloat, [context.args[0], scale, table]
    )


FORMAT = Attribute("format", REQUIRED, f"one of {', '.join(FORMATS)}")

MINIFLOAT_OPS = (
    QnnOp(
        "qnn.quantize_minifloat", ("data", "output_scale"),
        (
            AXIS, FORMAT,
            Attribute("saturate", True, "what is too large becomes the largest number, else "
                      "infinity, or NaN where the format has no infinity"),
            Attribute("rounding", "nearest", "nearest (ties to even); up or down: e8m0 only"),
        ),
        _minifloat_infer_quantize, _minifloat_lower_quantize,
        "uint8 bits of the number nearest to x / scale, ties to even; NaN stays NaN",
    ),
    QnnOp(
        "qnn.dequantize_minifloat", ("data", "input_scale"), (AXIS, FORMAT),
        _minifloat_infer_dequantize, _minifloat_lower_dequantize, "the number of the bits * scale",
    ),
)  # fmt: skip
