"""qnn.conv1d, conv2d and conv3d: exact integer sums.

Data is ``(N, C, spatial…)``, the weight ``(O, C / groups, kernel…)``, or in another layout the
same with its axes in another order. Padding contributes nothing, that is, the stored zero point
is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import te

from qdqbridge.core.ops.shapes import span, window_count
from qdqbridge.tvm.qnn.dialect.arithmetic import BLOCK, Prim, entry, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import (
    SPATIAL,
    Attribute,
    AxisLayout,
    CallContext,
    Extent,
    QnnOp,
    ResultType,
    data_layout,
    kernel_layout,
)
from qdqbridge.tvm.qnn.dialect.dense import (
    OUT_DTYPE,
    SIX,
    centred,
    check_operands,
    narrow_dtype,
    padded_codes,
)


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """The decoded attributes of a convolution with ``rank`` spatial axes."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    groups: int
    out_dtype: str
    data: AxisLayout
    kernel: AxisLayout

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)


def spread(context: CallContext, name: str, rank: int) -> tuple[int, ...]:
    """Returns an attribute with one positive entry per spatial axis; one entry serves all."""
    value = context.attr(name)
    values = (value,) if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    if len(values) != rank or min(values) < 1:
        context.fail(f"{name} is {values}", f"give {rank} positive numbers")
    return values


