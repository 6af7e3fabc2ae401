"""qnn.quantize_minifloat and qnn.dequantize_minifloat: floats of 8 bits and fewer as bytes.

TVM compiles these types for GPUs only. On a CPU a tensor of them is one of uint8, an element per
byte, whose bits are the number's; only these two operators know what they mean. A finite format
with ``m`` bits of mantissa and smallest normal exponent ``k`` has the codes ``0, 1, 2 …`` in the
order of their magnitudes, ``n * 2**(e - m)`` with ``n < 2**(m + 1)`` and ``e >= k`` has code
``((e - k) << m) + n``, and the code behind the largest number is that of overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, entry, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import REQUIRED, Attribute, QnnOp
from qdqbridge.tvm.qnn.dialect.quantize import AXIS

FORMATS = {dtype.label: dtype for dtype in DType if dtype.is_small_float}
ROUNDINGS = ("nearest", "up", "down")
_FLOATS = ("float32", "float16")


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


def _infer_quantize(context: CallContext) -> ResultType:
    context.expect_dtype(0, *_FLOATS)
    _format(context)
    _checked_scale_axis(context)
    if context.attr("rounding") not in ROUNDINGS:
        context.fail(
            f"rounding is {context.attr('rounding')!r}", f"use one of {', '.join(ROUNDINGS)}"
        )
    return ResultType.of(context.shape(0), "uint8")


def _infer_dequantize(context: CallContext) -> ResultType:
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
    size = tirx.min(tirx.abs(value), _float(known.largest if saturate else known.beyond))
    exponent = tirx.max((_bits(size) >> _int(23)) - _int(127), _int(known.lowest))
    unit = tirx.reinterpret("float32", (_int(known.mantissa + 127) - exponent) << _int(23))
    whole = tirx.nearbyint(size * unit)
    count = whole.astype("int32")
    code = ((exponent - _int(known.lowest)) << _int(known.mantissa)) + count
    sign = tirx.Select(_bits(value) < _int(0), _int(known.sign), _int(0))
    if not known.negative_zero:
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


def _lower_quantize(context: CallContext) -> Any:
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


def _lower_dequantize(context: CallContext) -> Any:
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

OPS = (
    QnnOp(
        "qnn.quantize_minifloat", ("data", "output_scale"),
        (
            AXIS, FORMAT,
            Attribute("saturate", True, "what is too large becomes the largest number, else "
                      "infinity, or NaN where the format has no infinity"),
            Attribute("rounding", "nearest", "nearest (ties to even); up or down: e8m0 only"),
        ),
        _infer_quantize, _lower_quantize,
        "uint8 bits of the number nearest to x / scale, ties to even; NaN stays NaN",
    ),
    QnnOp(
        "qnn.dequantize_minifloat", ("data", "input_scale"), (AXIS, FORMAT),
        _infer_dequantize, _lower_dequantize, "the number of the bits * scale",
    ),
)  # fmt: skip
