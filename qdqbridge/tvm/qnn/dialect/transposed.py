"""qnn.conv1d_transpose, conv2d_transpose and conv3d_transpose: exact integer sums.

The input is spread by the strides (zeros between its elements) and correlated with the mirrored
kernel, as ``output[y] = sum over taps of x[(y + begin - tap * dilation) / stride] * w[tap]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, entry, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import CallContext, Extent, ResultType
from qdqbridge.tvm.qnn.dialect.convolution import (
    ConvolutionWindow,
    check_attributes,
    correlation,
    decode_window,
    operand_shapes,
    window_attributes,
)
from qdqbridge.tvm.qnn.dialect.dense import SIX, centred, narrow_dtype
from qdqbridge.tvm.qnn.dialect.op import QnnOp


def _extra(context: CallContext, window: ConvolutionWindow) -> tuple[int, ...]:
    extra = tuple(context.attr("output_padding"))
    if len(extra) != window.rank or min(extra) < 0:
        context.fail(f"output_padding is {extra}", f"give {window.rank} non-negative numbers")
    return extra


def _sizes(
    extents: Sequence[Extent],
    window: ConvolutionWindow,
    kernel: Sequence[int],
    extra: Sequence[int],
) -> list[Extent]:
    return [
        (extent - 1) * window.strides[i]
        + (kernel[i] - 1) * window.dilation[i]
        + 1
        + extra[i]
        - window.begin[i]
        - window.end[i]
        for i, extent in enumerate(extents)
    ]


def _conv_transpose_inference(rank: int) -> Any:
    def infer(context: CallContext) -> ResultType:
        window = decode_window(context, rank, transposed=True)
        extra = _extra(context, window)
        x, w = operand_shapes(context, window)
        context.expect_equal(x[1], w[0], "channels of data and weight")
        if w[0] % window.groups:
            context.fail(f"{window.groups} groups do not divide {w[0]} input channels")
        out = w[1] * window.groups
        for index, dtype in ((5, "float32"), (3, "int32")):
            context.expect_vector(index, dtype, w[1], out, what="output channels")
        check_attributes(context, out, w[2:])
        sizes = _sizes(x[2:], window, w[2:], extra)
        if any(isinstance(size, int) and size < 1 for size in sizes):
            context.fail(f"the padding leaves an output of {sizes}")
        return ResultType.of(window.data.stored([x[0], out, *sizes]), window.out_dtype)

    return infer


def _lower_conv_transpose(rank: int) -> Any:
    def lower(context: CallContext) -> Any:
        window = decode_window(context, rank, transposed=True)
        (source, per_group, *kernel), extra = (
            operand_shapes(context, window)[1],
            _extra(context, window),
        )
        dense = replace(window, strides=(1,) * rank, begin=(0,) * rank, end=(0,) * rank)
        extents = (per_group * window.groups, source // window.groups, *kernel)

        def conv(x: te.Tensor, w: te.Tensor, zx: te.Tensor, zw: te.Tensor) -> te.Tensor:
            sizes = _sizes(window.data.logical(x.shape)[2:], window, kernel, extra)
            data = _spread_codes(x, zx, window, kernel, sizes)
            weight = _mirrored_weight(w, zw, window, extents)

            def at(channel: Prim, source: Prim, taps: Sequence[Prim]) -> Prim:
                return weight(*window.data.stored([source, channel, *taps]))

            return correlation(data, at, extents, dense, sizes)

        args = [context.args[0], context.args[1]]
        args += [context.const(context.vector(i), "int32") for i in (2, 3)]
        return context.reduce_te(f"qnn_conv{rank}d_transpose", conv, args, inner=1)

    return lower


def _spread_codes(
    x: te.Tensor,
    zero_point: te.Tensor,
    window: ConvolutionWindow,
    kernel: Sequence[int],
    sizes: Sequence[Extent],
) -> te.Tensor:
    """Returns ``x - zero_point`` with zeros between its elements and around them."""
    spans = [(kernel[d] - 1) * window.dilation[d] for d in range(window.rank)]
    layout, extents = window.data, window.data.logical(x.shape)
    padded = [size + span for size, span in zip(sizes, spans, strict=True)]
    nothing = tirx.const(0, narrow_dtype(str(x.dtype)))

    def element(*i: Prim) -> Prim:
        (batch, channel, *pixel), where, inside = layout.logical(i), [], []
        for d, (stride, v) in enumerate(zip(window.strides, pixel, strict=True)):
            position = v - (spans[d] - window.begin[d])
            source = tirx.floordiv(position, stride)
            where.append(source)
            inside += [position >= 0, source < extents[d + 2]]
            if stride > 1:
                inside.append(tirx.floormod(position, stride) == 0)
        code = x(*layout.stored([batch, channel, *where]))
        value = centred(code, zero_point[0], str(x.dtype))
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return stage(layout.stored([*extents[:2], *padded]), element, name="centred_data")


def _mirrored_weight(
    w: te.Tensor, zero_point: te.Tensor, window: ConvolutionWindow, extents: Sequence[int]
) -> te.Tensor:
    """Returns ``w - zero_point`` with the kernel reversed.

    Args:
        w: The weight in its layout.
        zero_point: One entry, or one for each output channel (of a group, or of all).
        window: The layouts and the number of groups.
        extents: Output channels, input channels of a group, and the spatial extents.

    Returns:
        Input channels of a group by output channels by taps, in the layout of data.
    """
    out, per_group, *kernel = extents
    columns = out // window.groups
    grouped = window.groups > 1

    def element(*i: Prim) -> Prim:
        source, channel, *taps = window.data.logical(i)
        row = tirx.floordiv(channel, columns) * per_group + source if grouped else source
        column = tirx.floormod(channel, columns) if grouped else channel
        mirrored = [extent - 1 - tap for extent, tap in zip(kernel, taps, strict=True)]
        own = entry(zero_point, (column, channel), 0 if int(zero_point.shape[0]) == columns else 1)
        where = window.kernel.stored([row, column, *mirrored])
        return centred(w(*where), own, str(w.dtype))

    return stage(window.data.stored([per_group, out, *kernel]), element, name="centred_weight")


OPS = tuple(
    QnnOp(
        f"qnn.conv{rank}d_transpose",
        SIX,
        window_attributes(rank, transposed=True),
        _conv_transpose_inference(rank),
        _lower_conv_transpose(rank),
        "exact integer sum of (x - zx)(w - zw), transposed",
    )
    for rank in (1, 2, 3)
)
