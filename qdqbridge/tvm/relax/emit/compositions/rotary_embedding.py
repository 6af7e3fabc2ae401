"""Heads of attention, and their numbers turned in pairs by their places, as loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.ops.attention import RotaryEmbeddingAttrs
from qdqbridge.core.ops.attributes import NormAttrs
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.broadcasting import need_indices
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

# ---- embedLayerNormalization of com.microsoft: what stands before the layers of a BERT -----------

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
    norm = NormAttrs(context.rank(total) - 1, context.onnx.float_("epsilon", 1e-12))
    scaled = context.steps(LAYER_NORMALIZATION, norm, [total, gamma, beta])
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


_INT = "int64"
ROTARY_ROWS = "rotary_rows"
"""What the extent is called that says how many rows tables need; errors of a run name it."""


def heads_first(
    context: CompositionContext, x: Expr, heads: int, batch: Any = None, length: Any = None
) -> Expr:
    """Returns (batch, length, heads * size) as (batch, heads, length, size).

    Batch and length are those that are given: what the file names otherwise has to be equal.
    """
    own_batch, own_length, width = context.extents(x)
    batch, length = own_batch if batch is None else batch, own_length if length is None else length
    context.emitter.need_same(own_batch, batch)
    context.emitter.need_same(own_length, length)
    if not isinstance(width, int) or width % heads:
        raise NoRow(f"the width of its operand is {width}, of {heads} heads")
    split = context("reshape", x, (batch, length, heads, width // heads))
    return context("permute_dims", split, [0, 2, 1, 3])


def heads_last(context: CompositionContext, x: Expr) -> Expr:
    """Returns (batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = context.extents(x)
    return context(
        "reshape", context("permute_dims", x, [0, 2, 1, 3]), (batch, length, heads * size)
    )


def need_rows(
    context: CompositionContext, table: Expr, places: Expr, *, from_the_end: bool = False
) -> None:
    """Ends a run with an error where a place is beyond the rows of a table.

    Args:
        context: The node.
        table: (rows, pairs).
        places: Whole numbers of any shape.
        from_the_end: Negative places count from there; else there are none.
    """
    need_indices(context.emitter, places, table, 0, label=ROTARY_ROWS, from_the_end=from_the_end)


def rotated(
    context: CompositionContext, x: Expr, tables: Sequence[Expr], places: Expr, *, interleaved: bool
) -> Expr:
    """Returns pairs of numbers turned by their places.

    As :func:`qdqbridge.core.ops.attention.rotated` does, of places that the tables have
    (:func:`need_rows`); no memory beyond them is read before a run ends with the error.
    """
    half = context.extents(tables[0])[-1]
    size = context.extents(x)[-1]
    if not isinstance(half, int) or not isinstance(size, int) or 2 * half > size:
        raise NoRow(f"its tables turn {half} pairs of {size} numbers")

    def rotary(data: te.Tensor, cosine: te.Tensor, sine: te.Tensor, at: te.Tensor) -> te.Tensor:
        def element(b: Expr, n: Expr, s: Expr, d: Expr) -> Expr:
            place, rows = at(b, s).astype(_INT), cosine.shape[0]
            from_first = tirx.Select(place < 0, place + rows, place)
            row = tirx.max(tirx.min(from_first, rows - 1), 0)
            pair = d // 2 if interleaved else d % half
            first = d % 2 == 0 if interleaved else d < half
            other = d + tirx.Select(first, tirx.const(1, _INT), tirx.const(-1, _INT)) * (
                1 if interleaved else half
            )
            inside = d < 2 * half
            own = data(b, n, s, d)
            partner = data(b, n, s, tirx.Select(inside, other, d))
            column = tirx.Select(inside, pair, tirx.const(0, _INT))
            sign = tirx.Select(first, tirx.const(-1.0, data.dtype), tirx.const(1.0, data.dtype))
            c, w = cosine(row, column), sine(row, column)
            turned = own * c.astype(data.dtype) + sign * partner * w.astype(data.dtype)
            return tirx.Select(inside, turned, own)

        return stage(data.shape, element, name="turned")

    return loops(context, "rotary", rotary, x, *tables, places)


def rotary_embedding(context: CompositionContext, a: RotaryEmbeddingAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.attention.ROTARY_EMBEDDING` says."""
    x, tables = context.arg(0), [context.arg(1), context.arg(2)]
    data = wide(context, x)
    data = data if context.rank(data) == 4 else heads_first(context, data, a.num_heads)
    batch, _, length, _ = context.extents(data)
    steps = context("reshape", context.counted(length), (1, length))
    if not context.has(3):
        rows = context("reshape", context.counted(batch), (batch, 1))
        count = context.emitter.run_time_extent(data, 2, _INT)
        places = context("add", context("multiply", rows, count), steps)
        tables = [context("reshape", t, (-1, context.extents(t)[-1])) for t in tables]
    elif context.rank(context.arg(3)) == 1:
        begin = context("reshape", context.cast(context.arg(3), _INT), (1, 1))
        places = context("broadcast_to", context("add", begin, steps), (batch, length))
    else:
        places = context("reshape", context.cast(context.arg(3), _INT), (batch, length))
    if context.has(3):
        need_rows(context, tables[0], places, from_the_end=True)
    turned = rotated(context, data, tables, places, interleaved=a.interleaved)
    result = turned if context.rank(x) == 4 else heads_last(context, turned)
    return [context.cast(result, context.dtype(x))]


def _multimodal(context: CompositionContext) -> Sequence[Expr]:
    """A RotaryEmbedding by three places of each token, each of which has columns of the tables.

    Source: onnxruntime docs/ContribOperators.md, mrotary_embedding.
    """
    if context.onnx.int_("is_packed_batching", 0) or context.onnx.float_("scale", 1.0) != 1.0:
        raise NoRow("its batch is ragged, or it has a scale")
    x, places, tables = (
        context.arg(0),
        context.cast(context.arg(1), _INT),
        [context.arg(2), context.arg(3)],
    )
    half = context.static(tables[0])[1]
    data, heads = wide(context, x), context.onnx.int_("num_heads", 0)
    if context.rank(data) != 4:
        width = context.extents(data)[-1]
        if not heads and isinstance(width, int):
            heads = width // (2 * half)
        data = heads_first(context, data, heads)
    batch, _, length, _ = context.extents(data)
    for have, want in zip(context.extents(places), (3, batch, length), strict=True):
        context.emitter.need_same(have, want)
    places = context("reshape", places, (3, batch, length))
    need_rows(context, tables[0], places)
    streams = context.number(_streams(context, half), _INT)
    rows = [loops(context, "places", _by_columns, table, places, streams) for table in tables]
    tables = [context("reshape", table, (-1, half)) for table in rows]
    count = context.emitter.run_time_extent(data, 2, _INT)
    begin = context("multiply", context("reshape", context.counted(batch), (batch, 1)), count)
    tokens = context("add", begin, context("reshape", context.counted(length), (1, length)))
    interleaved = bool(context.onnx.int_("interleaved", 0))
    turned = rotated(context, data, tables, tokens, interleaved=interleaved)
    result = turned if context.rank(x) == 4 else heads_last(context, turned)
    return [context.cast(result, context.dtype(x))]


def _streams(context: CompositionContext, half: int) -> NDArray[np.int64]:
    """Returns by which of the three places each column of the tables is found."""
    sections = context.onnx.ints("mrope_section", ())
    if len(sections) != 3 or sum(sections) != half:
        raise NoRow(f"its sections {list(sections)} are not {half} columns")
    if context.onnx.int_("mrope_layout", 0) == 0:
        return np.repeat(np.arange(3), sections)
    streams = np.zeros(half, np.int64)
    for stream in (1, 2):  # every third column, as far as the section reaches
        streams[stream : 3 * sections[stream] : 3] = stream
    return streams


def _by_columns(table: te.Tensor, places: te.Tensor, streams: te.Tensor) -> te.Tensor:
    """Returns the row of a table that each token has, column by column."""
    shape = (places.shape[1], places.shape[2], table.shape[1])

    def element(b: Expr, s: Expr, c: Expr) -> Expr:
        row = tirx.max(tirx.min(places(streams(c), b, s), table.shape[0] - 1), 0)
        return table(row, c)

    return stage(shape, element, name="rows")


ROTARY: Mapping[str, Composition] = {"MRotaryEmbedding": _multimodal}
"""By the operator's name in the domain com.microsoft, of those that have no row."""
