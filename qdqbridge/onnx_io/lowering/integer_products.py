"""Products of stored integers whose scales or zero points only the run knows.

Between Q and DQ of run time a product would be one of floats, rounded in its sums and once more in
its division. These are what the QLinear operators mean: an exact int32 sum, one float32 multiplier
``M = (sx * sw) / sy``, one rounding, half to even, and then the zero point.

Source: ONNX QLinearMatMul-10 and -21, QLinearConv-10; onnxruntime
core/providers/cpu/quantization/quantize_linear_matmul.cc, qlinearconv.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.context import LoweringContext, usual_rank

_BYTES = (TensorProto.INT8, TensorProto.UINT8)
_ROUND = 11
"""The opset since which there is Round."""
_SPAN, _EXACT = 255, 1 << 24
"""The largest difference of two 8-bit integers, and the end of float32's exact ones."""


def of_run_time(context: LoweringContext, parameters: Sequence[str], data: Sequence[str]) -> bool:
    """True where a scale or zero point is not constant, and all data are integers of 8 bits."""
    known = context.known
    constant = all(known.is_constant(name) for name in parameters if name)
    return not constant and all(known.element_type(name) in _BYTES for name in data)


def matmul_sum(context: LoweringContext, left: tuple[str, str], right: tuple[str, str]) -> str:
    """Returns ``(a - za) @ (b - zb)`` in int32; operands are data and zero point."""
    (a, za), (b, zb) = left, right
    if not za and zb:
        kind = context.known.element_type(a)
        if kind not in _BYTES:
            raise context.refusal(
                "only its second operand has a zero point",
                "the type of a zero point for the first one is unknown",
                "give both zero points",
            )
        za = context.enter(np.zeros((), np.int8 if kind == TensorProto.INT8 else np.uint8), "zero")
    return context.op("MatMulInteger", [a, b, za, zb])


def conv_sum(
    context: LoweringContext, left: tuple[str, str], right: tuple[str, str], result: str = ""
) -> str:
    """Returns ``Conv(x - zx, w - zw)`` in int32; operands are data and zero point.

    Where float32 holds every sum exactly it is ``Cast(Conv(x - zx, DQ(w, scale 1)))``: where
    ``255 * sum |w - zw| < 2^24`` for every output channel, each partial sum is an integer that
    float32 represents, in any order of additions. Elsewhere it is a ConvInteger. onnxruntime's has
    one zero point of the weight: where there may be one per channel, the sum of each window is
    subtracted as often as it says.
    """
    (x, zx), (w, zw) = left, right
    window = context.same_attributes("channels_last")
    weight, zero = context.known.array(w), np.zeros((), np.int64)
    zero = context.known.array(zw) if zw else zero
    if weight is not None and zero is not None and _exact(context, weight, zero):
        real = context.op("Cast", [x], to=TensorProto.FLOAT)
        if zx:
            real = context.op("Sub", [real, context.op("Cast", [zx], to=TensorProto.FLOAT)])
        unit = context.enter(np.ones(zero.shape, np.float32), "unit")
        total = context.op("Conv", [real, context.dequantize(w, unit, zw, axis=0)], **window)
        return context.op("Cast", [total], result, to=TensorProto.INT32)
    if not zw or context.known.shape(zw) in ((), (1,)):
        return context.op("ConvInteger", [x, w, zx, zw], result, **window)
    if weight is not None:
        ones = context.enter(np.ones(weight.shape, np.uint8), "ones")
    else:
        whole = context.op("Cast", [w], to=TensorProto.INT32)
        ones = context.op("Cast", [context.op("Equal", [whole, whole])], to=TensorProto.UINT8)
    sums = conv_sum(context, left, (ones, ""))
    wide = context.op("Cast", [along_channels(context, zw, w)], to=TensorProto.INT32)
    plain = conv_sum(context, left, (w, ""))
    return context.op("Sub", [plain, context.op("Mul", [sums, wide])], result)


def _exact(context: LoweringContext, weight: NDArray[Any], zero: NDArray[Any]) -> bool:
    if weight.ndim == 0 or zero.size not in (1, len(weight)):
        raise context.fault(
            "the weight's zero point does not fit",
            why=f"it has shape {zero.shape}, the weight {weight.shape}",
        )
    if not weight.size:
        return True
    rows = weight.reshape(len(weight), -1).astype(np.int64) - zero.reshape(-1, 1).astype(np.int64)
    return int(np.abs(rows).sum(axis=1).max(initial=0)) * _SPAN < _EXACT


def along_channels(context: LoweringContext, vector: str, weight: str) -> str:
    """Returns a parameter of each channel so that it broadcasts along axis 1 of a result."""
    if context.known.shape(vector) in ((), (1,)):
        return vector
    shape = [-1, *([1] * (usual_rank(context, weight) - 2))]
    return context.op("Reshape", [vector, context.enter(np.array(shape, np.int64), "shape")])


def along_rows(context: LoweringContext, vector: str) -> str:
    """Returns a parameter of each row so that it broadcasts against a matrix."""
    shape = context.known.shape(vector)
    if shape is None or len(shape) != 1 or shape == (1,):
        return vector
    return context.op("Reshape", [vector, context.enter(np.array([-1, 1], np.int64), "shape")])


def rounded(
    context: LoweringContext,
    total: str,
    scales: tuple[str, str, str],
    zero_point: str,
    result: str = "",
) -> str:
    """Returns ``saturate(rint(float32(total) * M) + zy)`` with ``M = (sx * sw) / sy``.

    Args:
        context: The node.
        total: The int32 sum.
        scales: Of both operands and of the result, so that they broadcast against it.
        zero_point: Of the result.
        result: The name of the result.
    """
    left, right, own = (_float32(context, scale) for scale in scales)
    multiplier = context.op("Div", [context.op("Mul", [left, right]), own])
    real = context.op("Mul", [context.op("Cast", [total], to=TensorProto.FLOAT), multiplier])
    shape = context.known.shape(zero_point)
    if shape in ((), (1,)):
        unit = context.enter(np.ones((1,) * len(shape), np.float32), "unit")
        return context.quantize(real, unit, zero_point, zero_point, result)
    if context.main_opset < _ROUND:
        one = context.enter(np.ones((1,), np.float32), "one")
        unit = context.op("Expand", [one, context.op("Shape", [zero_point])])
        return context.quantize(real, unit, zero_point, zero_point, result)
    shift = context.op("Cast", [along_rows(context, zero_point)], to=TensorProto.FLOAT)
    shifted = context.op("Add", [context.op("Round", [real]), shift])
    unit = context.enter(np.ones((), np.float32), "unit")
    return context.quantize(shifted, unit, "", zero_point, result)


def _float32(context: LoweringContext, scale: str) -> str:
    if context.known.element_type(scale) == TensorProto.FLOAT:
        return scale
    return context.op("Cast", [scale], to=TensorProto.FLOAT)
