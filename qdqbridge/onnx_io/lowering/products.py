"""Convolutions, pools and matrix products of stored integers, as ONNX's between Q and DQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.shapes import reaching
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import (
    LoweringContext,
    reading_rule,
    to_first,
    to_last,
    transposed,
    usual_rank,
)
from qdqbridge.onnx_io.lowering.elementwise import activated

# ---- Products of stored integers whose scales or zero points only the run knows
#
# Between Q and DQ of run time a product would be one of floats, rounded in its sums and once more
# in its division. These are what the QLinear operators mean: an exact int32 sum, one float32
# multiplier ``M = (sx * sw) / sy``, one rounding, half to even, and then the zero point.
#
# Source: ONNX QLinearMatMul-10 and -21, QLinearConv-10; onnxruntime
# core/providers/cpu/quantization/quantize_linear_matmul.cc, qlinearconv.cc.

_BYTES = (DType.INT8, DType.UINT8)
_Stored: TypeAlias = "tuple[Value, Value | None]"
"""Integers and their zero point."""
_ROUND = 11
"""The opset since which there is Round."""
_SPAN, _EXACT = 255, 1 << 24
"""The largest difference of two 8-bit integers, and the end of float32's exact ones."""


def of_run_time(
    context: LoweringContext, parameters: Sequence[Value | None], data: Sequence[Value]
) -> bool:
    """True where a scale or zero point is not constant, and all data are integers of 8 bits."""
    return not context.are_constant(parameters) and all(v.type.dtype in _BYTES for v in data)


def counts_rows(zero: Value | None, right: Value) -> bool:
    """True for a zero point per row, times a matrix of known extents."""
    rows, shape = None if zero is None else zero.type.shape, right.type.shape
    known = rows and shape and len(shape) > 1 and isinstance(shape[-2], int)
    return bool(known) and any(isinstance(n, int) and n > 1 for n in rows or ())


def matmul_sum(context: LoweringContext, left: _Stored, right: _Stored, result: str = "") -> Value:
    """Returns ``(a - za) @ (b - zb)`` in int32; operands are data and zero point.

    With one per row it is ``MatMulInteger(a, b, 0, zb) - za * MatMulInteger(1, b, 0, zb)``, which
    wraps to the same sum: onnxruntime's has one zero point of the first operand.
    """
    (a, za), (b, zb) = left, right
    if za is not None and counts_rows(za, b):
        (terms, _) = (b.type.shape or (0, 0))[-2:]
        ones = context.enter(np.ones((1, int(terms)), np.uint8), "ones")
        plain, sums = (matmul_sum(context, (each, None), right) for each in (a, ones))
        wide = context.op("Cast", [along_rows(context, za)], to=TensorProto.INT32)
        return context.op("Sub", [plain, context.op("Mul", [sums, wide])], result)
    if za is None and zb is not None:
        za = context.enter(np.zeros((), a.type.dtype.numpy), "zero")
    return context.op("MatMulInteger", [a, b, za, zb], result)


