"""QLinearMatMul, QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul, FusedMatMul, FusedGemm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.context import LoweringContext, usual_rank
from qdqbridge.onnx_io.lowering.normalization import activated

# ---- Products of stored integers whose scales or zero points only the run knows
#
# Between Q and DQ of run time a product would be one of floats, rounded in its sums and once more
# in its division. These are what the QLinear operators mean: an exact int32 sum, one float32
# multiplier ``M = (sx * sw) / sy``, one rounding, half to even, and then the zero point.
#
# Source: ONNX QLinearMatMul-10 and -21, QLinearConv-10; onnxruntime
# core/providers/cpu/quantization/quantize_linear_matmul.cc, qlinearconv.cc.

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


def counts_rows(context: LoweringContext, zero: str, right: str) -> bool:
    """True for a zero point per row, times a matrix of known extents."""
    rows, shape = context.known.shape(zero) if zero else None, context.known.shape(right)
    known = rows and shape and len(shape) > 1 and isinstance(shape[-2], int)
    return bool(known) and any(isinstance(n, int) and n > 1 for n in rows or ())


def matmul_sum(
    context: LoweringContext, left: tuple[str, str], right: tuple[str, str], result: str = ""
) -> str:
    """Returns ``(a - za) @ (b - zb)`` in int32; operands are data and zero point.

    With one per row it is ``MatMulInteger(a, b, 0, zb) - za * MatMulInteger(1, b, 0, zb)``, which
    wraps to the same sum: onnxruntime's has one zero point of the first operand.
    """
    (a, za), (b, zb) = left, right
    if counts_rows(context, za, b):
        (terms, _) = (context.known.shape(b) or (0, 0))[-2:]
        ones = context.enter(np.ones((1, int(terms)), np.uint8), "ones")
        plain, sums = (matmul_sum(context, (each, ""), right) for each in (a, ones))
        wide = context.op("Cast", [along_rows(context, za)], to=TensorProto.INT32)
        return context.op("Sub", [plain, context.op("Mul", [sums, wide])], result)
    if not za and zb:
        kind = context.known.element_type(a)
        if kind not in _BYTES:
            raise context.refusal(
                "only its second operand has a zero point",
                "the type of a zero point for the first one is unknown",
                "give both zero points",
            )
        za = context.enter(np.zeros((), np.int8 if kind == TensorProto.INT8 else np.uint8), "zero")
    return context.op("MatMulInteger", [a, b, za, zb], result)


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


# ----


def qlinear_matmul(context: LoweringContext) -> None:
    """``Q(MatMul(DQ(a), DQ(b)))``; b may have a scale per column.

    With parameters of run time the same in integers. Against onnxruntime 1.31's kernel: bit for bit
    equal, of run time 1.32's. Source: ONNX QLinearMatMul-10 and -21; onnxruntime
    docs/ContribOperators.md.
    """
    a, sa, za, b, sb, zb, sy, zy = (context.input(i) for i in range(8))
    if of_run_time(context, [sa, za, sb, zb, sy, zy], [a, b]):
        total = matmul_sum(context, (a, za), (b, zb))
        scales = along_rows(context, sa), sb, along_rows(context, sy)
        rounded(context, total, scales, zy, context.proto.output[0])
        return
    left = context.dequantize(
        a, _flatten_qparams(context, sa, -2), _flatten_qparams(context, za, -2), axis=-2
    )
    right = context.dequantize(
        b, _flatten_qparams(context, sb, -1), _flatten_qparams(context, zb, -1), axis=-1
    )
    context.quantize(context.op("MatMul", [left, right]), sy, zy, a, context.proto.output[0])


def matmul_integer(context: LoweringContext) -> None:
    """A product whose first operand has a zero point per row; others stay as they are.

    Source: ONNX MatMulInteger-10.
    """
    a, b, za, zb = (context.input(i) for i in range(4))
    if counts_rows(context, za, b):
        matmul_sum(context, (a, za), (b, zb), context.proto.output[0])
    else:
        context.known.lowered.append(context.proto)


def _flatten_qparams(context: LoweringContext, name: str, axis: int) -> str:
    """Returns parameters ``[1, …, N]`` (from opset 21 on) as the vector that they are."""
    rank = context.known.rank(name)
    if not name or rank is None or rank < 2:
        return name
    array = context.known.array(name)
    if array is None:
        return name
    if array.size not in (1, array.shape[axis]):
        raise context.refusal(
            "its parameters vary along several axes",
            f"'{name}' has shape {array.shape}",
            "give one scale per tensor, or one per row or column",
        )
    return context.enter(array.reshape(-1), "vector")


def qgemm(context: LoweringContext) -> None:
    """``Q(Gemm(DQ(a), DQ(b), DQ(c)))``, or the float Gemm where ``y_scale`` is left out.

    c is int32 in units of ``alpha * sa * sb``. With parameters of run time the same in integers.
    Against onnxruntime 1.31's kernel: bit for bit equal. Source: onnxruntime
    docs/ContribOperators.md, core/providers/cpu/quantization/quant_gemm.cc.
    """
    a, sa, za, b, sb, zb, c, sy, zy = (context.input(i) for i in range(9))
    alpha, trans_b = context.float_("alpha", 1.0), context.flag("transB")
    if sy and zy and of_run_time(context, [sa, za, sb, zb, sy, zy], [a, b]):
        left = context.op("Transpose", [a], perm=[1, 0]) if context.flag("transA") else a
        right = context.op("Transpose", [b], perm=[1, 0]) if trans_b else b
        total = matmul_sum(context, (left, za), (right, zb))
        if alpha != 1.0:
            sa = context.product([context.enter(np.float32(alpha), "alpha"), sa])
        total = context.op("Add", [total, c]) if c else total
        rounded(context, total, (sa, sb, sy), zy, context.proto.output[0])
        return
    operands = [
        context.dequantize(a, sa, za),
        context.dequantize(b, sb, zb, axis=0 if trans_b else 1),
    ]
    if c:
        factors = [sa, sb]
        if alpha != 1.0:
            factors.insert(0, context.enter(np.float32(alpha), "alpha"))
        operands.append(context.dequantize(c, context.product(factors), axis=-1))
    output = context.proto.output[0]
    y = context.op(
        "Gemm", operands, "" if sy else output,
        alpha=alpha, transA=int(context.flag("transA")), transB=int(trans_b),
    )  # fmt: skip
    if sy:
        context.quantize(y, sy, zy, a, output)


def integer_to_float(context: LoweringContext) -> None:
    """``MatMul(DQ(a), DQ(b)) + bias``; with run-time parameters the same in integers.

    Against onnxruntime 1.31's kernel: bit for bit equal.
    Source: onnxruntime docs/ContribOperators.md.
    """
    a, b, sa, sb, za, zb, bias = (context.input(i) for i in range(7))
    output = context.proto.output[0]
    result = "" if bias else output
    if all(context.known.is_constant(name) for name in (sa, sb, za, zb) if name):
        operands = [context.dequantize(a, sa, za), context.dequantize(b, sb, zb, axis=-1)]
        y = context.op("MatMul", operands, result)
    else:
        y = _dynamic_product(context, (a, sa, za), (b, sb, zb), result)
    if bias:
        context.op("Add", [y, bias], output)


def dynamic_matmul(context: LoweringContext) -> None:
    """``DynamicQuantizeLinear(a)``, ``MatMulInteger``, and the product of the scales.

    What onnxruntime's quantize_dynamic writes; its fused kernel rounds alike.
    Source: onnxruntime docs/ContribOperators.md, core/optimizer/matmul_integer_to_float.cc.
    """
    a, b, sb, zb, bias = (context.input(i) for i in range(5))
    output = context.proto.output[0]
    stored = context.op("DynamicQuantizeLinear", [a], outputs=3)
    scale, zero_point = list(context.known.lowered[-1].output)[1:]
    y = _dynamic_product(context, (stored, scale, zero_point), (b, sb, zb), "" if bias else output)
    if bias:
        context.op("Add", [y, bias], output)


def _dynamic_product(
    context: LoweringContext, left: tuple[str, str, str], right: tuple[str, str, str], result: str
) -> str:
    a, sa, za = left
    b, sb, zb = right
    total = matmul_sum(context, (a, za), (b, zb))
    real = context.op("Cast", [total], to=TensorProto.FLOAT)
    return context.op("Mul", [real, context.op("Mul", [sa, sb])], result)


def fused_matmul(context: LoweringContext) -> None:
    """``alpha * MatMul(a, b)`` of transposed operands.

    Source: onnxruntime docs/ContribOperators.md.
    """
    a = _permuted(context, context.input(0), "A")
    b = _permuted(context, context.input(1), "B")
    alpha, output = context.float_("alpha", 1.0), context.proto.output[0]
    if alpha == 1.0:
        context.op("MatMul", [a, b], output)
        return
    dtype = np.float16 if context.known.element_type(a) == TensorProto.FLOAT16 else np.float32
    factor = context.enter(np.array(alpha, dtype), "alpha")
    context.op("Mul", [context.op("MatMul", [a, b]), factor], output)


def _permuted(context: LoweringContext, name: str, which: str) -> str:
    swap, batch = context.flag(f"trans{which}"), context.flag(f"transBatch{which}")
    if not swap and not batch:
        return name
    rank = context.known.rank(name)
    if rank is None:
        raise context.refusal(
            f"the rank of operand {which} is unknown",
            f"'{name}' is transposed, which needs its rank",
            "run shape inference on the model",
        )
    perm = list(range(rank))
    if batch:  # (d0, d1, …, dm, dk) -> (d1, …, dm, d0, dk)
        perm = [*perm[1:-1], 0, perm[-1]]
    if swap and rank > 1:
        perm[-2:] = [perm[-1], perm[-2]]
    return context.op("Transpose", [name], perm=perm)


def fused_gemm(context: LoweringContext) -> None:
    """``activation(Gemm(a, b, c))``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    own = ("activation", "activation_alpha", "activation_beta", "activation_gamma")
    kind, output = context.string("activation", ""), context.proto.output[0]
    inputs = [context.input(i) for i in range(3)]
    y = context.op("Gemm", inputs, "" if kind else output, **context.same_attributes(*own))
    if kind:
        given = [context.float_(name, 0.0) for name in own[1:] if context.has(name)]
        activated(context, kind, given, y, output)
