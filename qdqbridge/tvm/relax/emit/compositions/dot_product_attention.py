"""ONNX's own Attention: the softmax where keys are seen as loops, products as TVM's."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.ops.dot_product_attention import DOUBLE, AttentionAttrs
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.attention import (
    Lines,
    Sight,
    masked_products,
    products,
    seen_softmax,
)
from qdqbridge.tvm.relax.emit.compositions.context import CompositionContext, wide
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import heads_first, heads_last

_INT = "int64"


def attention(context: CompositionContext, a: AttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.dot_product_attention.ATTENTION` says."""
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
        mask = context("reshape", context.arg(3), (1,) * (4 - len(extents)) + tuple(extents))
    return Sight(
        Lines(begin, begin, begin), causal=a.is_causal, window=a.left_window_size + 1 or -1,
        ahead=a.right_window_size, bias=mask, short=True, held=held,
    )  # fmt: skip