def conv_sum(context: LoweringContext, left: _Stored, right: _Stored, result: str = "") -> Value:
    """Returns ``Conv(x - zx, w - zw)`` in int32; operands are data and zero point.

    Where float32 holds every sum exactly it is ``Cast(Conv(x - zx, DQ(w, scale 1)))``: where
    ``255 * sum |w - zw| < 2^24`` for every output channel, each partial sum is an integer that
    float32 represents, in any order of additions. Elsewhere it is a ConvInteger. onnxruntime's has
    one zero point of the weight: where there may be one per channel, the sum of each window is
    subtracted as often as it says.
    """
    (x, zx), (w, zw) = left, right
    window = context.same_attributes("channels_last")
    weight = context.known(w)
    zero = np.zeros((), np.int64) if zw is None else context.known(zw)
    if weight is not None and zero is not None and _exact(context, weight, zero):
        real = context.op("Cast", [x], to=TensorProto.FLOAT)
        if zx is not None:
            real = context.op("Sub", [real, context.op("Cast", [zx], to=TensorProto.FLOAT)])
        unit = context.enter(np.ones(zero.shape, np.float32), "unit")
        total = context.op("Conv", [real, context.dequantize(w, unit, zw, axis=0)], **window)
        return context.op("Cast", [total], result, to=TensorProto.INT32)
    if zw is None or zw.type.shape in ((), (1,)):
        return context.op("ConvInteger", [x, w, zx, zw], result, **window)
    if weight is not None:
        ones = context.enter(np.ones(weight.shape, np.uint8), "ones")
    else:
        whole = context.op("Cast", [w], to=TensorProto.INT32)
        ones = context.op("Cast", [context.op("Equal", [whole, whole])], to=TensorProto.UINT8)
    sums = conv_sum(context, left, (ones, None))
    wide = context.op("Cast", [along_channels(context, zw, w)], to=TensorProto.INT32)
    plain = conv_sum(context, left, (w, None))
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


def along_channels(context: LoweringContext, vector: Value, weight: Value) -> Value:
    """Returns a parameter of each channel so that it broadcasts along axis 1 of a result."""
    if vector.type.shape in ((), (1,)):
        return vector
    shape = [-1, *([1] * (usual_rank(weight) - 2))]
    return context.op("Reshape", [vector, context.enter(np.array(shape, np.int64), "shape")])


def along_rows(context: LoweringContext, vector: Value) -> Value:
    """Returns a parameter of each row so that it broadcasts against a matrix."""
    shape = vector.type.shape
    if shape is None or len(shape) != 1 or shape == (1,):
        return vector
    return context.op("Reshape", [vector, context.enter(np.array([-1, 1], np.int64), "shape")])


def rounded(
    context: LoweringContext,
    total: Value,
    scales: tuple[Value, Value, Value],
    zero_point: Value,
    result: str = "",
) -> Value:
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
    shape = zero_point.type.shape
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
    return context.quantize(shifted, unit, None, zero_point, result)


def _float32(context: LoweringContext, scale: Value) -> Value:
    if scale.type.dtype is DType.FLOAT32:
        return scale
    return context.op("Cast", [scale], to=TensorProto.FLOAT)


_QLINEAR_MATMUL = (
    ("QLinearMatMul", "com.microsoft::QLinearMatMul"),
    "a", "sa", "za", "b", "sb", "zb", "sy", "zy",
)  # fmt: skip


@reading_rule("qlinear-matmul", _QLINEAR_MATMUL)
def qlinear_matmul(context: LoweringContext) -> Value:
    """``QLinearMatMul(a, b) -> Q(MatMul(DQ(a), DQ(b)))``; b may have a scale per column.

    With parameters of run time the same in integers. Against onnxruntime 1.31's kernel: bit for bit
    equal, of run time 1.32's. Source: ONNX QLinearMatMul-10 and -21; onnxruntime
    docs/ContribOperators.md.
    """
    a, sa, za, b, sb, zb, sy, zy = context.inputs(8)
    if of_run_time(context, [sa, za, sb, zb, sy, zy], [a, b]):
        total = matmul_sum(context, (a, za), (b, zb))
        scales = along_rows(context, sa), sb, along_rows(context, sy)
        return rounded(context, total, scales, zy, context.output)
    left = context.dequantize(
        a, _flatten_qparams(context, sa, -2), _flatten_qparams(context, za, -2), axis=-2
    )
    right = context.dequantize(
        b, _flatten_qparams(context, sb, -1), _flatten_qparams(context, zb, -1), axis=-1
    )
    return context.quantize(context.op("MatMul", [left, right]), sy, zy, a, context.output)


