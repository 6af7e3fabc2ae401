"""Col2Im: an image from the windows that were cut out of it, which are added where they overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)


def _col2im(context: CompositionContext) -> Sequence[Expr]:
    """Of every pixel the sum of the windows' elements that lie on it.

    Which windows these are follows from the pixel, so that nothing is scattered.
    Source: ONNX Col2Im-18.
    """
    image, block = (_sizes(context, index) for index in (1, 2))
    rank = len(image)
    if len(block) != rank:
        raise NoRow(f"its image has {rank} axes, its blocks {len(block)}")
    strides, dilations = (context.onnx.ints(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = context.onnx.ints("pads", (0,) * (2 * rank))
    ends = [size + pads[axis] + pads[rank + axis] for axis, size in enumerate(image)]
    counts = [
        (end - (tap - 1) * dilation - 1) // stride + 1
        for end, tap, dilation, stride in zip(ends, block, dilations, strides, strict=True)
    ]
    columns = wide(context, context.arg(0))
    batch, rows, given = context.extents(columns)
    channels = rows // math.prod(block)
    context.emitter.need_same(rows, channels * math.prod(block))
    context.emitter.need_same(given, math.prod(counts))
    windows = context("reshape", columns, [batch, channels, *block, *counts])

    def fold(data: te.Tensor) -> te.Tensor:
        sizes, steps = data.shape[2 : 2 + rank], data.shape[2 + rank :]

        def pixel(*at: Any) -> Any:
            taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in sizes]
            ahead = [
                place + pads[axis] - taps[axis].var * dilations[axis]
                for axis, place in enumerate(at[2:])
            ]
            first = [tirx.floordiv(n, stride) for n, stride in zip(ahead, strides, strict=True)]
            within = tirx.all(*(
                test
                for n, window, stride, count in zip(ahead, first, strides, steps, strict=True)
                for test in (tirx.floormod(n, stride) == 0, window >= 0, window < count)
            ))  # fmt: skip
            element = data(*at[:2], *(tap.var for tap in taps), *first)
            zero = tirx.const(0, data.dtype)
            return te.sum(tirx.if_then_else(within, element, zero), axis=taps)

        return stage([*data.shape[:2], *image], pixel, name="pixels")

    return [context.cast(loops(context, "col2im", fold, windows), context.dtype(context.arg(0)))]


def _sizes(context: CompositionContext, index: int) -> list[Any]:
    """Returns the extents that an operand lists: numbers, or variables of the function."""
    known = context.constant_ints(index)
    return context.bound(context.integers(index)) if known is None else list(known)


FOLDING: Mapping[str, Composition] = {"Col2Im": _col2im}
"""By the operator's name in ONNX's own domain."""
