"""Attention of language models: heads that share keys, and the cache of keys and values, as loops.

How long the cache gets is what an operand says when the module runs, so that it is an extent of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.group_query_attention import (
    GroupQueryAttentionAttrs,
    SparseAttentionAttrs,
    seen_blocks,
)
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.attention import (
    Lines,
    Sight,
    fit_bias,
    products,
    seen_softmax,
)
from qdqbridge.tvm.relax.emit.compositions.elementwise import CompositionContext, loops, wide
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import (
    heads_first,
    heads_last,
    need_rows,
    rotated,
)

_INT = "int64"
_NONE = 1 << 10
"""The place of an operand that an operator does not have."""


@dataclass(frozen=True, slots=True)
class _Slots:
    """Which operand is what, behind queries, keys, values and their past.

    Attributes:
        lengths: How long each sequence is.
        total: The greatest of them.
        tables: Cosines and sines.
        places: By which queries and keys are turned.
        bias: What is added to the products.
        sink: What takes part in the softmax and is dropped.
        scales: Of cached keys and values.
        short: How much less than the length is said.
        in_place: What the past holds behind the new rows stays there.
    """

    lengths: int
    total: int
    tables: tuple[int, int]
    places: int = _NONE
    bias: int = _NONE
    sink: int = _NONE
    scales: tuple[int, int] = (_NONE, _NONE)
    short: int = 0
    in_place: bool = False


_GROUPED = _Slots(5, 6, (7, 8), 9, 10, 11, (12, 13), short=1)
_SPARSE = _Slots(lengths=8, total=7, tables=(9, 10), in_place=True)


def group_query_attention(
    context: CompositionContext, a: GroupQueryAttentionAttrs
) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.group_query_attention.GROUP_QUERY_ATTENTION` says."""
    return _attended(context, a, _GROUPED, lambda lines, q, room: None)