def padding(context: CallContext, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding before and after; Relay's forms (1, ``rank`` or 2 ``rank`` entries)."""
    value = context.attr("padding")
    values = (value,) if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    values = values * 2 if len(values) == rank else values
    if len(values) != 2 * rank or min(values) < 0:
        context.fail(f"padding is {values}", f"give {2 * rank} non-negative numbers, begins first")
    return values[:rank], values[rank:]


def decode_window(context: CallContext, rank: int, *, transposed: bool) -> ConvolutionWindow:
    """Returns the checked attributes of a convolution with ``rank`` spatial axes."""
    return window_of(context, rank, check_operands(context), transposed=transposed)


def window_of(
    context: CallContext, rank: int, out_dtype: str, *, transposed: bool
) -> ConvolutionWindow:
    """Returns the same, of operands whose types are checked already."""
    begin, end = padding(context, rank)
    window = ConvolutionWindow(
        spread(context, "strides", rank),
        spread(context, "dilation", rank),
        begin,
        end,
        context.attr("groups"),
        out_dtype,
        data_layout(context, "data_layout", rank),
        kernel_layout(context, rank, transposed=transposed),
    )
    if window.groups < 1:
        context.fail(f"groups is {window.groups}")
    return window


def check_attributes(context: CallContext, channels: Extent, kernel: Sequence[Extent]) -> None:
    """Checks Relay's redundant attributes (empty or 0 where they are left out)."""
    stated = context.attr("kernel_size")
    if stated:
        for a, b in zip(stated, kernel, strict=True):
            context.expect_equal(a, b, "kernel_size and the weight")
    if context.attr("channels"):
        context.expect_equal(context.attr("channels"), channels, "channels and the weight")


def operand_shapes(
    context: CallContext, window: ConvolutionWindow
) -> tuple[list[Extent], list[int]]:
    """Returns the channels-first extents of data and weight after checking their rank."""
    rank = window.rank + 2
    x = window.data.logical(context.expect_rank(0, rank))
    w = window.kernel.logical(context.expect_rank(1, rank))
    if not all(isinstance(extent, int) for extent in w):
        context.fail(f"the weight has shape {w}", "give a weight of known shape")
    return x, w


@dataclass(frozen=True, slots=True)
class ConvolutionWeight:
    """The extents of a weight, and its form.

    Attributes:
        out: Output channels.
        per_group: Input channels of a group.
        kernel: Spatial extents.
        multiplier: Output channels per input channel in Relay's form of a depthwise weight, which
            is ``(C, multiplier, kernel…)``; 1 in the usual form ``(O, C / groups, kernel…)``.
    """

    out: int
    per_group: int
    kernel: tuple[int, ...]
    multiplier: int = 1

    def index(self, channel: Prim, source: Prim) -> tuple[Prim, Prim]:
        """Returns the first two channels-first indices of an element of the weight."""
        if self.multiplier == 1:
            return channel, source
        return channel // self.multiplier, channel % self.multiplier


def weight_of(
    context: CallContext, channels: Extent, w: Sequence[int], groups: int
) -> ConvolutionWeight:
    """Returns the form of a weight of channels-first extents ``w``, after checking them."""
    # Relay's form. ONNX's of the same extents would have several input channels per group, and then
    # more channels than there are.
    if groups > 1 and w[0] == groups == channels and w[1] > 1:
        return ConvolutionWeight(w[0] * w[1], 1, tuple(w[2:]), multiplier=w[1])
    context.expect_equal(channels, w[1] * groups, "channels of data and weight")
    if w[0] % groups:
        context.fail(f"{groups} groups do not divide {w[0]} output channels")
    return ConvolutionWeight(w[0], w[1], tuple(w[2:]))


def result_sizes(
    extents: Sequence[Extent], window: ConvolutionWindow, kernel: Sequence[int]
) -> list[Extent]:
    """Returns the spatial extents of a result, of those of data and of a kernel."""
    return [
        window_count(
            extent + window.begin[i] + window.end[i] - span(kernel[i], window.dilation[i]),
            window.strides[i],
        )
        for i, extent in enumerate(extents)
    ]


def _infer_conv(rank: int) -> Any:
    def infer(context: CallContext) -> ResultType:
        window = decode_window(context, rank, transposed=False)
        return inferred(context, window, 5, 3, window.out_dtype)

    return infer


def inferred(
    context: CallContext, window: ConvolutionWindow, scale: int, zero_point: int, dtype: str
) -> ResultType:
    """Returns the type of a result, after checking shapes.

    Args:
        context: The call.
        scale: Which argument the weight's scales are.
        zero_point: Which argument its zero points are.
        dtype: Of the result.
    """
    x, w = operand_shapes(context, window)
    weight = weight_of(context, x[1], w, window.groups)
    context.expect_params(scale, zero_point, weight.out, what="output channels")
    check_attributes(context, weight.out, w[2:])
    sizes = result_sizes(x[2:], window, w[2:])
    if any(isinstance(size, int) and size < 1 for size in sizes):
        context.fail(f"the kernel {w[2:]} is larger than the padded input {x[2:]}")
    return ResultType.of(window.data.stored([x[0], weight.out, *sizes]), dtype)


def _lower_conv(rank: int) -> Any:
    def lower(context: CallContext) -> Any:
        window = decode_window(context, rank, transposed=False)
        shape, stored = operand_shapes(context, window)
        weight = weight_of(context, shape[1], stored, window.groups)
        zero_points = context.vector(3)
        # A weight around zero is read as it is; else each element is shifted first, in a stage of
        # its own.
        shifted = bool(zero_points.any())
        pads = [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)]

        def conv(x: te.Tensor, w: te.Tensor, zx: te.Tensor, *zw: te.Tensor) -> te.Tensor:
            data = padded_codes(x, zx, window.data.stored(pads))
            codes = centred_weight(w, zw[0], weight, window.kernel) if shifted else w

            def at(channel: Prim, source: Prim, taps: Sequence[Prim]) -> Prim:
                where = [*weight.index(channel, source), *taps]
                return codes(*window.kernel.stored(where))

            sizes = result_sizes(window.data.logical(x.shape)[2:], window, weight.kernel)
            extents = (weight.out, weight.per_group, *weight.kernel)
            return correlation(data, at, extents, window, sizes)

        # The zero point is what padding is filled with, too, so that it adds nothing.
        args = [context.args[0], context.args[1], context.const(context.vector(2), "int32")]
        args += [context.const(zero_points, "int32")] if shifted else []
        flat = _pointwise(window, weight.kernel) and all(isinstance(e, int) for e in shape[2:])
        return context.reduce_te(
            f"qnn_conv{rank}d", conv, args, inner=rank if flat and window.data.straight else 1
        )

    return lower