@reading_rule("matmul-integer", ("MatMulInteger", "a", "b", "za?", "zb?"))
def matmul_integer(context: LoweringContext) -> Value | None:
    """``MatMulInteger(a, b, za, zb) -> MatMulInteger(a, b, 0, zb) - za * sums(b)``: za per row.

    Source: ONNX MatMulInteger-10.
    """
    a, b, za, zb = context.inputs(4)
    return matmul_sum(context, (a, za), (b, zb), context.output) if counts_rows(za, b) else None


def _flatten_qparams(context: LoweringContext, value: Value, axis: int) -> Value:
    """Returns parameters ``[1, …, N]`` (from opset 21 on) as the vector that they are."""
    array = context.known(value) if (value.rank or 0) > 1 else None
    if array is None:
        return value
    if array.size not in (1, array.shape[axis]):
        raise context.refusal(
            "its parameters vary along several axes",
            f"'{value.name}' has shape {array.shape}",
            "give one scale per tensor, or one per row or column",
        )
    return context.enter(array.reshape(-1), "vector")


@reading_rule(
    "qgemm", ("com.microsoft::QGemm", "a", "sa", "za", "b", "sb", "zb", "c?", "sy?", "zy?")
)
def qgemm(context: LoweringContext) -> Value:
    """``QGemm(a, b, c) -> Q(Gemm(DQ(a), DQ(b), DQ(c)))``; without ``y_scale`` the float Gemm.

    c is int32 in units of ``alpha * sa * sb``. With parameters of run time the same in integers.
    Against onnxruntime 1.31's kernel: bit for bit equal. Source: onnxruntime
    docs/ContribOperators.md, core/providers/cpu/quantization/quant_gemm.cc.
    """
    a, sa, za, b, sb, zb, c, sy, zy = context.inputs(9)
    alpha, trans_b = context.float_("alpha", 1.0), context.flag("transB")
    if sy and zy and of_run_time(context, [sa, za, sb, zb, sy, zy], [a, b]):
        left = context.op("Transpose", [a], perm=[1, 0]) if context.flag("transA") else a
        right = context.op("Transpose", [b], perm=[1, 0]) if trans_b else b
        total = matmul_sum(context, (left, za), (right, zb))
        if alpha != 1.0:
            sa = context.product([context.enter(np.float32(alpha), "alpha"), sa])
        total = context.op("Add", [total, c]) if c else total
        return rounded(context, total, (sa, sb, sy), zy, context.output)
    operands = [
        context.dequantize(a, sa, za),
        context.dequantize(b, sb, zb, axis=0 if trans_b else 1),
    ]
    if c:
        factors = [sa, sb]
        if alpha != 1.0:
            factors.insert(0, context.enter(np.float32(alpha), "alpha"))
        operands.append(context.dequantize(c, context.product(factors), axis=-1))
    y = context.op(
        "Gemm", operands, "" if sy else context.output,
        alpha=alpha, transA=int(context.flag("transA")), transB=int(trans_b),
    )  # fmt: skip
    return context.quantize(y, sy, zy, a, context.output) if sy else y


@reading_rule(
    "matmul-integer-to-float",
    ("com.microsoft::MatMulIntegerToFloat", "a", "b", "sa", "sb", "za?", "zb?", "bias?"),
)
def matmul_integer_to_float(context: LoweringContext) -> Value:
    """``MatMulIntegerToFloat(a, b, bias) -> MatMul(DQ(a), DQ(b)) + bias``.

    With run-time parameters the same in integers.

    Against onnxruntime 1.31's kernel: bit for bit equal.
    Source: onnxruntime docs/ContribOperators.md.
    """
    a, b, sa, sb, za, zb, bias = context.inputs(7)
    result = "" if bias else context.output
    if context.are_constant((sa, sb, za, zb)):
        operands = [context.dequantize(a, sa, za), context.dequantize(b, sb, zb, axis=-1)]
        y = context.op("MatMul", operands, result)
    else:
        y = _dynamic_product(context, (a, sa, za), (b, sb, zb), result)
    return context.op("Add", [y, bias], context.output) if bias else y


