"""QLinearMatMul, QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul, FusedMatMul, FusedGemm."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.context import LoweringContext
from qdqbridge.onnx_io.lowering.integer_products import (
    along_rows,
    matmul_sum,
    of_run_time,
    rounded,
)
from qdqbridge.onnx_io.lowering.normalization import activated


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
