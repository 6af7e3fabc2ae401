"""QLinearMatMul, QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul, FusedMatMul, FusedGemm."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.activation import activated
from qdqbridge.onnx_io.lowering.integer_products import (
    along_rows,
    matmul_sum,
    of_run_time,
    rounded,
)
from qdqbridge.onnx_io.lowering.site import LoweringSite


def qlinear_matmul(site: LoweringSite) -> None:
    """``Q(MatMul(DQ(a), DQ(b)))``; b may have a scale per column.

    With parameters of run time the same in integers. Against onnxruntime 1.31's kernel: bit for bit
    equal, of run time 1.32's. Source: ONNX QLinearMatMul-10 and -21; onnxruntime
    docs/ContribOperators.md.
    """
    a, sa, za, b, sb, zb, sy, zy = (site.input(i) for i in range(8))
    if of_run_time(site, [sa, za, sb, zb, sy, zy], [a, b]):
        total = matmul_sum(site, (a, za), (b, zb))
        scales = along_rows(site, sa), sb, along_rows(site, sy)
        rounded(site, total, scales, zy, site.proto.output[0])
        return
    left = site.dequantize(a, _vector(site, sa, -2), _vector(site, za, -2), axis=-2)
    right = site.dequantize(b, _vector(site, sb, -1), _vector(site, zb, -1), axis=-1)
    site.quantize(site.op("MatMul", [left, right]), sy, zy, a, site.proto.output[0])


def _vector(site: LoweringSite, name: str, axis: int) -> str:
    """Returns parameters ``[1, …, N]`` (from opset 21 on) as the vector that they are."""
    rank = site.known.rank(name)
    if not name or rank is None or rank < 2:
        return name
    array = site.known.array(name)
    if array is None:
        return name
    if array.size not in (1, array.shape[axis]):
        raise site.refusal(
            "its parameters vary along several axes",
            f"'{name}' has shape {array.shape}",
            "give one scale per tensor, or one per row or column",
        )
    return site.enter(array.reshape(-1), "vector")


def qgemm(site: LoweringSite) -> None:
    """``Q(Gemm(DQ(a), DQ(b), DQ(c)))``, or the float Gemm where ``y_scale`` is left out.

    c is int32 in units of ``alpha * sa * sb``. With parameters of run time the same in integers.
    Against onnxruntime 1.31's kernel: bit for bit equal. Source: onnxruntime
    docs/ContribOperators.md, core/providers/cpu/quantization/quant_gemm.cc.
    """
    a, sa, za, b, sb, zb, c, sy, zy = (site.input(i) for i in range(9))
    alpha, trans_b = site.float_("alpha", 1.0), site.flag("transB")
    if sy and zy and of_run_time(site, [sa, za, sb, zb, sy, zy], [a, b]):
        left = site.op("Transpose", [a], perm=[1, 0]) if site.flag("transA") else a
        right = site.op("Transpose", [b], perm=[1, 0]) if trans_b else b
        total = matmul_sum(site, (left, za), (right, zb))
        if alpha != 1.0:
            sa = site.product([site.enter(np.float32(alpha), "alpha"), sa])
        total = site.op("Add", [total, c]) if c else total
        rounded(site, total, (sa, sb, sy), zy, site.proto.output[0])
        return
    operands = [site.dequantize(a, sa, za), site.dequantize(b, sb, zb, axis=0 if trans_b else 1)]
    if c:
        factors = [sa, sb]
        if alpha != 1.0:
            factors.insert(0, site.enter(np.float32(alpha), "alpha"))
        operands.append(site.dequantize(c, site.product(factors), axis=-1))
    output = site.proto.output[0]
    y = site.op(
        "Gemm", operands, "" if sy else output,
        alpha=alpha, transA=int(site.flag("transA")), transB=int(trans_b),
    )  # fmt: skip
    if sy:
        site.quantize(y, sy, zy, a, output)


def integer_to_float(site: LoweringSite) -> None:
    """``MatMul(DQ(a), DQ(b)) + bias``; with run-time parameters the same in integers.

    Against onnxruntime 1.31's kernel: bit for bit equal.
    Source: onnxruntime docs/ContribOperators.md.
    """
    a, b, sa, sb, za, zb, bias = (site.input(i) for i in range(7))
    output = site.proto.output[0]
    result = "" if bias else output
    if all(site.known.is_constant(name) for name in (sa, sb, za, zb) if name):
        operands = [site.dequantize(a, sa, za), site.dequantize(b, sb, zb, axis=-1)]
        y = site.op("MatMul", operands, result)
    else:
        y = _dynamic_product(site, (a, sa, za), (b, sb, zb), result)
    if bias:
        site.op("Add", [y, bias], output)


def dynamic_matmul(site: LoweringSite) -> None:
    """``DynamicQuantizeLinear(a)``, ``MatMulInteger``, and the product of the scales.

    What onnxruntime's quantize_dynamic writes; its fused kernel rounds alike.
    Source: onnxruntime docs/ContribOperators.md, core/optimizer/matmul_integer_to_float.cc.
    """
    a, b, sb, zb, bias = (site.input(i) for i in range(5))
    output = site.proto.output[0]
    stored = site.op("DynamicQuantizeLinear", [a], outputs=3)
    scale, zero_point = list(site.known.lowered[-1].output)[1:]
    y = _dynamic_product(site, (stored, scale, zero_point), (b, sb, zb), "" if bias else output)
    if bias:
        site.op("Add", [y, bias], output)


def _dynamic_product(
    site: LoweringSite, left: tuple[str, str, str], right: tuple[str, str, str], result: str
) -> str:
    a, sa, za = left
    b, sb, zb = right
    total = matmul_sum(site, (a, za), (b, zb))
    real = site.op("Cast", [total], to=TensorProto.FLOAT)
    return site.op("Mul", [real, site.op("Mul", [sa, sb])], result)


def fused_matmul(site: LoweringSite) -> None:
    """``alpha * MatMul(a, b)`` of transposed operands.

    Source: onnxruntime docs/ContribOperators.md.
    """
    a = _permuted(site, site.input(0), "A")
    b = _permuted(site, site.input(1), "B")
    alpha, output = site.float_("alpha", 1.0), site.proto.output[0]
    if alpha == 1.0:
        site.op("MatMul", [a, b], output)
        return
    dtype = np.float16 if site.known.element_type(a) == TensorProto.FLOAT16 else np.float32
    factor = site.enter(np.array(alpha, dtype), "alpha")
    site.op("Mul", [site.op("MatMul", [a, b]), factor], output)


def _permuted(site: LoweringSite, name: str, which: str) -> str:
    swap, batch = site.flag(f"trans{which}"), site.flag(f"transBatch{which}")
    if not swap and not batch:
        return name
    rank = site.known.rank(name)
    if rank is None:
        raise site.refusal(
            f"the rank of operand {which} is unknown",
            f"'{name}' is transposed, which needs its rank",
            "run shape inference on the model",
        )
    perm = list(range(rank))
    if batch:  # (d0, d1, …, dm, dk) -> (d1, …, dm, d0, dk)
        perm = [*perm[1:-1], 0, perm[-1]]
    if swap and rank > 1:
        perm[-2:] = [perm[-1], perm[-2]]
    return site.op("Transpose", [name], perm=perm)


def fused_gemm(site: LoweringSite) -> None:
    """``activation(Gemm(a, b, c))``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    own = ("activation", "activation_alpha", "activation_beta", "activation_gamma")
    kind, output = site.string("activation", ""), site.proto.output[0]
    inputs = [site.input(i) for i in range(3)]
    y = site.op("Gemm", inputs, "" if kind else output, **site.same_attributes(*own))
    if kind:
        given = [site.float_(name, 0.0) for name in own[1:] if site.has(name)]
        activated(site, kind, given, y, output)