@reading_rule(
    "dynamic-quantize-matmul",
    ("com.microsoft::DynamicQuantizeMatMul", "a", "b", "sb", "zb?", "bias?"),
)
def dynamic_matmul(context: LoweringContext) -> Value:
    """``DynamicQuantizeMatMul(a, b) -> MatMulInteger(DynamicQuantizeLinear(a), b) * scales``.

    What onnxruntime's quantize_dynamic writes; its fused kernel rounds alike.
    Source: onnxruntime docs/ContribOperators.md, core/optimizer/matmul_integer_to_float.cc.
    """
    a, b, sb, zb, bias = context.inputs(5)
    fresh = context.maker.fresh
    first = fresh(f"{context.output}.DynamicQuantizeLinear")
    names = [first, fresh(f"{first}.1"), fresh(f"{first}.2")]
    stored, scale, zero_point = context.several("DynamicQuantizeLinear", [a], names)
    result = "" if bias else context.output
    y = _dynamic_product(context, (stored, scale, zero_point), (b, sb, zb), result)
    return context.op("Add", [y, bias], context.output) if bias else y


def _dynamic_product(
    context: LoweringContext, left: tuple[Value, Value, Value | None],
    right: tuple[Value, Value, Value | None], result: str,
) -> Value:  # fmt: skip
    a, sa, za = left
    b, sb, zb = right
    total = matmul_sum(context, (a, za), (b, zb))
    real = context.op("Cast", [total], to=TensorProto.FLOAT)
    return context.op("Mul", [real, context.op("Mul", [sa, sb])], result)


@reading_rule("fused-matmul", ("com.microsoft::FusedMatMul", "a", "b"))
def fused_matmul(context: LoweringContext) -> Value:
    """``FusedMatMul(a, b) -> alpha * MatMul(a, b)`` of transposed operands.

    Source: onnxruntime docs/ContribOperators.md.
    """
    a = _permuted(context, context.operand(0), "A")
    b = _permuted(context, context.operand(1), "B")
    alpha, output = context.float_("alpha", 1.0), context.output
    if alpha == 1.0:
        return context.op("MatMul", [a, b], output)
    dtype = np.float16 if a.type.dtype is DType.FLOAT16 else np.float32
    factor = context.enter(np.array(alpha, dtype), "alpha")
    return context.op("Mul", [context.op("MatMul", [a, b]), factor], output)


def _permuted(context: LoweringContext, value: Value, which: str) -> Value:
    swap, batch = context.flag(f"trans{which}"), context.flag(f"transBatch{which}")
    if not swap and not batch:
        return value
    rank = value.rank
    if rank is None:
        raise context.refusal(
            f"the rank of operand {which} is unknown",
            f"'{value.name}' is transposed, which needs its rank",
            "run shape inference on the model",
        )
    perm = list(range(rank))
    if batch:  # (d0, d1, …, dm, dk) -> (d1, …, dm, d0, dk)
        perm = [*perm[1:-1], 0, perm[-1]]
    if swap and rank > 1:
        perm[-2:] = [perm[-1], perm[-2]]
    return context.op("Transpose", [value], perm=perm)