def _pointwise(window: ConvolutionWindow, kernel: Sequence[int]) -> bool:
    """True where output pixels lie in memory as the input pixels they come from."""
    return all(
        values == (1,) * window.rank for values in (window.strides, tuple(kernel))
    ) and not any(window.begin + window.end)


def centred_weight(
    w: te.Tensor, zero_point: te.Tensor, weight: ConvolutionWeight, layout: AxisLayout
) -> te.Tensor:
    """Returns ``weight - zero_point``."""

    def element(*i: Prim) -> Prim:
        first, second, *_ = layout.logical(i)
        channel = first if weight.multiplier == 1 else first * weight.multiplier + second
        return centred(w(*i), entry(zero_point, (channel,), 0), str(w.dtype))

    return stage(w.shape, element, name="centred_weight")


def correlation(
    data: te.Tensor,
    weight: Callable[[Prim, Prim, Sequence[Prim]], Prim],
    extents: Sequence[int],
    window: ConvolutionWindow,
    sizes: Sequence[Extent],
) -> te.Tensor:
    """Returns the sums of padded, centred ``data`` with weights.

    Args:
        data: In the layout of ``window``.
        weight: The element of an output channel, an input channel of its group, and a tap.
        extents: Output channels, input channels of a group, and the spatial extents of the weight.
        window: Strides, dilation, groups, the layout of data and the type of the sums.
        sizes: Spatial extents of the result.
    """
    out, per_group, *_ = extents
    taps = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(extents[1:])]
    dtype, layout = window.out_dtype, window.data

    def element(*i: Prim) -> Prim:
        batch, channel, *pixel = layout.logical(i)
        group = channel // (out // window.groups) if window.groups > 1 else 0
        source = group * per_group + taps[0].var if window.groups > 1 else taps[0].var
        where = [
            v * window.strides[d] + taps[d + 1].var * window.dilation[d]
            for d, v in enumerate(pixel)
        ]
        value = data(*layout.stored([batch, source, *where])).astype(dtype)
        factor = weight(channel, taps[0].var, [tap.var for tap in taps[1:]])
        return te.sum(value * factor.astype(dtype), axis=taps)

    batch = layout.logical(data.shape)[0]
    return stage(layout.stored([batch, out, *sizes]), element, name=BLOCK)


def window_attributes(rank: int, *, transposed: bool) -> tuple[Attribute, ...]:
    """Returns the attributes of a convolution, with Relay's names."""
    letters = SPATIAL[rank]
    common = (
        Attribute("strides", [1] * rank, "one per spatial axis"),
        Attribute("padding", [0] * (2 * rank), "begins of all spatial axes, then ends"),
        Attribute("dilation", [1] * rank, "one per spatial axis"),
        Attribute("groups", 1, "number of groups"),
        Attribute("channels", 0, "output channels; 0 takes the weight's"),
        Attribute("kernel_size", [], "empty takes the weight's"),
        Attribute("data_layout", "NC" + letters, f"NC{letters} or N{letters}C"),
        Attribute("kernel_layout", ("IO" if transposed else "OI") + letters, "of the weight"),
        OUT_DTYPE,
    )
    if not transposed:
        return common
    return (*common, Attribute("output_padding", [0] * rank, "added to each end"))


def _conv(rank: int) -> QnnOp:
    return QnnOp(
        f"qnn.conv{rank}d",
        SIX,
        window_attributes(rank, transposed=False),
        _infer_conv(rank),
        _lower_conv(rank),
        "exact integer sum of (x - zx)(w - zw)",
    )


OPS = tuple(_conv(rank) for rank in (1, 2, 3))


# ---- qnn.conv1d_transpose, conv2d_transpose and conv3d_transpose: exact integer sums
#
# The input is spread by the strides (zeros between its elements) and correlated with the mirrored
# kernel, as ``output[y] = sum over taps of x[(y + begin - tap * dilation) / stride] * w[tap]``.


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


TRANSPOSED_OPS = tuple(
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
