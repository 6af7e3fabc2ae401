"""qnn.simulated_quantize and qnn.simulated_dequantize: the type and the parameters are tensors.

Relay has both, with these names, arguments and order; these records are for hosts that lack them.
The type of the codes is a number at run time, so one compiled module tries all of them.
"""

from __future__ import annotations

from typing import Any

from tvm import te

from qdqbridge.core.ops.simulated import CODES
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, entry, fenced, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import QnnOp
from qdqbridge.tvm.qnn.dialect.quantize import AXIS, channel_axis

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


def _lower_quantize(context: CallContext) -> Any:
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
    number = tirx.Select(tirx.isnan(value), low, value)
    clipped = tirx.min(tirx.max(number, low), high)
    return tirx.Select(code == tirx.const(0, "int32"), otherwise, clipped)


def _lower_dequantize(context: CallContext) -> Any:
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

OPS = (
    QnnOp(
        "qnn.simulated_quantize",
        ("data", "out_dtype", "output_scale", "output_zero_point"),
        (AXIS,),
        _infer_simulated_quant,
        _lower_quantize,
        "clip(rint(x / scale) + zero_point) in float32; out_dtype is an int32 tensor: "
        f"0 data itself, {_TYPES}",
    ),
    QnnOp(
        "qnn.simulated_dequantize",
        ("data", "in_dtype", "input_scale", "input_zero_point"),
        (AXIS,),
        _infer_simulated_quant,
        _lower_dequantize,
        "(q - zero_point) * scale in float32; in_dtype is an int32 tensor: "
        f"0 data itself, {_TYPES}",
    ),
)