@reading_rule("fused-gemm", ("com.microsoft::FusedGemm", "a", "b", "c?"))
def fused_gemm(context: LoweringContext) -> Value:
    """``FusedGemm(a, b, c) -> activation(Gemm(a, b, c))``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    own = ("activation", "activation_alpha", "activation_beta", "activation_gamma")
    kind, output = context.string("activation", ""), context.output
    given = context.same_attributes(*own)
    y = context.op("Gemm", context.inputs(3), "" if kind else output, **given)
    if not kind:
        return y
    params = [context.float_(name, 0.0) for name in own[1:] if context.has(name)]
    return activated(context, kind, params, y, output)


RULES: tuple[Rule, ...] = (
    matmul_integer,
    qlinear_matmul,
    qgemm,
    matmul_integer_to_float,
    dynamic_matmul,
    fused_matmul,
    fused_gemm,
)


# ---- Convolutions and pools of stored integers, as ONNX's operators between Q and DQ -------------


_QLINEAR_CONV = (
    ("QLinearConv", "com.microsoft::QLinearConv"),
    "x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "bias?",
)  # fmt: skip


@reading_rule("qlinear-conv", _QLINEAR_CONV)
def qlinear_conv(context: LoweringContext) -> Value:
    """``QLinearConv(x, w, bias) -> Q(Conv(DQ(x), DQ(w), DQ(bias)))``.

    The int32 bias is in units of ``sx * sw``. With parameters of run time the same in integers.
    Against onnxruntime 1.31's kernel: bit for bit equal (the numeric contract is that kernel's), of
    run time 1.32's. Source: ONNX QLinearConv-10; onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, w, sw, zw, sy, zy, bias = context.inputs(9)
    last = context.flag("channels_last")
    rank = usual_rank(w)
    if last:
        x = transposed(context, x, to_first(rank))
    result = "" if last else context.output
    if of_run_time(context, [sx, zx, sw, zw, sy, zy], [x, w]):
        total = conv_sum(context, (x, zx), (w, zw))
        if bias:
            total = context.op("Add", [total, along_channels(context, bias, w)])
        stored = rounded(context, total, (sx, along_channels(context, sw, w), sy), zy, result)
    else:
        operands = [context.dequantize(x, sx, zx), context.dequantize(w, sw, zw, axis=0)]
        if bias:
            operands.append(context.dequantize(bias, context.product([sx, sw]), axis=0))
        y = context.op("Conv", operands, **context.same_attributes("channels_last"))
        stored = context.quantize(y, sy, zy, x, result)
    return transposed(context, stored, to_last(rank), context.output) if last else stored


@reading_rule("conv-integer", ("ConvInteger", "x", "w", "zx?", "zw?"))
def conv_integer(context: LoweringContext) -> Value | None:
    """``ConvInteger(x, w) -> Cast(Conv(x - zx, DQ(w)))`` where float32 holds every sum.

    It does also with int8 data and uint8 weights: onnxruntime's pairs of those saturate without
    VNNI, which is foretold of the operator. Against onnxruntime with VNNI: bit for bit equal.
    Source: ONNX ConvInteger-10.
    """
    x, w, zx, zw = context.inputs(4)
    _same_type(context, x, zx)
    _same_type(context, w, zw)
    if (x.type.dtype, w.type.dtype) == (DType.INT8, DType.UINT8):
        return None
    return conv_sum(context, (x, zx), (w, zw), context.output)


def _same_type(context: LoweringContext, data: Value, zero_point: Value | None) -> None:
    if zero_point is not None and data.type.dtype is not zero_point.type.dtype:
        raise context.fault(
            "a zero point has another type than its data",
            why=f"'{data.name}' is {data.type.dtype}, "
            f"'{zero_point.name}' is {zero_point.type.dtype}",
            fix="give both the same element type",
        )


@reading_rule("fused-conv", ("com.microsoft::FusedConv", "x", "w", "bias?", "z?"))
def fused_conv(context: LoweringContext) -> Value:
    """``FusedConv(x, w, bias, z) -> activation(Conv(x, w, bias) + z)``.

    onnxruntime adds ``z`` inside the convolution's sum, so float results may differ in the last
    bit. Source: onnxruntime docs/ContribOperators.md, core/optimizer/conv_activation_fusion.cc.
    """
    own = ("activation", "activation_params")
    *operands, skip = context.inputs(4)
    kind, output = context.string("activation", ""), context.output
    result = "" if skip or kind else output
    y = context.op("Conv", operands, result, **context.same_attributes(*own))
    if skip:
        y = context.op("Add", [y, skip], "" if kind else output)
    if kind:
        y = activated(context, kind, context.floats("activation_params", ()), y, output)
    return y


# ---- com.microsoft's QLinearAveragePool, QLinearGlobalAveragePool and NhwcMaxPool


