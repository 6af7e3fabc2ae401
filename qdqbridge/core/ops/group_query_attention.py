"""Attention of language models: heads that share keys, and a cache of keys and values.

The operator is onnxruntime's (``com.microsoft``), which its model builder writes. It is attention
(:mod:`qdqbridge.core.ops.attention`) of keys and values that begin with those of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.attention import (
    counted,
    heads_first,
    heads_last,
    rotated,
    same_heads,
    some_results,
    weights,
    wide,
)
from qdqbridge.core.ops.stored import broadcast_into, optional


@dataclass(frozen=True, slots=True)
class GroupQueryAttentionAttrs(Attributes):
    """GroupQueryAttention; a scale of 0 is ``1 / sqrt(head size)``.

    Attributes:
        num_heads: Heads of the queries.
        kv_num_heads: Heads of keys and values; each serves as many queries.
        scale: What products are multiplied by.
        softcap: Products are bent into ``(-softcap, softcap)`` by tanh; 0: they are not.
        do_rotary: Queries and keys are turned by their places first.
        rotary_interleaved: The two numbers of a pair stand side by side.
        local_window_size: How many keys a query sees, itself included; -1: all before it.
        smooth_softmax: 1 is added to the exponentials' sum.
        causal: A query sees no key behind it.
        sliding_window_cache: The cache holds the last keys only.
        k_quant_type: How keys in the cache are quantized: NONE, PER_TENSOR or PER_CHANNEL.
        v_quant_type: The same of values.
        kv_cache_bit_width: The bits of a number in such a cache; 0 where there is none.
    """

    num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    softcap: float = 0.0
    do_rotary: bool = False
    rotary_interleaved: bool = False
    local_window_size: int = -1
    smooth_softmax: bool = False
    causal: bool = True
    sliding_window_cache: bool = False
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"
    kv_cache_bit_width: int = 0


def _group_query(a: GroupQueryAttentionAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    own, lengths, given = operands[0], operands[5], operands[6]
    assert own is not None and lengths is not None and given is not None
    q, k, v = _group_operands(a, operands)
    length, total = q.shape[2], int(given.reshape(()))
    # onnxruntime's operand has the place of the last key of each sequence, not how many there are.
    ends = lengths.reshape(-1).astype(np.int64) + 1
    # As many tokens as the longest sequence has: a prompt, which begins at the first place.
    first = length == total and not a.sliding_window_cache
    starts = np.zeros_like(ends) if first else np.maximum(ends - length, 0)
    if a.do_rotary:
        q, k = _turned(a, operands, q, k, starts)
    keys, kept_k, at = _cached(
        a, _Past(operands[3], optional(operands, 12), a.k_quant_type), k, starts, ends, total
    )
    values, kept_v, _ = _cached(
        a, _Past(operands[4], optional(operands, 13), a.v_quant_type), v, starts, ends, total
    )
    group = a.num_heads // a.kv_num_heads
    keys, values = (np.repeat(x.astype(q.dtype), group, axis=1) for x in (keys, values))
    scores = (q @ keys.swapaxes(-1, -2)) * q.dtype.type(a.scale or 1 / math.sqrt(q.shape[3]))
    if a.softcap:
        scores = np.tanh(scores / q.dtype.type(a.softcap)) * q.dtype.type(a.softcap)
    bias = optional(operands, 10)
    if bias is not None:
        # A bias is for places, and rows of the cache need not lie in their order.
        columns = np.clip(at, 0, bias.shape[-1] - 1)
        each = np.broadcast_to(bias, (len(at), *bias.shape[1:])).astype(scores.dtype)
        added = np.stack([x[..., c] for x, c in zip(each, columns, strict=True)])
        scores = scores + broadcast_into(added, scores.shape)
    sink = optional(operands, 11)
    if sink is None and a.smooth_softmax:
        sink = np.zeros(a.num_heads, scores.dtype)
    result = heads_last(weights(scores, _seen(a, starts, length, at, ends), sink) @ values)
    return result.astype(own.dtype), kept_k, kept_v


def _turned(
    a: GroupQueryAttentionAttrs, operands: Operands, q: Array, k: Array, starts: Array
) -> tuple[Array, Array]:
    """Returns queries and new keys turned by their places; a first prompt begins at one place."""
    cosine, sine, own = (optional(operands, index) for index in (7, 8, 9))
    total = operands[6]
    assert cosine is not None and sine is not None and total is not None
    steps = counted(q.shape[2])
    places: Array = starts[:, None] + steps
    if own is not None:
        first = q.shape[2] == int(total.reshape(()))
        places = own.reshape(-1)[:1, None] + steps if first else own
    places = np.broadcast_to(places, (len(starts), len(steps)))
    beyond = places[(places < 0) | (places >= len(cosine))]
    if beyond.size:
        raise IndexError(f"its tables have {len(cosine)} rows, and none for the place {beyond[0]}")
    turned = (rotated(x, cosine, sine, places, interleaved=a.rotary_interleaved) for x in (q, k))
    return next(turned), next(turned)


def _seen(a: GroupQueryAttentionAttrs, starts: Array, length: int, at: Array, ends: Array) -> Array:
    """Returns which rows of the cache each query sees; the padding of a prompt as its end does."""
    keys, last = at[:, None, None, :], ends[:, None, None, None] - 1
    queries = np.minimum((starts[:, None] + counted(length))[:, None, :, None], last)
    seen: Array = np.logical_and(keys >= 0, keys <= last)
    if a.causal:
        seen = np.logical_and(seen, keys <= queries)
    if a.local_window_size > 0:
        seen = np.logical_and(seen, keys > queries - a.local_window_size)
    return seen


def _group_operands(a: GroupQueryAttentionAttrs, operands: Operands) -> tuple[Array, Array, Array]:
    """Returns queries, keys and values by heads; they may lie side by side in one operand."""
    own, key, value = operands[:3]
    assert own is not None
    if key is None or value is None:
        size = own.shape[-1] // (a.num_heads + 2 * a.kv_num_heads)
        ends = [a.num_heads * size, (a.num_heads + a.kv_num_heads) * size]
        own, key, value = np.split(own, ends, axis=-1)
    counts = (a.num_heads, a.kv_num_heads, a.kv_num_heads)
    q, k, v = (
        heads_first(wide(x), count) for x, count in zip((own, key, value), counts, strict=True)
    )
    return q, k, v


@dataclass(frozen=True, slots=True)
class _Past:
    """Keys or values of the cache.

    Attributes:
        stored: As they lie there; None where there is no cache.
        scale: Of one that is quantized.
        kind: How it is quantized.
    """

    stored: Array | None
    scale: Array | None
    kind: str


def resident(ends: Array, capacity: int, window: int) -> Array:
    """Returns how many of the last positions a cache of a window keeps after ``ends`` of them."""
    # A full cache is moved down to its window, so that it has room for as many more.
    step = capacity - window + 1
    more = -(-np.maximum(ends - capacity, 0) // step)
    return ends - step * more


def _cached(
    a: GroupQueryAttentionAttrs, past: _Past, new: Array, starts: Array, ends: Array, total: int
) -> tuple[Array, Array, Array]:
    """Returns what queries see, the new cache, and the position of each row that they see.

    Rows that hold nothing have a position below 0.
    """
    stored = _quantize_kv_rows(a, past, new)
    batch, heads, length, size = stored.shape
    old = np.zeros((batch, heads, 0, size), stored.dtype) if past.stored is None else past.stored
    capacity = old.shape[2]
    room = capacity + length if a.sliding_window_cache else max(total, capacity)
    rows = np.zeros((batch, heads, room, size), stored.dtype)
    at = np.full((batch, room), -1, np.int64)
    kept = np.zeros((batch, heads, capacity, size), stored.dtype)
    for b, (start, end) in enumerate(zip(starts, ends, strict=True)):
        before = int(start)
        if a.sliding_window_cache:
            before = int(resident(start, capacity, a.local_window_size))
        rows[b, :, :before] = old[b, :, :before]
        count = min(length, room - before)
        rows[b, :, before : before + count] = stored[b, :, :count]
        at[b, : before + count] = counted(before + count) + (start - before)
        if a.sliding_window_cache:
            left = int(resident(end, capacity, a.local_window_size))
            kept[b, :, :left] = rows[b, :, before + count - left : before + count]
    return _dequantize_kv_cache(a, past, rows), kept if a.sliding_window_cache else rows, at


def _quantize_kv_rows(a: GroupQueryAttentionAttrs, past: _Past, new: Array) -> Array:
    """Returns new rows as the cache stores them."""
    if past.kind == "NONE" or past.scale is None:
        kind = new.dtype if past.stored is None else past.stored.dtype
        return new.astype(kind)
    most = 127 if a.kv_cache_bit_width != 4 else 7
    codes = np.clip(
        np.rint(new / _broadcast_kv_scale(past.scale, new.shape)), -most - 1, most
    ).astype(np.int8)
    if a.kv_cache_bit_width != 4:
        return codes
    # Stored without a sign, the first of two in the low bits.
    pairs = (codes + 8).astype(np.uint8).reshape(*codes.shape[:-1], -1, 2)
    return (pairs[..., 0] | (pairs[..., 1] << 4)).astype(np.uint8)


def _dequantize_kv_cache(a: GroupQueryAttentionAttrs, past: _Past, rows: Array) -> Array:
    if past.kind == "NONE" or past.scale is None:
        return wide(rows)
    if a.kv_cache_bit_width == 4:
        halves = np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)
        rows = halves.astype(np.int8) - np.int8(8)
    return rows.astype(np.float32) * _broadcast_kv_scale(past.scale, rows.shape)


def _broadcast_kv_scale(scale: Array, shape: tuple[int, ...]) -> Array:
    """Returns scales that broadcast to a cache: one, or one per head and number."""
    if scale.size == 1:
        return scale.astype(np.float32).reshape(())
    return scale.astype(np.float32).reshape(1, shape[1], 1, shape[3])


def _check_group(node: Node, a: GroupQueryAttentionAttrs) -> Iterator[str]:
    if a.num_heads < 1 or a.kv_num_heads < 1 or a.num_heads % a.kv_num_heads:
        yield f"{a.num_heads} heads do not divide into {a.kv_num_heads}"
    if len(node.inputs) < 7 or node.inputs[5] is None or node.inputs[6] is None:
        yield "it needs the lengths of the sequences, and the greatest"
    if (node.optional(1) is None) != (node.optional(2) is None):
        yield "keys and values are given both, or neither"
    if (node.optional(3) is None) != (node.optional(4) is None):
        yield "the past has keys and values, or neither"
    if a.do_rotary and (node.optional(7) is None or node.optional(8) is None):
        yield "it has no tables to turn by"
    if a.sliding_window_cache and (a.local_window_size < 1 or node.optional(3) is None):
        yield "its cache holds a window, and it has none"
    yield from some_results(node, 3)
    for kind in (a.k_quant_type, a.v_quant_type):
        if kind not in ("NONE", "PER_TENSOR", "PER_CHANNEL"):
            yield f"a cache is quantized {kind}"
    yield from same_heads(node, 3, a.kv_num_heads)


GROUP_QUERY_ATTENTION = Row(
    name="GroupQueryAttention",
    flow=Flow.FLOAT,
    apart=True,
    attributes=GroupQueryAttentionAttrs,
    compute=_group_query,
    check=_check_group,
    numerics="p = q @ k' * scale, bent by softcap, plus bias; y = softmax over the keys that a "
    "query sees (its past, its window, a sink) @ v. Keys and values are the cache's, then the new "
    "ones; the padding of a prompt sees what its end sees, as in onnxruntime; a quantized cache is "
    "sat(rint(x / s)); a place without a row in the tables is an error. Sums in float32 in "
    "NumPy's order. Against onnxruntime 1.32 on 1,100 random "
    "nodes: at most 3e-6 off, a quantized cache equal; its kernels differ in the padding of a "
    "prompt where there is a window. What a file asks of the GPU alone (norms of "
    "heads, lengths of queries, the products) is carried.",
)  # fmt: skip


# ---- Attention over blocks of keys, and a cache of keys and values (Phi-3 small) -----------------
# The operator is onnxruntime's (``com.microsoft``): GroupQueryAttention in which a query sees the
# blocks of keys that a mask names. Heads have the layouts of the mask in turn.


@dataclass(frozen=True, slots=True)
class SparseAttentionAttrs(Attributes):
    """SparseAttention; a scale of 0 is ``1 / sqrt(head size)``.

    Attributes:
        num_heads: Heads of the queries.
        kv_num_heads: Heads of keys and values; each serves as many queries.
        sparse_block_size: How many keys, and queries, a block has.
        scale: What products are multiplied by.
        do_rotary: Queries and keys are turned by their places first.
        rotary_interleaved: The two numbers of a pair stand side by side.
    """

    num_heads: int
    kv_num_heads: int
    sparse_block_size: int
    scale: float = 0.0
    do_rotary: bool = False
    rotary_interleaved: bool = False

    @property
    def grouped(self) -> GroupQueryAttentionAttrs:
        """The same without blocks."""
        return GroupQueryAttentionAttrs(
            self.num_heads, self.kv_num_heads, self.scale,
            do_rotary=self.do_rotary, rotary_interleaved=self.rotary_interleaved,
        )  # fmt: skip


def seen_blocks(rows: Array, columns: Array) -> Array:
    """Returns which blocks of keys the queries of a block see: (layouts, blocks, blocks).

    Args:
        rows: Where the columns of each row begin, and those of the last one end; per layout.
        columns: Of the blocks that are seen; padded where layouts have different numbers.
    """
    layouts, count = rows.shape[0], rows.shape[1] - 1
    seen = np.zeros((layouts, count, count), np.bool_)
    for layout, (ends, found) in enumerate(zip(rows, columns, strict=True)):
        for row in range(count):
            seen[layout, row, found[ends[row] : ends[row + 1]]] = True
    return seen


def _sparse(a: SparseAttentionAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    own, old, values = operands[0], operands[3], operands[4]
    assert own is not None and old is not None and values is not None
    rows, columns, total, lengths = (x for x in operands[5:9] if x is not None)
    length, most = own.shape[1], int(total.reshape(()))
    ends = lengths.reshape(-1).astype(np.int64)
    starts = np.zeros_like(ends) if length == most else np.maximum(ends - length, 0)
    if most > old.shape[2]:
        raise IndexError(f"its cache has {old.shape[2]} rows, and {most} are asked of it")
    seen, size = seen_blocks(rows, columns), a.sparse_block_size
    queries = np.minimum((starts[:, None] + counted(length)) // size, seen.shape[1] - 1)
    keys = np.minimum(counted(old.shape[2]) // size, seen.shape[2] - 1)
    # Heads have the layouts in turn: the first, the second, and so on, then the first again.
    layouts = np.arange(a.num_heads) % seen.shape[0]
    own_blocks = seen[layouts[None, :, None, None], queries[:, None, :, None], keys]
    bias = np.where(own_blocks, np.float32(0), np.float32(-np.inf))
    given = (*operands[:5], lengths - 1, total, optional(operands, 9), optional(operands, 10))
    result, *kept = GROUP_QUERY_ATTENTION.compute(a.grouped, (*given, None, bias))
    # Past and present are one buffer in onnxruntime: what is behind the last row stays there.
    behind = counted(kept[0].shape[2]) >= ends[:, None]
    pairs = zip((old, values), kept, strict=True)
    return result, *(np.where(behind[:, None, :, None], x, new) for x, new in pairs)


def _check_sparse_attention(node: Node, a: SparseAttentionAttrs) -> Iterator[str]:
    if a.num_heads < 1 or a.kv_num_heads < 1 or a.num_heads % a.kv_num_heads:
        yield f"{a.num_heads} heads do not divide into {a.kv_num_heads}"
    if a.sparse_block_size < 1:
        yield f"its blocks have {a.sparse_block_size} keys"
    if len(node.inputs) < 9 or any(node.inputs[i] is None for i in (3, 4, 5, 6, 7, 8)):
        yield "it needs a cache, the blocks that are seen, and the lengths of the sequences"
    if (node.optional(1) is None) != (node.optional(2) is None):
        yield "keys and values are given both, or neither"
    if a.do_rotary and (node.optional(9) is None or node.optional(10) is None):
        yield "it has no tables to turn by"
    yield from some_results(node, 3)
    yield from same_heads(node, 3, a.kv_num_heads)


SPARSE_ATTENTION = Row(
    name="SparseAttention",
    flow=Flow.FLOAT,
    apart=True,
    attributes=SparseAttentionAttrs,
    compute=_sparse,
    check=_check_sparse_attention,
    numerics="GroupQueryAttention whose query at place i sees the keys up to its own in the blocks "
    "that its row of the mask names, row i / block size; head h has the layout h modulo their "
    "number. The cache has its full length, and what is behind its last row stays: in onnxruntime "
    "past and present are one buffer. Against onnxruntime 1.32 on 300 random nodes: at most 2e-6 "
    "off. Of a batch of different lengths it gives the shorter sequences other numbers than alone, "
    "which are here.",
)


OPERATORS = (
    GROUP_QUERY_ATTENTION,
    SPARSE_ATTENTION,
)
