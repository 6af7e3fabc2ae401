"""Attention of several heads: the softmax where keys are seen as loops, products as TVM's.

Every length may be open: of the batch, of the queries, of the past.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.attention import (
    DOUBLE,
    MERGED_ATTENTION,
    MULTI_HEAD_ATTENTION,
    AttentionAttrs,
    MergedAttentionAttrs,
    MultiHeadAttentionAttrs,
)
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.broadcasting import equal, need_one_or
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    of_row,
    wide,
)
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import heads_first, heads_last

# ---- ONNX's own Attention: the softmax where keys are seen as loops, products as TVM's -----------


def attention(context: CompositionContext, a: AttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.attention.ATTENTION` says."""
    own = context.dtype(context.arg(0))
    q, k, v = _heads(context, a)
    k, v = (_behind(context, past, new) for past, new in ((4, k), (5, v)))
    size = context.extents(q)[-1]
    if not isinstance(size, int):
        raise NoRow("the size of its heads is open")
    queries, keys = (
        context("multiply", each, context.number(a.factor(size), each))
        for each in (wide(context, q), wide(context, k))
    )
    sight = _sight(context, a, q, k)
    shown: list[Expr] = []

    def bent(x: Expr, kind: str) -> Expr:
        if not a.softcap:
            return x
        cap = tirx.const(a.softcap, kind)
        return tirx.tanh(x / cap) * cap

    def weigh(scores: Expr) -> Expr:
        kind = context.dtype(scores)
        # The products are float32 at least, so that no other type is wider.
        exact = context.cast(scores, "float64") if a.softmax_precision == DOUBLE else scores
        weighed = context.cast(seen_softmax(context, exact, sight, bent), kind)
        mode = a.qk_matmul_output_mode
        if mode == 1 and a.softcap:
            cap = context.number(a.softcap, scores)
            scores = context("multiply", context("tanh", context("divide", scores, cap)), cap)
        elif mode == 2:
            scores = masked_products(context, scores, sight, bent)
        shown.append(weighed if mode == 3 else scores)
        return weighed

    mixed = products(context, queries, keys, wide(context, v), weigh)
    y = mixed if context.rank(context.arg(0)) == 4 else heads_last(context, mixed)
    given = (context.cast(y, own), k, v, context.cast(shown[0], own))
    return [given[place] for place in a.results]


