"""ONNX's own Attention: the softmax where keys are seen as loops, products as TVM's."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.ops.dot_product_attention import DOUBLE, AttentionAttrs
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.attention import (
    Lines,
    Sight,
    masked_products,
    products,
    seen_softmax,
)
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import heads_first, heads_last
from qdqbridge.tvm.relax.emit.compositions.site import CompositionSite, wide

_INT = "int64"


def attention(site: CompositionSite, a: AttentionAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.dot_product_attention.ATTENTION` says."""
    own = site.dtype(site.arg(0))
    q, k, v = _heads(site, a)
    k, v = (_behind(site, past, new) for past, new in ((4, k), (5, v)))
    size = site.extents(q)[-1]
    if not isinstance(size, int):
        raise NoRow("the size of its heads is open")
    queries, keys = (
        site("multiply", each, site.number(a.factor(size), each))
        for each in (wide(site, q), wide(site, k))
    )
    sight = _sight(site, a, q, k)
    shown: list[Expr] = []

    def bent(x: Expr, kind: str) -> Expr:
        if not a.softcap:
            return x
        cap = tirx.const(a.softcap, kind)
        return tirx.tanh(x / cap) * cap

    def weigh(scores: Expr) -> Expr:
        kind = site.dtype(scores)
        exact = site.cast(scores, "float64") if a.softmax_precision == DOUBLE else scores
        weighed = site.cast(seen_softmax(site, exact, sight, bent), kind)
        mode = a.qk_matmul_output_mode
        if mode == 1 and a.softcap:
            cap = site.number(a.softcap, scores)
            scores = site("multiply", site("tanh", site("divide", scores, cap)), cap)
        elif mode == 2:
            scores = masked_products(site, scores, sight, bent)
        shown.append(weighed if mode == 3 else scores)
        return weighed

    mixed = products(site, queries, keys, wide(site, v), weigh)
    y = mixed if site.rank(site.arg(0)) == 4 else heads_last(site, mixed)
    given = (site.cast(y, own), k, v, site.cast(shown[0], own))
    return [given[place] for place in a.results]


def _heads(site: CompositionSite, a: AttentionAttrs) -> list[Expr]:
    """Returns queries, keys and values by heads, of one batch, the last two of one length."""
    given = [site.arg(index) for index in range(3)]
    batch, length = site.extents(given[0])[0], site.extents(given[1])[-2]
    counts = (a.q_num_heads, a.kv_num_heads, a.kv_num_heads)
    made: list[Expr] = []
    for x, count, wanted in zip(given, counts, (None, length, length), strict=True):
        if site.rank(x) == 3:
            made.append(heads_first(site, x, count, batch, wanted))
            continue
        own, heads, steps, size = site.extents(x)
        rows = steps if wanted is None else wanted
        site.scope.need_same(own, batch)
        site.scope.need_same(steps, rows)
        made.append(site("reshape", x, (batch, heads, rows, size)))
    return made


def _behind(site: CompositionSite, index: int, new: Expr) -> Expr:
    """Returns keys or values with those of the past before them."""
    if not site.has(index):
        return new
    past = site.arg(index)
    batch, heads, _, size = site.extents(new)
    for have, want in zip(site.extents(past), (batch, heads, None, size), strict=True):
        if want is not None:
            site.scope.need_same(have, want)
    old = site("reshape", past, (batch, heads, site.extents(past)[2], size))
    return site("concat", [old, new], axis=2)


def _sight(site: CompositionSite, a: AttentionAttrs, q: Expr, k: Expr) -> Sight:
    batch = site.extents(q)[0]
    count = site.scope.run_time_extent(k, 2, _INT)
    if site.has(6):
        held = site("reshape", site.cast(site.arg(6), _INT), (batch,))
        begin = site("subtract", held, site.scope.run_time_extent(q, 2, _INT))
    else:
        held = site("broadcast_to", site("reshape", count, (1,)), (batch,))
        before = site.number(0, _INT)
        if site.has(4):
            before = site.scope.run_time_extent(site.arg(4), 2, _INT)
        begin = site("broadcast_to", site("reshape", before, (1,)), (batch,))
    mask = None
    if site.has(3):
        extents = site.extents(site.arg(3))
        mask = site("reshape", site.arg(3), (1,) * (4 - len(extents)) + tuple(extents))
    return Sight(
        Lines(begin, begin, begin), causal=a.is_causal, window=a.left_window_size + 1 or -1,
        ahead=a.right_window_size, bias=mask, short=True, held=held,
    )  # fmt: skip
