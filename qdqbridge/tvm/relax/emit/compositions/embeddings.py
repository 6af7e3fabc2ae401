"""EmbedLayerNormalization of com.microsoft: what stands before the layers of a BERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_IDS, _SEGMENTS, _WORDS, _POSITIONS, _KINDS, _GAMMA, _BETA, _MASK, _PLACES = range(9)
_SCALES, _ZERO_POINTS = 6, 11
"""How far behind a table, or a parameter of the norm, its own are."""


def _embedded(context: CompositionContext) -> Sequence[Expr]:
    """The norm of the sum of the rows of words, places and segments; how many ones a mask has.

    Source: onnxruntime docs/ContribOperators.md, embed_layer_norm.cc.
    """

    def rows(table: int, ids: Expr) -> Expr:
        return context("take", context.arg(table), ids, axis=0, mode="clip")

    total = _sum_of_rows(context, rows, _PLACES)
    results = _normed(context, total, context.arg(_GAMMA), context.arg(_BETA))
    return [*results, total][: len(context.node.outputs)]


def _qembed_layer_norm(context: CompositionContext) -> Sequence[Expr]:
    """The same of tables and parameters of 8 bits, each with a scale and a zero point of its own.

    Source: onnxruntime docs/ContribOperators.md, qembed_layer_norm.cc.
    """

    def real(operand: int, stored: Expr) -> Expr:
        scale, zero = (
            context("reshape", context.cast(context.arg(operand + more), "float32"), ())
            for more in (_SCALES, _ZERO_POINTS)
        )
        return context(
            "multiply", context("subtract", context.cast(stored, "float32"), zero), scale
        )

    def rows(table: int, ids: Expr) -> Expr:
        return real(table, context("take", context.arg(table), ids, axis=0, mode="clip"))

    norm = [real(operand, context.arg(operand)) for operand in (_GAMMA, _BETA)]
    results = _normed(context, _sum_of_rows(context, rows), norm[0], norm[1])
    return results[: len(context.node.outputs)]


def _sum_of_rows(
    context: CompositionContext, rows: Callable[[int, Expr], Expr], places_at: int | None = None
) -> Expr:
    """Returns the sum of the rows of words, places and segments.

    Args:
        context: The node.
        rows: Returns the rows of a table, by its operand and ids.
        places_at: The operand that has the places; None: they are counted.
    """
    ids = context.arg(_IDS)
    length = context.extents(ids)[1]
    places = context.counted(length)
    if places_at is not None and context.has(places_at):
        places = _shaped(context, context.arg(places_at), ids)
    total = context(
        "add",
        rows(_WORDS, context.cast(ids, "int64")),
        rows(_POSITIONS, context.cast(places, "int64")),
    )
    if context.has(_SEGMENTS):
        segments = _shaped(context, context.arg(_SEGMENTS), ids)
        total = context("add", total, rows(_KINDS, context.cast(segments, "int64")))
    return total


def _normed(context: CompositionContext, total: Expr, gamma: Expr, beta: Expr) -> list[Expr]:
    """Returns the norm of the sums, and how many ones the mask of each sequence has."""
    centred = context("subtract", total, context("mean", total, axis=-1, keepdims=True))
    variance = context("mean", context("multiply", centred, centred), axis=-1, keepdims=True)
    epsilon = context.number(context.onnx.float_("epsilon", 1e-12), total)
    normal = context("divide", centred, context("sqrt", context("add", variance, epsilon)))
    scaled = context("add", context("multiply", normal, gamma), beta)
    counted = context("zeros", (context.extents(context.arg(_IDS))[0],), "int32")
    if context.has(_MASK):
        mask = context.arg(_MASK)
        ones = context.cast(context("equal", mask, context.number(1, mask)), "int32")
        counted = context("sum", ones, axis=1)
    return [scaled, counted]


def _shaped(context: CompositionContext, ids: Expr, like: Expr) -> Expr:
    """Returns ids in the extents of others, which they have to have; one row may be for all."""
    rows, length = context.extents(ids)
    batch, wanted = context.extents(like)
    context.emitter.need_same(length, wanted)
    if rows != 1:
        context.emitter.need_same(rows, batch)
    return context("reshape", ids, (1 if rows == 1 else batch, wanted))


EMBEDDINGS: Mapping[str, Composition] = {
    "EmbedLayerNormalization": _embedded,
    "QEmbedLayerNormalization": _qembed_layer_norm,
}
"""By the operator's name in the domain com.microsoft."""