def _average(
    context: LoweringContext, op_type: str, window: Mapping[str, Any] | None = None
) -> Value:
    x, sx, zx, sy, zy = context.inputs(5)
    last = context.flag("channels_last")
    kernel = context.ints("kernel_shape", None)
    rank = usual_rank(x) if kernel is None else len(kernel) + 2
    like = x
    if last:
        x = transposed(context, x, to_first(rank))
    given = context.same_attributes("channels_last") if window is None else window
    real = context.op(op_type, [context.dequantize(x, sx, zx)], **given)
    stored = context.quantize(real, sy, zy, like, "" if last else context.output)
    return transposed(context, stored, to_last(rank), context.output) if last else stored


_OF_ONE = ("x", "sx", "zx?", "sy", "zy?")


@reading_rule("qlinear-average-pool", ("com.microsoft::QLinearAveragePool", *_OF_ONE))
def qlinear_average_pool(context: LoweringContext) -> Value:
    """``QLinearAveragePool(x) -> Q(AveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which rounds ``v + zy`` instead of ``v``: 1 LSB at midpoints
    where zy is odd (scales that are powers of two: 2.5 % of the results; others 0 of 36,000).
    Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_pool.cc.
    """
    return _average(context, "AveragePool", _whole_windows(context))


def _whole_windows(context: LoweringContext) -> Mapping[str, Any]:
    """Returns the attributes of the pool, its last windows within the padding.

    Where padding counts, onnxruntime's kernel counts what ``ceil_mode`` adds to it too: it divides
    by all elements of a window, ONNX's AveragePool by those within the image and its ``pads``.

    Raises:
        NoNewForm: An extent of the image is open.
    """
    given = context.same_attributes("channels_last")
    counted = given.get("ceil_mode") and given.get("count_include_pad")
    if not counted or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return given
    kernel = given["kernel_shape"]
    count = len(kernel)
    strides, pads = given.get("strides") or [1] * count, given.get("pads") or [0] * 2 * count
    shape = context.shape(0) or ()
    first = 1 if context.flag("channels_last") else 2
    image = [extent for extent in shape[first : first + count] if isinstance(extent, int)]
    if len(image) != count:
        raise context.refusal(
            "the image's extents are open",
            f"its shape is {list(shape)}, and what ceil_mode adds counts as padding",
            "give the extents, or leave out count_include_pad",
        )
    ends = [
        max(
            pads[count + i],
            reaching(image[i], kernel[i], strides[i], 1, (pads[i], pads[count + i])),
        )
        for i in range(count)
    ]
    return {**given, "pads": [*pads[:count], *ends], "ceil_mode": 0}


@reading_rule("qlinear-global-average-pool", ("com.microsoft::QLinearGlobalAveragePool", *_OF_ONE))
def qlinear_global_average_pool(context: LoweringContext) -> Value:
    """``QLinearGlobalAveragePool(x) -> Q(GlobalAveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which sums integers too: 0 of 20,000 differ.
    Source: onnxruntime docs/ContribOperators.md, core/mlas/lib/qlgavgpool.cpp.
    """
    return _average(context, "GlobalAveragePool")


@reading_rule("nhwc-max-pool", ("com.microsoft::NhwcMaxPool", "x"))
def nhwc_max_pool(context: LoweringContext) -> Value:
    """``NhwcMaxPool(x) -> Transpose(MaxPool(Transpose(x)))`` of stored integers. Exact.

    Source: onnxruntime docs/ContribOperators.md.
    """
    rank = len(context.ints("kernel_shape", ())) + 2
    x = transposed(context, context.operand(0), to_first(rank))
    y = context.op("MaxPool", [x], **context.same_attributes())
    return transposed(context, y, to_last(rank), context.output)


WINDOW_RULES: tuple[Rule, ...] = (
    qlinear_conv,
    conv_integer,
    fused_conv,
    qlinear_average_pool,
    qlinear_global_average_pool,
    nhwc_max_pool,
)