def sparse_attention(context: CompositionContext, a: SparseAttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.group_query_attention.SPARSE_ATTENTION` says."""
    ends, found = (context.onnx.operand(index).constant for index in (5, 6))
    if ends is None or found is None:
        raise NoRow("the blocks that are seen are known at run time only")
    blocks = seen_blocks(ends.numpy(), found.numpy())
    layouts, count, _ = blocks.shape
    size = a.sparse_block_size

    def mask(lines: Lines, q: Expr, room: Any) -> Expr:
        batch, heads, length, _ = context.extents(q)

        def seen(starts: te.Tensor, known: te.Tensor) -> te.Tensor:
            def element(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
                row = tirx.min(tirx.floordiv(starts(b) + s, size), count - 1)
                # A place behind the last block is never seen, but loops still compute it: it reads
                # inside of the table.
                column = tirx.min(tirx.floordiv(t, size), count - 1)
                return known(tirx.floormod(h, layouts), row, column) != 0

            return stage((batch, heads, length, room), element, name="seen_blocks")

        known = context.number(blocks.astype(np.uint8), "uint8")
        return loops(context, "blocks", seen, lines.starts, known)

    return _attended(context, a.grouped, _SPARSE, mask)


def _attended(
    context: CompositionContext, a: GroupQueryAttentionAttrs, slots: _Slots,
    mask: Callable[[Lines, Expr, Any], Expr | None],
) -> Sequence[Expr]:  # fmt: skip
    """Returns the attention and the new cache.

    Args:
        context: The node.
        a: What it does.
        slots: Where its operands are.
        mask: Returns truth values for queries and rows of the cache, by where they stand; None:
            the node's bias.
    """
    q, k, v = _group_operands(context, a)
    size = context.extents(q)[-1]
    lines, places = _group_lines(context, a, q, slots)
    if a.do_rotary:
        tables = [context.arg(index) for index in slots.tables]
        need_rows(context, tables[0], places)
        q, k = (
            rotated(context, x, tables, places, interleaved=a.rotary_interleaved) for x in (q, k)
        )
    room = _room(context, a, q, slots)
    kept: list[Expr] = []
    seen: list[Expr] = []
    for past, scale, new, kind in (
        (3, slots.scales[0], k, a.k_quant_type),
        (4, slots.scales[1], v, a.v_quant_type),
    ):
        cache = _Cache(context, past, scale, kind, a.kv_cache_bit_width, in_place=slots.in_place)
        rows = cache.joined(new, lines, room)
        seen.append(cache.real(rows))
        kept.append(cache.moved(rows, lines, a) if a.sliding_window_cache else rows)
    # 0 is ONNX's default of the attribute, and stands for the root.
    factor = a.scale or 1 / math.sqrt(size)

    def bent(x: Expr, kind: str) -> Expr:
        value = x * tirx.const(factor, kind)
        if not a.softcap:
            return value
        cap = tirx.const(a.softcap, kind)
        return tirx.tanh(value / cap) * cap

    sink = context.arg(slots.sink) if context.has(slots.sink) else None
    if sink is None and a.smooth_softmax:
        # exp(0) = 1 beside the exponentials is what a smooth softmax adds to their sum.
        sink = context.number(np.zeros(a.num_heads), "float32")
    bias = mask(lines, q, room)
    if bias is None and context.has(slots.bias):
        bias = context.arg(slots.bias)
        fit_bias(context, bias, q)

    held = context("subtract", lines.ends, context("subtract", lines.starts, lines.before))
    sight = Sight(
        lines, causal=a.causal, window=a.local_window_size, bias=bias, held=held, padded=True
    )

    def weigh(scores: Expr) -> Expr:
        return seen_softmax(context, scores, sight, bent, sink)

    mixed = heads_last(context, products(context, q, seen[0], seen[1], weigh))
    return [context.cast(mixed, context.dtype(context.arg(0))), *kept]


def _group_operands(context: CompositionContext, a: GroupQueryAttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads; they may lie side by side in one operand."""
    counts = (a.num_heads, a.kv_num_heads, a.kv_num_heads)
    if context.has(1):
        given = [context.arg(index) for index in range(3)]
    else:
        width = context.extents(context.arg(0))[-1]
        if not isinstance(width, int) or width % sum(counts):
            raise NoRow(f"the width of its operand is {width}, of {sum(counts)} heads")
        size = width // sum(counts)
        ends = [counts[0] * size, (counts[0] + counts[1]) * size]
        parts = context.emitter.emit(context.emitter.op.split(context.arg(0), ends, axis=2))
        given = [context.emitter.emit(context.emitter.item(parts, index)) for index in range(3)]
    batch, length, _ = context.extents(given[0])
    return [
        heads_first(context, wide(context, x), count, batch, length)
        for x, count in zip(given, counts, strict=True)
    ]


def _group_lines(
    context: CompositionContext, a: GroupQueryAttentionAttrs, q: Expr, slots: _Slots
) -> tuple[Lines, Expr]:
    """Returns where queries and keys stand, and the places by which they are turned."""
    length = context.emitter.run_time_extent(q, 2, _INT)
    lengths = context(
        "reshape", context.cast(context.arg(slots.lengths), _INT), (context.extents(q)[0],)
    )
    ends = context("add", lengths, context.number(slots.short, _INT)) if slots.short else lengths
    starts = context("maximum", context("subtract", ends, length), context.number(0, _INT))
    total = context("reshape", context.cast(context.arg(slots.total), _INT), ())
    first = context("equal", total, length)
    before = starts
    if a.sliding_window_cache:
        capacity = context.emitter.run_time_extent(context.arg(3), 2, _INT)
        before = _resident(context, starts, capacity, a.local_window_size)
    else:
        starts = context("where", first, context("zeros_like", starts), starts)
        before = starts
    lines = Lines(starts, before, ends)
    batch, _, count, _ = context.extents(q)
    steps = context("reshape", context.counted(count), (1, count))
    begin = context("reshape", starts, (batch, 1))
    if a.do_rotary and context.has(slots.places):
        given = context("reshape", context.cast(context.arg(slots.places), _INT), (batch, count))
        return lines, context(
            "where", first, loops(context, "prompt_places", _counted_on, given), given
        )
    return lines, context("add", begin, steps)


def _counted_on(places: te.Tensor) -> te.Tensor:
    """Returns places that count from the first sequence's first, as onnxruntime's of a prompt."""

    def place(b: Expr, s: Expr) -> Expr:
        del b
        return places(0, 0) + s.astype(places.dtype)

    return stage(places.shape, place, name="counted_on")


def _resident(context: CompositionContext, ends: Expr, capacity: Expr, window: int) -> Expr:
    """Returns how many rows a cache of a window keeps: ``ops.group_query_attention.resident``."""
    step = context("subtract", capacity, context.number(window - 1, _INT))
    beyond = context("maximum", context("subtract", ends, capacity), context.number(0, _INT))
    rounds = context("floor_divide", context("subtract", context("add", beyond, step),
                                       context.number(1, _INT)), step)  # fmt: skip
    return context("subtract", ends, context("multiply", step, rounds))


def _room(context: CompositionContext, a: GroupQueryAttentionAttrs, q: Expr, slots: _Slots) -> Any:
    """Returns how many rows queries may see: the past's and the new ones, or a shared buffer's."""
    past = context.extents(context.arg(3))[2] if context.has(3) else 0
    if a.sliding_window_cache:
        return past + context.extents(q)[2]
    total = context.constant_ints(slots.total)
    # A number keeps the extents of loops constant.
    if total and isinstance(past, int):
        return max(total[0], past)
    wanted = context("reshape", context.cast(context.arg(slots.total), _INT), (1,))
    if context.has(3):
        own = context.emitter.run_time_extent(context.arg(3), 2, _INT)
        wanted = context("maximum", wanted, own)
    return context.bound(wanted, "cached")[0]


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys or values of the past, and how they are stored.

    Attributes:
        context: The node.
        index: The operand that is the past.
        scale: The operand that is its scale.
        kind: How it is quantized.
        bits: The bits of a number in it.
        in_place: What it holds behind the new rows stays there.
    """

    context: CompositionContext
    index: int
    scale: int
    kind: str
    bits: int
    in_place: bool = False

    def joined(self, new: Expr, lines: Lines, room: Any) -> Expr:
        """Returns the rows of the past that hold something, and the new ones behind them."""
        context = self.context
        fresh = self._stored(new)
        batch, heads, _, width = context.extents(fresh)
        if not context.has(self.index):

            def alone(data: te.Tensor, before: te.Tensor) -> te.Tensor:
                none = tirx.const(0, data.dtype)

                def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                    own = tirx.all(t >= before(b), t < before(b) + data.shape[2])
                    return tirx.if_then_else(own, data(b, n, t - before(b), d), none)

                return stage((batch, heads, room, width), element, name="joined")

            return loops(context, "cache", alone, fresh, lines.before)
        past = context.arg(self.index)
        context.emitter.need_same(context.extents(past)[0], batch)
        context.emitter.need_same(context.extents(past)[3], width)

        def cache(old: te.Tensor, data: te.Tensor, before: te.Tensor) -> te.Tensor:
            none = tirx.const(0, data.dtype)

            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                own = tirx.all(t >= before(b), t < before(b) + data.shape[2])
                added = tirx.if_then_else(own, data(b, n, t - before(b), d), none)
                # The past is longer than the rows that hold something where caller and model share
                # one buffer.
                held = tirx.all(t < before(b), t < old.shape[2])
                if self.in_place:
                    held = tirx.all(tirx.Not(own), t < old.shape[2])
                return tirx.if_then_else(held, old(b, n, t, d), added)

            return stage((batch, heads, room, width), element, name="joined")

        return loops(context, "cache", cache, past, fresh, lines.before)

    def moved(self, rows: Expr, lines: Lines, a: GroupQueryAttentionAttrs) -> Expr:
        """Returns the cache of a window after the step: the last rows, from its beginning on."""
        context = self.context
        batch, heads, _, width = context.extents(rows)
        capacity = context.extents(context.arg(self.index))[2]
        kept = context.emitter.run_time_extent(context.arg(self.index), 2, _INT)
        left = _resident(context, lines.ends, kept, a.local_window_size)
        new = context("subtract", lines.ends, lines.starts)
        skipped = context("subtract", context("add", lines.before, new), left)

        def window(data: te.Tensor, count: te.Tensor, first: te.Tensor) -> te.Tensor:
            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                own = tirx.all(t < count(b), t + first(b) >= 0, t + first(b) < data.shape[2])
                none = tirx.const(0, data.dtype)
                return tirx.if_then_else(own, data(b, n, t + first(b), d), none)

            return stage((batch, heads, capacity, width), element, name="kept")

        return loops(context, "cache_window", window, rows, left, skipped)

    def real(self, rows: Expr) -> Expr:
        """Returns stored rows as the numbers that they mean."""
        context = self.context
        if self.kind == "NONE" or not context.has(self.scale):
            return wide(context, rows)
        if self.bits == 4:

            def halves(data: te.Tensor) -> te.Tensor:
                shape = (*data.shape[:3], data.shape[3] * 2)

                def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                    byte = data(b, n, t, d // 2).astype("int32")
                    # Two codes in a byte, the lower half first, stored as code + 8.
                    code = tirx.Select(d % 2 == 0, byte & 15, byte >> 4) - 8
                    return code.astype("float32")

                return stage(shape, element, name="codes")

            rows = loops(context, "unpacked", halves, rows)
        return context("multiply", context.cast(rows, "float32"), self._spread(rows))

    def _stored(self, new: Expr) -> Expr:
        context = self.context
        if self.kind == "NONE" or not context.has(self.scale):
            held = self.index if context.has(self.index) else 0
            kind = context.dtype(context.arg(held))
            return context.cast(new, kind)
        most = 7 if self.bits == 4 else 127
        whole = context("round", context("divide", new, self._spread(new)))
        bounds = [context.number(bound, "float32") for bound in (-most - 1, most)]
        codes = context("minimum", context("maximum", whole, bounds[0]), bounds[1])
        if self.bits != 4:
            return context.cast(codes, "int8")

        def pairs(data: te.Tensor) -> te.Tensor:
            shape = (*data.shape[:3], data.shape[3] // 2)

            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                low, high = (data(b, n, t, d * 2 + i).astype("int32") + 8 for i in (0, 1))
                return (low | (high << 4)).astype("uint8")

            return stage(shape, element, name="packed")

        return loops(context, "packed", pairs, codes)

    def _spread(self, like: Expr) -> Expr:
        """Returns scales that broadcast to a cache: one, or one per head and number."""
        context = self.context
        scale = wide(context, context.arg(self.scale))
        if self.kind == "PER_TENSOR":
            return context("reshape", scale, ())
        _, heads, _, width = context.extents(like)
        return context("reshape", scale, (1, heads, 1, width))
