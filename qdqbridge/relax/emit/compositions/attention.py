"""Attention of language models: the cache, the turning and the softmax as loops, products as TVM's.

Every length may be open: of the batch, of the queries, of the past. How long the cache gets is what
an operand says when the module runs, so that it is an extent of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.ops.attention import (
    GROUP_QUERY_ATTENTION,
    MERGED_ATTENTION,
    MULTI_HEAD_ATTENTION,
    ROTARY_EMBEDDING,
    GroupQueryAttentionAttrs,
    MergedAttentionAttrs,
    MultiHeadAttentionAttrs,
    RotaryEmbeddingAttrs,
)
from qdqbridge.qnn.dialect.kernel import stage
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, CompositionSite

_INT = "int64"


def loops(site: CompositionSite, name: str, compute: Callable[..., te.Tensor], *args: Expr) -> Expr:
    """Emits a call of a function of loops."""
    return site.scope.emit(site.scope.builder.call_te(compute, *args, primfunc_name_hint=name))


def wide(site: CompositionSite, x: Expr) -> Expr:
    """Returns half floats in float32, in which hosts add."""
    return site.cast(x, "float32") if site.dtype(x) in ("float16", "bfloat16") else x


def _heads_first(
    site: CompositionSite, x: Expr, heads: int, batch: Any = None, length: Any = None
) -> Expr:
    """Returns (batch, length, heads * size) as (batch, heads, length, size).

    Batch and length are those that are given: what the file names otherwise has to be equal.
    """
    own_batch, own_length, width = site.extents(x)
    batch, length = own_batch if batch is None else batch, own_length if length is None else length
    site.scope.need_same(own_batch, batch)
    site.scope.need_same(own_length, length)
    if not isinstance(width, int) or width % heads:
        raise NoRow(f"the width of its operand is {width}, of {heads} heads")
    split = site("reshape", x, (batch, length, heads, width // heads))
    return site("permute_dims", split, [0, 2, 1, 3])


def _heads_last(site: CompositionSite, x: Expr) -> Expr:
    batch, heads, length, size = site.extents(x)
    return site("reshape", site("permute_dims", x, [0, 2, 1, 3]), (batch, length, heads * size))


def _rotated(
    site: CompositionSite, x: Expr, tables: Sequence[Expr], places: Expr, *, interleaved: bool
) -> Expr:
    """Returns pairs of numbers turned by their places, as :func:`qdqbridge.ops.attention.rotated`.

    A place behind the tables is taken to be their last one.
    """
    half = site.extents(tables[0])[-1]
    size = site.extents(x)[-1]
    if not isinstance(half, int) or not isinstance(size, int) or 2 * half > size:
        raise NoRow(f"its tables turn {half} pairs of {size} numbers")

    def rotary(data: te.Tensor, cosine: te.Tensor, sine: te.Tensor, at: te.Tensor) -> te.Tensor:
        def element(b: Expr, n: Expr, s: Expr, d: Expr) -> Expr:
            row = tirx.max(tirx.min(at(b, s).astype(_INT), cosine.shape[0] - 1), 0)
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

    return loops(site, "rotary", rotary, x, *tables, places)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Where keys and queries stand, per sequence; int64 vectors of the batch.

    Attributes:
        starts: The position of the first query.
        before: How many rows of the cache hold something before this step.
        ends: The position behind the last query.
    """

    starts: Expr
    before: Expr
    ends: Expr


