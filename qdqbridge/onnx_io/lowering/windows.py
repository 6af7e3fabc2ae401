"""Convolutions and pools of stored integers, as ONNX's operators between Q and DQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from qdqbridge.core.ops.windows import reaching
from qdqbridge.onnx_io.lowering.context import (
    LoweringContext,
    to_first,
    to_last,
    transposed,
    usual_rank,
)
from qdqbridge.onnx_io.lowering.matrix import along_channels, conv_sum, of_run_time, rounded
from qdqbridge.onnx_io.lowering.normalization import activated
from qdqbridge.onnx_io.tensors import dtype_of


def qlinear_conv(context: LoweringContext) -> None:
    """``Q(Conv(DQ(x), DQ(w), DQ(bias)))``; the int32 bias is in units of ``sx * sw``.

    With parameters of run time the same in integers. Against onnxruntime 1.31's kernel: bit for bit
    equal (the numeric contract is that kernel's), of run time 1.32's.
    Source: ONNX QLinearConv-10; onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, w, sw, zw, sy, zy, bias = (context.input(i) for i in range(9))
    last = context.flag("channels_last")
    rank = usual_rank(context, w)
    if last:
        x = transposed(context, x, to_first(rank))
    output = context.proto.output[0]
    result = "" if last else output
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
    if last:
        transposed(context, stored, to_last(rank), output)


def conv_integer(context: LoweringContext) -> None:
    """An exact float convolution, where float32 holds every sum; elsewhere it stays as it is.

    It does also with int8 data and uint8 weights: onnxruntime's pairs of those saturate without
    VNNI, which is foretold of the operator. Against onnxruntime with VNNI: bit for bit equal.
    Source: ONNX ConvInteger-10.
    """
    x, w, zx, zw = (context.input(i) for i in range(4))
    _same_type(context, x, zx)
    _same_type(context, w, zw)
    kinds = tuple(context.known.element_type(data) for data in (x, w))
    if kinds == (TensorProto.INT8, TensorProto.UINT8):
        own = context.same_attributes()
        context.op("ConvInteger", [x, w, zx, zw], context.proto.output[0], **own)
        return
    conv_sum(context, (x, zx), (w, zw), context.proto.output[0])


def _same_type(context: LoweringContext, data: str, zero_point: str) -> None:
    kinds = context.known.element_type(data), context.known.element_type(zero_point)
    if zero_point and all(kinds) and kinds[0] != kinds[1]:
        names = [dtype_of(kind, f"{context.file}, {context.describe()}") for kind in kinds]
        raise context.fault(
            "a zero point has another type than its data",
            why=f"'{data}' is {names[0]}, '{zero_point}' is {names[1]}",
            fix="give both the same element type",
        )


def fused_conv(context: LoweringContext) -> None:
    """``activation(Conv(x, w, bias) + z)``.

    onnxruntime adds ``z`` inside the convolution's sum, so float results may differ in the last
    bit. Source: onnxruntime docs/ContribOperators.md, core/optimizer/conv_activation_fusion.cc.
    """
    own = ("activation", "activation_params")
    skip = context.input(3)
    kind = context.string("activation", "")
    output = context.proto.output[0]
    result = "" if skip or kind else output
    y = context.op(
        "Conv", [context.input(i) for i in range(3)], result, **context.same_attributes(*own)
    )
    if skip:
        y = context.op("Add", [y, skip], "" if kind else output)
    if kind:
        activated(context, kind, context.floats("activation_params", ()), y, output)


# ---- com.microsoft's QLinearAveragePool, QLinearGlobalAveragePool and NhwcMaxPool


def _average(
    context: LoweringContext, op_type: str, window: Mapping[str, Any] | None = None
) -> None:
    x, sx, zx, sy, zy = (context.input(i) for i in range(5))
    last = context.flag("channels_last")
    kernel = context.ints("kernel_shape", None)
    rank = usual_rank(context, x) if kernel is None else len(kernel) + 2
    like = x
    if last:
        x = transposed(context, x, to_first(rank))
    given = context.same_attributes("channels_last") if window is None else window
    real = context.op(op_type, [context.dequantize(x, sx, zx)], **given)
    output = context.proto.output[0]
    stored = context.quantize(real, sy, zy, like, "" if last else output)
    if last:
        transposed(context, stored, to_last(rank), output)


def average_pool(context: LoweringContext) -> None:
    """``Q(AveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which rounds ``v + zy`` instead of ``v``: 1 LSB at midpoints
    where zy is odd (scales that are powers of two: 2.5 % of the results; others 0 of 36,000).
    Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_pool.cc.
    """
    _average(context, "AveragePool", _whole_windows(context))


def _whole_windows(context: LoweringContext) -> Mapping[str, Any]:
    """Returns the attributes of the pool, its last windows within the padding.

    Where padding counts, onnxruntime's kernel counts what ``ceil_mode`` adds to it too: it divides
    by all elements of a window, ONNX's AveragePool by those within the image and its ``pads``.

    Raises:
        UnsupportedQuantization: An extent of the image is open.
    """
    given = context.same_attributes("channels_last")
    counted = given.get("ceil_mode") and given.get("count_include_pad")
    if not counted or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return given
    kernel = given["kernel_shape"]
    count = len(kernel)
    strides, pads = given.get("strides") or [1] * count, given.get("pads") or [0] * 2 * count
    shape = context.known.shape(context.input(0)) or ()
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


def global_average_pool(context: LoweringContext) -> None:
    """``Q(GlobalAveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which sums integers too: 0 of 20,000 differ.
    Source: onnxruntime docs/ContribOperators.md, core/mlas/lib/qlgavgpool.cpp.
    """
    _average(context, "GlobalAveragePool")


def nhwc_max_pool(context: LoweringContext) -> None:
    """``MaxPool`` of stored integers between transpositions. Exact.

    Source: onnxruntime docs/ContribOperators.md.
    """
    rank = len(context.ints("kernel_shape", ())) + 2
    x = transposed(context, context.input(0), to_first(rank))
    y = context.op("MaxPool", [x], **context.same_attributes())
    transposed(context, y, to_last(rank), context.proto.output[0])
