"""qnn.quantize, qnn.dequantize and qnn.requantize."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import (
    ROUNDINGS,
    Prim,
    clipped,
    entry,
    real,
    rounded,
    saturated,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import REQUIRED, Attribute, QnnOp
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