def _softmax(
    site: CompositionSite,
    scores: Expr,
    lines: _Lines,
    bent: Callable[[Expr, str], Expr],
    *,
    causal: bool,
    window: int = -1,
    bias: Expr | None = None,
    sink: Expr | None = None,
) -> Expr:
    """Returns the softmax over the keys that each query sees.

    Args:
        site: Where.
        scores: (batch, heads, queries, keys).
        lines: Where they stand; rows behind the last key hold nothing.
        bent: What is done to a product first.
        causal: A query sees no key behind it.
        window: How many keys it sees.
        bias: Added to the products; its columns are positions.
        sink: One number per head that takes part and is dropped.
    """

    def softmax(
        x: te.Tensor, starts: te.Tensor, before: te.Tensor, ends: te.Tensor, *more: te.Tensor
    ) -> te.Tensor:
        kind, rest = str(x.dtype), list(more)
        added = rest.pop(0) if bias is not None else None
        sinks = rest.pop(0) if sink is not None else None
        least = tirx.const(float(np.finfo(kind).min), kind)
        length = x.shape[2]

        def position(b: Expr, t: Expr) -> Expr:
            return starts(b) - before(b) + t

        def seen(b: Expr, s: Expr, t: Expr) -> Expr:
            query, at = starts(b) + s, position(b, t)
            own = t < before(b) + length
            if causal:
                own = tirx.all(own, at <= query)
            return tirx.all(own, at > query - window) if window > 0 else own

        def product(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            value = bent(x(b, h, s, t), kind)
            if added is None:
                return value
            column = tirx.max(tirx.min(position(b, t), added.shape[3] - 1), 0)
            own = added(b % added.shape[0], h % added.shape[1], s, column)
            return value + own.astype(kind)

        def masked(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            return tirx.if_then_else(seen(b, s, t), product(b, h, s, t), least)

        bounded = stage(x.shape, masked, name="seen")
        rows, keys = x.shape[:3], te.reduce_axis((0, x.shape[3]), "t")
        top: Any = te.compute(
            rows, lambda b, h, s: te.max(bounded(b, h, s, keys), axis=keys), name="top"
        )

        def greatest(b: Expr, h: Expr, s: Expr) -> Expr:
            return top(b, h, s) if sinks is None else tirx.max(top(b, h, s), sinks(h).astype(kind))

        def raised(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            power = tirx.exp(bounded(b, h, s, t) - greatest(b, h, s))
            return tirx.if_then_else(seen(b, s, t), power, tirx.const(0.0, kind))

        powers = stage(x.shape, raised, name="raised")
        again = te.reduce_axis((0, x.shape[3]), "t")
        total: Any = te.compute(
            rows, lambda b, h, s: te.sum(powers(b, h, s, again), axis=again), name="total"
        )

        def weight(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            whole = total(b, h, s)
            if sinks is not None:
                whole = whole + tirx.exp(sinks(h).astype(kind) - greatest(b, h, s))
            none = whole == tirx.const(0.0, kind)
            return powers(b, h, s, t) / tirx.Select(none, tirx.const(1.0, kind), whole)

        return stage(x.shape, weight, name="weights")

    given = [each for each in (bias, sink) if each is not None]
    return loops(
        site, "attention_weights", softmax, scores, lines.starts, lines.before, lines.ends, *given
    )


def _products(site: CompositionSite, q: Expr, k: Expr, v: Expr,
              weigh: Callable[[Expr], Expr]) -> Expr:  # fmt: skip
    """Returns ``weigh(q @ k') @ v``; each head of the keys serves as many of the queries."""
    batch, heads, length, size = site.extents(q)
    shared = site.extents(k)[1]
    group = heads // shared
    wide = site.extents(v)[-1]
    together = site("reshape", q, (batch, shared, group * length, size))
    scores = site("matmul", together, site("permute_dims", k, [0, 1, 3, 2]))
    keys = site.extents(scores)[-1]
    weights = weigh(site("reshape", scores, (batch, heads, length, keys)))
    mixed = site("matmul", site("reshape", weights, (batch, shared, group * length, keys)), v)
    return site("reshape", mixed, (batch, heads, length, wide))


# ---- GroupQueryAttention ------------------------------------------------------------------------


def _group_query(site: CompositionSite) -> Sequence[Expr]:
    """As :data:`qdqbridge.ops.attention.GROUP_QUERY_ATTENTION` says."""
    a = site.node.record(GroupQueryAttentionAttrs)
    q, k, v = _group_operands(site, a)
    size = site.extents(q)[-1]
    lines, places = _group_lines(site, a, q)
    if a.do_rotary:
        tables = [site.arg(7), site.arg(8)]
        q, k = (_rotated(site, x, tables, places, interleaved=a.rotary_interleaved) for x in (q, k))
    room = _room(site, a, q)
    kept: list[Expr] = []
    seen: list[Expr] = []
    for past, scale, new, kind in (
        (3, 12, k, a.k_quant_type),
        (4, 13, v, a.v_quant_type),
    ):
        cache = _Cache(site, past, scale, kind, a.kv_cache_bit_width)
        rows = cache.joined(new, lines, room)
        seen.append(cache.real(rows))
        kept.append(cache.moved(rows, lines, a) if a.sliding_window_cache else rows)
    factor = a.scale or 1 / math.sqrt(size)

    def bent(x: Expr, kind: str) -> Expr:
        value = x * tirx.const(factor, kind)
        if not a.softcap:
            return value
        cap = tirx.const(a.softcap, kind)
        return tirx.tanh(value / cap) * cap

    sink = site.arg(11) if site.has(11) else None
    if sink is None and a.smooth_softmax:
        sink = site.number(np.zeros(a.num_heads), "float32")
    bias = site.arg(10) if site.has(10) else None

    def weigh(scores: Expr) -> Expr:
        return _softmax(
            site, scores, lines, bent, causal=a.causal, window=a.local_window_size, bias=bias,
            sink=sink,
        )  # fmt: skip

    mixed = _heads_last(site, _products(site, q, seen[0], seen[1], weigh))
    return [site.cast(mixed, site.dtype(site.arg(0))), *kept]


def _group_operands(site: CompositionSite, a: GroupQueryAttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads; they may lie side by side in one operand."""
    counts = (a.num_heads, a.kv_num_heads, a.kv_num_heads)
    if site.has(1):
        given = [site.arg(index) for index in range(3)]
    else:
        width = site.extents(site.arg(0))[-1]
        if not isinstance(width, int) or width % sum(counts):
            raise NoRow(f"the width of its operand is {width}, of {sum(counts)} heads")
        size = width // sum(counts)
        ends = [counts[0] * size, (counts[0] + counts[1]) * size]
        parts = site.scope.emit(site.scope.op.split(site.arg(0), ends, axis=2))
        given = [site.scope.emit(site.scope.item(parts, index)) for index in range(3)]
    batch, length, _ = site.extents(given[0])
    return [
        _heads_first(site, wide(site, x), count, batch, length)
        for x, count in zip(given, counts, strict=True)
    ]


def _group_lines(
    site: CompositionSite, a: GroupQueryAttentionAttrs, q: Expr
) -> tuple[_Lines, Expr]:
    """Returns where queries and keys stand, and the places by which they are turned."""
    length = site.scope.run_time_extent(q, 2, _INT)
    lengths = site("reshape", site.cast(site.arg(5), _INT), (site.extents(q)[0],))
    ends = site("add", lengths, site.number(1, _INT))
    starts = site("maximum", site("subtract", ends, length), site.number(0, _INT))
    total = site("reshape", site.cast(site.arg(6), _INT), ())
    first = site("equal", total, length)
    before = starts
    if a.sliding_window_cache:
        capacity = site.scope.run_time_extent(site.arg(3), 2, _INT)
        before = _resident(site, starts, capacity, a.local_window_size)
    else:
        starts = site("where", first, site("zeros_like", starts), starts)
        before = starts
    lines = _Lines(starts, before, ends)
    batch, _, count, _ = site.extents(q)
    steps = site("reshape", site.counted(count), (1, count))
    begin = site("reshape", starts, (batch, 1))
    if a.do_rotary and site.has(9):
        given = site("reshape", site.cast(site.arg(9), _INT), (batch, count))
        corner = site("strided_slice", given, axes=[0, 1], begin=[0, 0], end=[1, 1])
        prompt = site("broadcast_to", site("add", corner, steps), (batch, count))
        return lines, site("where", first, prompt, given)
    return lines, site("add", begin, steps)


def _resident(site: CompositionSite, ends: Expr, capacity: Expr, window: int) -> Expr:
    """Returns how many rows a cache of a window keeps: ``ops.attention.resident``."""
    step = site("subtract", capacity, site.number(window - 1, _INT))
    beyond = site("maximum", site("subtract", ends, capacity), site.number(0, _INT))
    rounds = site("floor_divide", site("subtract", site("add", beyond, step),
                                       site.number(1, _INT)), step)  # fmt: skip
    return site("subtract", ends, site("multiply", step, rounds))


def _room(site: CompositionSite, a: GroupQueryAttentionAttrs, q: Expr) -> Any:
    """Returns how many rows queries may see: the past's and the new ones, or a shared buffer's."""
    past = site.extents(site.arg(3))[2] if site.has(3) else 0
    if a.sliding_window_cache:
        return past + site.extents(q)[2]
    total = site.constant_ints(6)
    if total and isinstance(past, int):
        return max(total[0], past)
    wanted = site("reshape", site.cast(site.arg(6), _INT), (1,))
    if site.has(3):
        own = site.scope.run_time_extent(site.arg(3), 2, _INT)
        wanted = site("maximum", wanted, own)
    return site.bound(wanted, "cached")[0]


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys or values of the past, and how they are stored.

    Attributes:
        site: The node.
        index: The operand that is the past.
        scale: The operand that is its scale.
        kind: How it is quantized.
        bits: The bits of a number in it.
    """

    site: CompositionSite
    index: int
    scale: int
    kind: str
    bits: int

    def joined(self, new: Expr, lines: _Lines, room: Any) -> Expr:
        """Returns the rows of the past that hold something, and the new ones behind them."""
        site = self.site
        fresh = self._stored(new)
        batch, heads, _, width = site.extents(fresh)
        if not site.has(self.index):

            def alone(data: te.Tensor, before: te.Tensor) -> te.Tensor:
                none = tirx.const(0, data.dtype)

                def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                    own = tirx.all(t >= before(b), t < before(b) + data.shape[2])
                    return tirx.if_then_else(own, data(b, n, t - before(b), d), none)

                return stage((batch, heads, room, width), element, name="joined")

            return loops(site, "cache", alone, fresh, lines.before)
        past = site.arg(self.index)
        site.scope.need_same(site.extents(past)[0], batch)
        site.scope.need_same(site.extents(past)[3], width)

        def cache(old: te.Tensor, data: te.Tensor, before: te.Tensor) -> te.Tensor:
            none = tirx.const(0, data.dtype)

            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                own = tirx.all(t >= before(b), t < before(b) + data.shape[2])
                added = tirx.if_then_else(own, data(b, n, t - before(b), d), none)
                held = tirx.all(t < before(b), t < old.shape[2])
                return tirx.if_then_else(held, old(b, n, t, d), added)

            return stage((batch, heads, room, width), element, name="joined")

        return loops(site, "cache", cache, past, fresh, lines.before)

    def moved(self, rows: Expr, lines: _Lines, a: GroupQueryAttentionAttrs) -> Expr:
        """Returns the cache of a window after the step: the last rows, from its beginning on."""
        site = self.site
        batch, heads, _, width = site.extents(rows)
        capacity = site.extents(site.arg(self.index))[2]
        kept = site.scope.run_time_extent(site.arg(self.index), 2, _INT)
        left = _resident(site, lines.ends, kept, a.local_window_size)
        new = site("subtract", lines.ends, lines.starts)
        skipped = site("subtract", site("add", lines.before, new), left)

        def window(data: te.Tensor, count: te.Tensor, first: te.Tensor) -> te.Tensor:
            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                own = tirx.all(t < count(b), t + first(b) >= 0, t + first(b) < data.shape[2])
                none = tirx.const(0, data.dtype)
                return tirx.if_then_else(own, data(b, n, t + first(b), d), none)

            return stage((batch, heads, capacity, width), element, name="kept")

        return loops(site, "cache_window", window, rows, left, skipped)

    def real(self, rows: Expr) -> Expr:
        """Returns stored rows as the numbers that they mean."""
        site = self.site
        if self.kind == "NONE" or not site.has(self.scale):
            return wide(site, rows)
        if self.bits == 4:

            def halves(data: te.Tensor) -> te.Tensor:
                shape = (*data.shape[:3], data.shape[3] * 2)

                def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                    byte = data(b, n, t, d // 2).astype("int32")
                    code = tirx.Select(d % 2 == 0, byte & 15, byte >> 4) - 8
                    return code.astype("float32")

                return stage(shape, element, name="codes")

            rows = loops(site, "unpacked", halves, rows)
        return site("multiply", site.cast(rows, "float32"), self._spread(rows))

    def _stored(self, new: Expr) -> Expr:
        site = self.site
        if self.kind == "NONE" or not site.has(self.scale):
            kind = site.dtype(site.arg(self.index)) if site.has(self.index) else site.dtype(
                site.arg(0)
            )  # fmt: skip
            return site.cast(new, kind)
        most = 7 if self.bits == 4 else 127
        whole = site("round", site("divide", new, self._spread(new)))
        bounds = [site.number(bound, "float32") for bound in (-most - 1, most)]
        codes = site("minimum", site("maximum", whole, bounds[0]), bounds[1])
        if self.bits != 4:
            return site.cast(codes, "int8")

        def pairs(data: te.Tensor) -> te.Tensor:
            shape = (*data.shape[:3], data.shape[3] // 2)

            def element(b: Expr, n: Expr, t: Expr, d: Expr) -> Expr:
                low, high = (data(b, n, t, d * 2 + i).astype("int32") + 8 for i in (0, 1))
                return (low | (high << 4)).astype("uint8")

            return stage(shape, element, name="packed")

        return loops(site, "packed", pairs, codes)

    def _spread(self, like: Expr) -> Expr:
        """Returns scales that broadcast to a cache: one, or one per head and number."""
        site = self.site
        scale = wide(site, site.arg(self.scale))
        if self.kind == "PER_TENSOR":
            return site("reshape", scale, ())
        _, heads, _, width = site.extents(like)
        return site("reshape", scale, (1, heads, 1, width))


# ---- MultiHeadAttention -------------------------------------------------------------------------


def _multi_head(site: CompositionSite) -> Sequence[Expr]:
    """As :data:`qdqbridge.ops.attention.MULTI_HEAD_ATTENTION` says."""
    a = site.node.record(MultiHeadAttentionAttrs)
    past = (site.arg(6), site.arg(7)) if site.has(6) else ()
    return _attended(site, a, _multi_head_operands(site, a), past, mask=4, bias=5)


def _merged(site: CompositionSite) -> Sequence[Expr]:
    """As :data:`qdqbridge.ops.attention.MERGED_ATTENTION` says."""
    a = site.node.record(MergedAttentionAttrs)
    made = site("matmul", wide(site, site.arg(0)), wide(site, site.arg(1)))
    if site.has(2):
        made = site("add", made, wide(site, site.arg(2)))
    width = site.extents(made)[-1]
    if not isinstance(width, int):
        raise NoRow("the width of its weights is open")
    widths = a.qkv_hidden_sizes or (width // 3,) * 3
    parts = site.scope.emit(site.scope.op.split(made, [widths[0], widths[0] + widths[1]], axis=2))
    given = [site.scope.emit(site.scope.item(parts, index)) for index in range(3)]
    heads = [_heads_first(site, x, a.num_heads) for x in given]
    past: list[Expr] = []
    if site.has(4):
        both = site.scope.emit(site.scope.op.split(site.arg(4), 2, axis=0))
        each = [site.scope.emit(site.scope.item(both, index)) for index in range(2)]
        past = [site("squeeze", x, axis=[0]) for x in each]
    result, k, v = _attended(site, a.heads, heads, past, mask=3, bias=5)
    if len(site.node.outputs) < 2:
        return [result]
    return [result, site("concat", [site("expand_dims", x, 0) for x in (k, v)], axis=0)]


def _attended(
    site: CompositionSite, a: MultiHeadAttentionAttrs, given: Sequence[Expr],
    cached: Sequence[Expr], *, mask: int, bias: int,
) -> list[Expr]:  # fmt: skip
    """Returns the result, and keys and values with those of the past before them.

    Args:
        site: The node.
        a: Its attributes.
        given: Queries, keys and values by heads.
        cached: Keys and values of the past, if there is one.
        mask: The operand that hides keys.
        bias: The operand that is added to products.
    """
    q, k, v = given
    own = site.dtype(site.arg(0))
    if cached:
        olds: list[Expr] = []
        for stored, new in zip(cached, (k, v), strict=True):
            old = wide(site, stored)
            batch, heads, _, size = site.extents(new)
            for have, want in zip(site.extents(old), (batch, heads, None, size), strict=True):
                if want is not None:
                    site.scope.need_same(have, want)
            olds.append(site("reshape", old, (batch, heads, site.extents(old)[2], size)))
        k, v = (site("concat", [old, new], axis=2) for old, new in zip(olds, (k, v), strict=True))
    batch, _, length, size = site.extents(q)
    keys = site.extents(k)[2]
    past = site("subtract", site.scope.run_time_extent(k, 2, _INT),
                site.scope.run_time_extent(q, 2, _INT))  # fmt: skip
    past = site("broadcast_to", site("reshape", past, (1,)), (batch,))
    lines = _Lines(past, past, past)
    factor = a.scale or 1 / math.sqrt(size)
    added = _multi_head_bias(site, a, (batch, length, keys), mask, bias)

    def weigh(scores: Expr) -> Expr:
        scaled = site("multiply", scores, site.number(factor, scores))
        if added is not None:
            scaled = site("add", *site.scope.aligned([scaled, added]))
        if not a.unidirectional:
            return site("nn.softmax", scaled, axis=3)
        return _softmax(site, scaled, lines, lambda x, kind: x, causal=True)

    mixed = _heads_last(site, _products(site, q, k, v, weigh))
    return [site.cast(each, own) for each in (mixed, k, v)]


def _multi_head_operands(site: CompositionSite, a: MultiHeadAttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads, their biases added."""
    given = [wide(site, site.arg(index)) for index in range(3)]
    sizes = [site.extents(x)[-1] for x in given]
    biases: list[Expr | None] = [None] * 3
    if site.has(3):
        begin = 0
        bias = wide(site, site.arg(3))
        for index, width in enumerate(sizes):
            if not isinstance(width, int):
                raise NoRow("the width of an operand is open")
            biases[index] = site(
                "strided_slice", bias, axes=[0], begin=[begin], end=[begin + width]
            )
            begin += width
    batch, heads_of = site.extents(given[0])[0], list[Expr]()
    keys = site.extents(given[1])[2 if site.rank(given[1]) == 4 else 1]
    for x, bias, length in zip(given, biases, (None, keys, keys), strict=True):
        if site.rank(x) == 4:
            own, heads, count, size = site.extents(x)
            site.scope.need_same(own, batch)
            site.scope.need_same(count, keys)
            heads_of.append(site("reshape", x, (batch, heads, keys, size)))
            continue
        added = x if bias is None else site("add", x, bias)
        heads_of.append(_heads_first(site, added, a.num_heads, batch, length))
    return heads_of


def _multi_head_bias(
    site: CompositionSite, a: MultiHeadAttentionAttrs, shape: tuple[Any, Any, Any],
    mask_at: int, bias_at: int,
) -> Expr | None:  # fmt: skip
    """Returns what is added to the products: the bias, and a low number where a mask hides."""
    batch, length, keys = shape
    bias = wide(site, site.arg(bias_at)) if site.has(bias_at) else None
    if not site.has(mask_at):
        return bias
    mask = site.arg(mask_at)
    if site.rank(mask) == 1:
        counted = site("reshape", site.counted(keys), (1, keys))
        ends = site("reshape", site.cast(mask, _INT), (batch, 1))
        hidden = site("reshape", site("greater_equal", counted, ends), (batch, 1, 1, keys))
    else:
        rows = (batch, 1, 1, keys) if site.rank(mask) == 2 else (batch, 1, length, keys)
        hidden = site("equal", site("reshape", mask, rows), site.number(0, mask))
    low, none = (site.number(x, "float32") for x in (a.mask_filter_value, 0.0))
    added = site("where", hidden, low, none)
    return added if bias is None else site("add", *site.scope.aligned([bias, added]))


# ---- RotaryEmbedding ----------------------------------------------------------------------------


def _rotary(site: CompositionSite) -> Sequence[Expr]:
    """As :data:`qdqbridge.ops.attention.ROTARY_EMBEDDING` says."""
    a = site.node.record(RotaryEmbeddingAttrs)
    x, tables = site.arg(0), [site.arg(1), site.arg(2)]
    data = wide(site, x)
    data = data if site.rank(data) == 4 else _heads_first(site, data, a.num_heads)
    batch, _, length, _ = site.extents(data)
    steps = site("reshape", site.counted(length), (1, length))
    if not site.has(3):
        rows = site("reshape", site.counted(batch), (batch, 1))
        count = site.scope.run_time_extent(data, 2, _INT)
        places = site("add", site("multiply", rows, count), steps)
        tables = [site("reshape", t, (-1, site.extents(t)[-1])) for t in tables]
    elif site.rank(site.arg(3)) == 1:
        begin = site("reshape", site.cast(site.arg(3), _INT), (1, 1))
        places = site("broadcast_to", site("add", begin, steps), (batch, length))
    else:
        places = site("reshape", site.cast(site.arg(3), _INT), (batch, length))
    turned = _rotated(site, data, tables, places, interleaved=a.interleaved)
    result = turned if site.rank(x) == 4 else _heads_last(site, turned)
    return [site.cast(result, site.dtype(x))]


ATTENTION: Mapping[str, Composition] = {
    GROUP_QUERY_ATTENTION.name: _group_query,
    MULTI_HEAD_ATTENTION.name: _multi_head,
    MERGED_ATTENTION.name: _merged,
    ROTARY_EMBEDDING.name: _rotary,
}
"""By the row's name."""
