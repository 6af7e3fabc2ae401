"""Convolutions and pools of stored integers, as ONNX's operators between Q and DQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from qdqbridge.onnx_io.lowering.matrix import along_channels, conv_sum, of_run_time, rounded
from qdqbridge.onnx_io.lowering.normalization import activated

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


RULES: tuple[Rule, ...] = (
    qlinear_conv,
    conv_integer,
    fused_conv,
    qlinear_average_pool,
    qlinear_global_average_pool,
    nhwc_max_pool,
)
