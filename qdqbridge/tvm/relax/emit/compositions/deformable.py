"""DeformConv: a product with a matrix of pixels that lie beside where a Conv would take them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import ResolvedWindow, kernel_of, window_of
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)


@dataclass(frozen=True, slots=True)
class _SampledAxis:
    """Where a sample lies along one axis.

    Attributes:
        low: The pixel before it, or at it; maybe outside.
        weights: Of that pixel, and of the one behind it.
        extent: How many pixels there are.
    """

    low: Any
    weights: tuple[Any, Any]
    extent: Any

    def pixel(self, behind: int) -> tuple[Any, Any, Any]:
        """Returns the pixel before or behind: its place, its weight, whether it is one."""
        place = self.low + behind
        return place, self.weights[behind], tirx.all(place >= 0, place < self.extent)


def _deform_conv(context: CompositionContext) -> Sequence[Expr]:
    """Each tap of the kernel takes a pixel that an offset moves, and a mask multiplies.

    Source: ONNX DeformConv-22; sampling is linear along every axis, zeros around the data.
    """
    x, weight, offset = (wide(context, context.arg(index)) for index in range(3))
    window = window_of(context.onnx, kernel_of(context.onnx, 1))
    group, offsets = context.onnx.int_("group", 1), context.onnx.int_("offset_group", 1)
    rank, taps = len(window.kernel), math.prod(window.kernel)
    batch, channels, *_ = context.extents(x)
    results, inner, *_ = context.static(weight)
    if channels != group * inner or channels % offsets or results % group:
        raise NoRow(f"{channels} channels are not {group} groups, or not {offsets} of offsets")
    space = context.extents(offset)[2:]
    moved = context("reshape", offset, [batch, offsets, *window.kernel, rank, *space])
    operands = [x, moved]
    if context.has(4):
        mask = wide(context, context.arg(4))
        operands.append(context("reshape", mask, [batch, offsets, *window.kernel, *space]))

    def sample(data: te.Tensor, moves: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        return _columns(window, channels // offsets, data, moves, masks)

    columns = loops(context, "deformed_columns", sample, *operands)
    pixels = math.prod(space)
    right = context("reshape", columns, [batch, group, inner * taps, pixels])
    left = context("reshape", weight, [1, group, results // group, inner * taps])
    y = context("reshape", context("matmul", left, right), [batch, results, *space])
    if context.has(3):
        bias = context("reshape", wide(context, context.arg(3)), [1, results, *(1 for _ in space)])
        y = context("add", y, bias)
    return [context.cast(y, context.dtype(context.arg(0)))]


def _columns(
    window: ResolvedWindow, per_offset: int, data: te.Tensor, moves: te.Tensor,
    masks: Sequence[te.Tensor],
) -> te.Tensor:  # fmt: skip
    """Returns the samples of every tap: batch, channels, kernel, space."""
    rank, kind = len(window.kernel), data.dtype
    shape = [*data.shape[:2], *window.kernel, *moves.shape[3 + rank :]]

    def sampled(*at: Any) -> Any:
        image, channel, taps, space = at[0], at[1], at[2 : 2 + rank], at[2 + rank :]
        own = tirx.floordiv(channel, per_offset)
        axes: list[_SampledAxis] = []
        for axis, (tap, place) in enumerate(zip(taps, space, strict=True)):
            start = place * window.strides[axis] + tap * window.dilations[axis] - window.pads[axis]
            where = start.astype(kind) + moves(image, own, *taps, axis, *space)
            extent = data.shape[2 + axis]
            # what lies further outside is zero as well, and fits into an integer
            near = tirx.max(tirx.const(-2.0, kind), tirx.min(where, (extent + 1).astype(kind)))
            low = tirx.floor(near)
            weights = tirx.const(1.0, kind) - (near - low), near - low
            axes.append(_SampledAxis(low.astype("int64"), weights, extent))
        total = tirx.const(0.0, kind)
        for corner in itertools.product((0, 1), repeat=rank):
            pixels = [axis.pixel(behind) for axis, behind in zip(axes, corner, strict=True)]
            weight = math.prod((each[1] for each in pixels[1:]), start=pixels[0][1])
            value = data(image, channel, *(each[0] for each in pixels))
            within = tirx.all(*(each[2] for each in pixels))
            total += tirx.if_then_else(within, weight * value, tirx.const(0.0, kind))
        return total * masks[0](image, own, *taps, *space) if masks else total

    return stage(shape, sampled, name="columns")


DEFORMABLE: Mapping[str, Composition] = {"DeformConv": _deform_conv}
"""By the operator's name in ONNX's own domain."""