def _heads(context: CompositionContext, a: AttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads, of one batch, the last two of one length."""
    given = [context.arg(index) for index in range(3)]
    batch, length = context.extents(given[0])[0], context.extents(given[1])[-2]
    counts = (a.q_num_heads, a.kv_num_heads, a.kv_num_heads)
    made: list[Expr] = []
    for x, count, wanted in zip(given, counts, (None, length, length), strict=True):
        if context.rank(x) == 3:
            made.append(heads_first(context, x, count, batch, wanted))
            continue
        own, heads, steps, size = context.extents(x)
        rows = steps if wanted is None else wanted
        context.emitter.need_same(own, batch)
        context.emitter.need_same(steps, rows)
        made.append(context("reshape", x, (batch, heads, rows, size)))
    return made


def _behind(context: CompositionContext, index: int, new: Expr) -> Expr:
    """Returns keys or values with those of the past before them."""
    if not context.has(index):
        return new
    past = context.arg(index)
    batch, heads, _, size = context.extents(new)
    for have, want in zip(context.extents(past), (batch, heads, None, size), strict=True):
        if want is not None:
            context.emitter.need_same(have, want)
    old = context("reshape", past, (batch, heads, context.extents(past)[2], size))
    return context("concat", [old, new], axis=2)


def fit_bias(context: CompositionContext, bias: Expr, queries: Expr) -> None:
    """Ends a run where what is added to products has other batches, heads or queries than they."""
    own, rows = context.extents(bias)[:-1], context.extents(queries)[:3]
    for have, want in zip(own, rows[len(rows) - len(own) :], strict=True):
        need_one_or(context.emitter, have, want)


def _sight(context: CompositionContext, a: AttentionAttrs, q: Expr, k: Expr) -> Sight:
    batch = context.extents(q)[0]
    count = context.emitter.run_time_extent(k, 2, _INT)
    if context.has(6):
        held = context("reshape", context.cast(context.arg(6), _INT), (batch,))
        begin = context("subtract", held, context.emitter.run_time_extent(q, 2, _INT))
    else:
        held = context("broadcast_to", context("reshape", count, (1,)), (batch,))
        before = context.number(0, _INT)
        if context.has(4):
            before = context.emitter.run_time_extent(context.arg(4), 2, _INT)
        begin = context("broadcast_to", context("reshape", before, (1,)), (batch,))
    mask = None
    if context.has(3):
        extents = context.extents(context.arg(3))
        fit_bias(context, context.arg(3), q)
        context.emitter.need_at_most(extents[-1], context.extents(k)[2])
        mask = context("reshape", context.arg(3), (1,) * (4 - len(extents)) + tuple(extents))
    return Sight(
        Lines(begin, begin, begin), causal=a.is_causal, window=a.left_window_size + 1 or -1,
        ahead=a.right_window_size, bias=mask, short=True, held=held,
    )  # fmt: skip


_INT = "int64"


@dataclass(frozen=True, slots=True)
class Lines:
    """Where keys and queries stand, per sequence; int64 vectors of the batch.

    Attributes:
        starts: The position of the first query.
        before: How many rows of the cache hold something before this step.
        ends: The position behind the last query.
    """

    starts: Expr
    before: Expr
    ends: Expr


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees, and what is added to its products.

    Attributes:
        lines: Where queries and keys stand; rows behind the last key hold nothing.
        causal: A query sees no key behind it.
        window: How many keys it sees, its own the last; -1: all.
        ahead: How many behind its own; -1: all.
        bias: Added to the products, or a mask of truth values; its columns are positions, and
            axes of one number count for all.
        short: Positions behind the bias's last column are hidden; else they have that column's.
        held: How many rows of keys hold something; None: those before this step, and the step's.
        last_sees_all: The last query sees keys behind it too.
        padded: Queries behind the last row that holds something see what the one there sees.
    """

    lines: Lines
    causal: bool
    window: int = -1
    ahead: int = -1
    bias: Expr | None = None
    short: bool = False
    held: Expr | None = None
    last_sees_all: bool = False
    padded: bool = False

    def operands(self) -> list[Expr]:
        """Returns what :meth:`of` takes."""
        more = [each for each in (self.held, self.bias) if each is not None]
        return [self.lines.starts, self.lines.before, *more]

    def of(
        self, x: te.Tensor, tensors: Sequence[te.Tensor], bent: Callable[[Expr, str], Expr]
    ) -> tuple[Callable[..., Expr], Callable[..., Expr]]:
        """Returns what tells whether a key is seen, and what gives its product with a query.

        Args:
            x: Products: (batch, heads, queries, keys).
            tensors: Those of the operands.
            bent: What is done to a product first.
        """
        starts, before, *rest = tensors
        held = rest.pop(0) if self.held is not None else None
        added = rest.pop(0) if self.bias is not None else None
        kind, length = str(x.dtype), x.shape[2]

        def entry(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            assert added is not None
            column = tirx.max(tirx.min(starts(b) - before(b) + t, added.shape[3] - 1), 0)
            # One for all, or one each. With remainders in the place of the minima, what LLVM 22
            # makes vectors of loads from an address that is none, where the extents are open.
            places = zip((b, h, s), added.shape[:3], strict=True)
            return added(*(tirx.min(i, extent - 1) for i, extent in places), column)

        def seen(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            query, at = starts(b) + s, starts(b) - before(b) + t
            if self.padded and held is not None:
                query = tirx.min(query, starts(b) - before(b) + held(b) - 1)
            own = t < (before(b) + length if held is None else held(b))
            if self.causal:
                before_it = at <= query
                if self.last_sees_all:
                    before_it = tirx.any(before_it, s == length - 1)
                own = tirx.all(own, before_it)
            if self.window > 0:
                own = tirx.all(own, at > query - self.window)
            if self.ahead >= 0:
                own = tirx.all(own, at <= query + self.ahead)
            if added is not None and self.short:
                own = tirx.all(own, at < added.shape[3])
            if added is not None and added.dtype == "bool":
                own = tirx.all(own, entry(b, h, s, t))
            return own

        def product(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            value = bent(x(b, h, s, t), kind)
            if added is None or added.dtype == "bool":
                return value
            return value + entry(b, h, s, t).astype(kind)

        return seen, product


def masked_products(
    context: CompositionContext, scores: Expr, sight: Sight, bent: Callable[[Expr, str], Expr]
) -> Expr:
    """Returns what the softmax is of: products, and minus infinity where a key is hidden."""

    def masked(x: te.Tensor, *more: te.Tensor) -> te.Tensor:
        seen, product = sight.of(x, more, bent)
        least = tirx.const(-math.inf, str(x.dtype))

        def element(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            return tirx.if_then_else(seen(b, h, s, t), product(b, h, s, t), least)

        return stage(x.shape, element, name="masked")

    return loops(context, "attention_products", masked, scores, *sight.operands())


def seen_softmax(
    context: CompositionContext,
    scores: Expr,
    sight: Sight,
    bent: Callable[[Expr, str], Expr],
    sink: Expr | None = None,
) -> Expr:
    """Returns the softmax over the keys that each query sees.

    Args:
        context: Where.
        scores: (batch, heads, queries, keys).
        sight: Which keys a query sees.
        bent: What is done to a product first.
        sink: One number per head that takes part and is dropped.
    """

    def softmax(x: te.Tensor, *more: te.Tensor) -> te.Tensor:
        kind, rest = str(x.dtype), list(more)
        sinks = rest.pop() if sink is not None else None
        seen, product = sight.of(x, rest, bent)
        # Not minus infinity: of a query that sees nothing, the difference to the greatest would be
        # NaN.
        least = tirx.const(float(np.finfo(kind).min), kind)

        def masked(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            return tirx.if_then_else(seen(b, h, s, t), product(b, h, s, t), least)

        bounded = stage(x.shape, masked, name="seen")
        rows, keys = x.shape[:3], te.reduce_axis((0, x.shape[3]), "t")
        top: Any = te.compute(
            rows, lambda b, h, s: te.max(bounded(b, h, s, keys), axis=keys), name="top"
        )

        def greatest(b: Expr, h: Expr, s: Expr) -> Expr:
            return top(b, h, s) if sinks is None else tirx.max(top(b, h, s), sinks(h).astype(kind))

        def raised(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
            power = tirx.exp(bounded(b, h, s, t) - greatest(b, h, s))
            # Where all keys are hidden, the lowest number less itself is 0, and exp of that 1: it
            # is hidden again.
            return tirx.if_then_else(seen(b, h, s, t), power, tirx.const(0.0, kind))

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

    given = sight.operands() if sink is None else [*sight.operands(), sink]
    return loops(context, "attention_weights", softmax, scores, *given)


def products(context: CompositionContext, q: Expr, k: Expr, v: Expr,
              weigh: Callable[[Expr], Expr]) -> Expr:  # fmt: skip
    """Returns ``weigh(q @ k') @ v``; each head of the keys serves as many of the queries."""
    batch, heads, length, size = context.extents(q)
    shared = context.extents(k)[1]
    group = heads // shared
    wide = context.extents(v)[-1]
    # Queries of one head of keys are rows of one product, so that keys are read once and never
    # repeated.
    together = context("reshape", q, (batch, shared, group * length, size))
    scores = context("matmul", together, context("permute_dims", k, [0, 1, 3, 2]))
    keys = context.extents(scores)[-1]
    weights = weigh(context("reshape", scores, (batch, heads, length, keys)))
    mixed = context("matmul", context("reshape", weights, (batch, shared, group * length, keys)), v)
    return context("reshape", mixed, (batch, heads, length, wide))


def _multi_head(context: CompositionContext, a: MultiHeadAttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.attention.MULTI_HEAD_ATTENTION` says."""
    past = (context.arg(6), context.arg(7)) if context.has(6) else ()
    return _attended(context, a, _multi_head_operands(context, a), past, mask=4, bias=5)


def _merged(context: CompositionContext, a: MergedAttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.attention.MERGED_ATTENTION` says."""
    made = context("matmul", wide(context, context.arg(0)), wide(context, context.arg(1)))
    if context.has(2):
        made = context("add", made, wide(context, context.arg(2)))
    return _of_parts(context, a, made, mask=3, past=4, bias=5)


def _of_parts(
    context: CompositionContext, a: MergedAttentionAttrs, made: Expr, *, mask: int, past: int,
    bias: int | None = None,
) -> Sequence[Expr]:  # fmt: skip
    """Returns the attention of queries, keys and values that lie side by side, and the new past.

    Args:
        context: The node.
        a: Its attributes.
        made: The three.
        mask: The operand that hides keys.
        past: The operand that has keys and values of the past.
        bias: The operand that is added to products.
    """
    width = context.extents(made)[-1]
    if not isinstance(width, int):
        raise NoRow("the width of its weights is open")
    widths = a.qkv_hidden_sizes or (width // 3,) * 3
    parts = context.emitter.emit(
        context.emitter.op.split(made, [widths[0], widths[0] + widths[1]], axis=2)
    )
    given = [context.emitter.emit(context.emitter.item(parts, index)) for index in range(3)]
    heads = [heads_first(context, x, a.num_heads) for x in given]
    olds: list[Expr] = []
    if (
        context.has(past) and context.extents(context.arg(past))[3] != 0
    ):  # TVM's reshape copies for a 0
        both = context.emitter.emit(context.emitter.op.split(context.arg(past), 2, axis=0))
        each = [context.emitter.emit(context.emitter.item(both, index)) for index in range(2)]
        olds = [context("squeeze", x, axis=[0]) for x in each]
    shape = context.extents(context.arg(mask)) if context.has(mask) else []
    hides = bool(shape) and not (len(shape) == 2 and shape[1] == 1)
    result, k, v = _attended(context, a.heads, heads, olds, mask=mask if hides else None, bias=bias)
    if len(context.node.outputs) < 2:
        return [result]
    return [result, context("concat", [context("expand_dims", x, 0) for x in (k, v)], axis=0)]


def _compose_qattention(context: CompositionContext) -> Sequence[Expr]:
    """QAttention: data and weights are integers, whose product is scaled; sums of int32.

    Source: onnxruntime docs/ContribOperators.md, attention_quant.cc.
    """
    if context.onnx.int_("do_rotary", 0) or context.onnx.int_("past_present_share_buffer", 0):
        raise NoRow("it turns its queries, or shares a buffer")
    batch = context.extents(context.arg(0))[0]
    if context.has(5) and context.rank(context.arg(5)) == 1 and not equal(
        context.extents(context.arg(5))[0], batch
    ):  # fmt: skip
        raise NoRow("its mask tells where sequences begin and end, or may")
    x, weights = (context.cast(context.arg(index), "int32") for index in (0, 1))
    if context.has(6):
        x = context("subtract", x, context("reshape", context.cast(context.arg(6), "int32"), ()))
    if context.has(7):
        weights = context("subtract", weights, context.cast(context.arg(7), "int32"))
    total = context.cast(context("matmul", x, weights, out_dtype="int32"), "float32")
    scale = context("multiply", context("reshape", context.arg(3), ()), context.arg(4))
    made = context("add", context("multiply", total, scale), context.arg(2))
    attributes = MergedAttentionAttrs(
        context.onnx.int_("num_heads", 0), (), context.onnx.float_("scale", 0.0),
        context.onnx.float_("mask_filter_value", -10000.0),
        bool(context.onnx.int_("unidirectional", 0)),
    )  # fmt: skip
    return _of_parts(context, attributes, made, mask=5, past=8)


def _attended(
    context: CompositionContext, a: MultiHeadAttentionAttrs, given: Sequence[Expr],
    cached: Sequence[Expr], *, mask: int | None, bias: int | None,
) -> list[Expr]:  # fmt: skip
    """Returns the result, and keys and values with those of the past before them.

    Args:
        context: The node.
        a: Its attributes.
        given: Queries, keys and values by heads.
        cached: Keys and values of the past, if there is one.
        mask: The operand that hides keys, if any does.
        bias: The operand that is added to products, if any is.
    """
    q, k, v = given
    own = str(context.result_dtype())
    if cached:
        olds: list[Expr] = []
        for stored, new in zip(cached, (k, v), strict=True):
            old = wide(context, stored)
            batch, heads, _, size = context.extents(new)
            for have, want in zip(context.extents(old), (batch, heads, None, size), strict=True):
                if want is not None:
                    context.emitter.need_same(have, want)
            olds.append(context("reshape", old, (batch, heads, context.extents(old)[2], size)))
        k, v = (
            context("concat", [old, new], axis=2) for old, new in zip(olds, (k, v), strict=True)
        )
    batch, _, length, size = context.extents(q)
    keys = context.extents(k)[2]
    old = context.emitter.run_time_extent(cached[0], 2, _INT) if cached else context.number(0, _INT)
    past, held = (
        context("broadcast_to", context("reshape", rows, (1,)), (batch,))
        for rows in (old, context.emitter.run_time_extent(k, 2, _INT))
    )
    sight = Sight(Lines(past, past, past), causal=True, held=held, last_sees_all=True)
    factor = a.scale or 1 / math.sqrt(size)
    added = _multi_head_bias(context, a, (batch, length, keys), mask, bias)

    def weigh(scores: Expr) -> Expr:
        scaled = context("multiply", scores, context.number(factor, scores))
        if added is not None:
            fitting = context.emitter.fitted(added, context.extents(scaled))
            scaled = context("add", *context.emitter.aligned([scaled, fitting]))
        if not a.unidirectional:
            return context("nn.softmax", scaled, axis=3)
        return seen_softmax(context, scaled, sight, lambda x, kind: x)

    mixed = heads_last(context, products(context, q, k, v, weigh))
    return [context.cast(each, own) for each in (mixed, k, v)]


def _multi_head_operands(context: CompositionContext, a: MultiHeadAttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads; to those that are not yet biases are added."""
    given = [wide(context, context.arg(index)) for index in range(3)]
    apart = [context.rank(x) == 4 for x in given]
    biases: list[Expr | None] = [None] * 3
    if context.has(3):
        begin = 0
        bias = wide(context, context.arg(3))
        for index in range(apart.count(False)):  # what is by heads already has its biases
            width = context.extents(given[index])[-1]
            if not isinstance(width, int):
                raise NoRow("the width of an operand is open")
            biases[index] = context(
                "strided_slice", bias, axes=[0], begin=[begin], end=[begin + width]
            )
            begin += width
    batch, heads_of = context.extents(given[0])[0], list[Expr]()
    keys = context.extents(given[1])[2 if context.rank(given[1]) == 4 else 1]
    for x, bias, length in zip(given, biases, (None, keys, keys), strict=True):
        if context.rank(x) == 4:
            own, heads, count, size = context.extents(x)
            context.emitter.need_same(own, batch)
            context.emitter.need_same(count, keys)
            heads_of.append(context("reshape", x, (batch, heads, keys, size)))
            continue
        added = x if bias is None else context("add", x, bias)
        heads_of.append(heads_first(context, added, a.num_heads, batch, length))
    return heads_of


def _multi_head_bias(
    context: CompositionContext, a: MultiHeadAttentionAttrs, shape: tuple[Any, Any, Any],
    mask_at: int | None, bias_at: int | None,
) -> Expr | None:  # fmt: skip
    """Returns what is added to the products: the bias, and a low number where a mask hides."""
    batch, length, keys = shape
    bias = (
        wide(context, context.arg(bias_at))
        if bias_at is not None and context.has(bias_at)
        else None
    )
    if mask_at is None or not context.has(mask_at):
        return bias
    mask = context.arg(mask_at)
    if context.rank(mask) == 1:
        counted = context("reshape", context.counted(keys), (1, keys))
        ends = context("reshape", context.cast(mask, _INT), (batch, 1))
        hidden = context("reshape", context("greater_equal", counted, ends), (batch, 1, 1, keys))
    else:
        rows = (batch, 1, 1, keys) if context.rank(mask) == 2 else (batch, 1, length, keys)
        hidden = context("equal", context("reshape", mask, rows), context.number(0, mask))
    low, none = (context.number(x, "float32") for x in (a.mask_filter_value, 0.0))
    added = context("where", hidden, low, none)
    return added if bias is None else context("add", *context.emitter.aligned([bias, added]))


MULTI_HEAD: Mapping[str, Composition] = dict((
    of_row(MULTI_HEAD_ATTENTION, _multi_head), of_row(MERGED_ATTENTION, _merged),
))  # fmt: skip
"""By the row's name."""

QUANTIZED_ATTENTION: Mapping[str, Composition] = {"QAttention": _compose_qattention}
"""By the operator's name in the domain com.microsoft."""
