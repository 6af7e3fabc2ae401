"""MelWeightMatrix: triangles over the bins of a spectrum, as wide as the mel scale says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_STEEP, _CORNER = 2595 / np.log(10), 700.0
"""Of the mel scale: ``steep * log(1 + frequency / corner)``."""


def _mel_weight_matrix(context: CompositionContext) -> Sequence[Expr]:
    """Edges of triangles lie at whole bins. Source: ONNX MelWeightMatrix-17, in float64."""
    columns, length, rate, low, high = (
        context("reshape", context.cast(context.arg(index), "float64"), (1,)) for index in range(5)
    )
    one, two = (context.number(value, "float64") for value in (1, 2))
    half = context("floor", context("divide", length, two))
    sizes = context("concat", [context("add", half, one), columns], axis=0)
    rows, count = context.bound(context.cast(sizes, "int64"), "bins")
    first, last = _mel(context, low), _mel(context, high)
    points = context.cast(context.counted(count + 2), "float64")
    step = context("divide", context("subtract", last, first), context("add", columns, two))
    frequency = _hertz(context, context("add", context("multiply", points, step), first))
    places = context("divide", context("multiply", context("add", length, one), frequency), rate)
    edges = context("floor", places)
    left, middle, right = (
        context("strided_slice", edges, axes=[0], begin=[begin], end=[count + begin])
        for begin in range(3)
    )
    at = context("expand_dims", context.cast(context.counted(rows), "float64"), 1)
    return [context.cast(_triangle(context, at, left, middle, right), str(context.result_dtype()))]


def _mel(context: CompositionContext, frequency: Expr) -> Expr:
    part = context("divide", frequency, context.number(_CORNER, frequency))
    logarithm = context("log", context("add", part, context.number(1, part)))
    return context("multiply", logarithm, context.number(_STEEP, part))


def _hertz(context: CompositionContext, mel: Expr) -> Expr:
    power = context("exp", context("divide", mel, context.number(_STEEP, mel)))
    return context("multiply", context("subtract", power, context.number(1, mel)),
                context.number(_CORNER, mel))  # fmt: skip


def _triangle(context: CompositionContext, at: Expr, left: Expr, middle: Expr, right: Expr) -> Expr:
    """Returns what rises from ``left`` to 1 in the ``middle`` and falls to ``right``."""
    zero, one = (context.number(value, at) for value in (0, 1))

    def ratio(part: Expr, whole: Expr) -> Expr:
        return context("divide", part, context("maximum", whole, one))  # widths are whole numbers

    rising = ratio(context("subtract", at, left), context("subtract", middle, left))
    rising = context("where", context("equal", at, middle), one, rising)
    before = context(
        "logical_and", context("greater_equal", at, left), context("less_equal", at, middle)
    )
    falling = ratio(context("subtract", right, at), context("subtract", right, middle))
    behind = context(
        "logical_and", context("greater_equal", at, middle), context("less", at, right)
    )
    return context("where", behind, falling, context("where", before, rising, zero))


FILTER_BANKS: Mapping[str, Composition] = {"MelWeightMatrix": _mel_weight_matrix}
"""By the operator's name in ONNX's own domain."""
