"""com.microsoft's QLinearAveragePool, QLinearGlobalAveragePool and NhwcMaxPool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbridge.core.ops.windows import reaching
from qdqbridge.onnx_io.lowering.context import (
    LoweringContext,
    to_first,
    to_last,
    transposed,
    usual_rank,
)


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
