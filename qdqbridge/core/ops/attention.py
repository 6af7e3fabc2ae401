"""Attention of several heads: ``softmax(q @ k' * scale + bias, where seen) @ v``.

The operators are onnxruntime's (``com.microsoft``), which its model builder and its fusions write.
Keys and values begin with those of the past.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import broadcast_into, optional, present

# ---- Rotary embedding: the numbers of a head are turned in pairs, by the place where it stands ---
# The operator is onnxruntime's (``com.microsoft``) and ONNX's from opset 23 on.


@dataclass(frozen=True, slots=True)
class RotaryEmbeddingAttrs(Attributes):
    """RotaryEmbedding.

    Attributes:
        num_heads: Heads of an operand of three axes; 0 where it has four.
        rotary_embedding_dim: How many numbers of a head are turned; 0: all.
        interleaved: The two numbers of a pair stand side by side.
    """

    num_heads: int = 0
    rotary_embedding_dim: int = 0
    interleaved: bool = False


def wide(array: Array) -> Array:
    """Returns half floats in float32."""
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def counted(count: int) -> Array:
    """Returns ``0, 1, 2 …``."""
    return np.arange(count, dtype=np.int64)


def heads_first(x: Array, heads: int) -> Array:
    """Returns (batch, length, heads * size) as (batch, heads, length, size)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def heads_last(x: Array) -> Array:
    """Returns (batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def rotated(x: Array, cosine: Array, sine: Array, places: Array, *, interleaved: bool) -> Array:
    """Returns pairs of numbers turned by their places; what the tables do not reach stays.

    Args:
        x: (batch, heads, length, size).
        cosine: (places, pairs).
        sine: The same shape.
        places: (batch, length).
        interleaved: The two numbers of a pair stand side by side.
    """
    half = cosine.shape[1]
    c, s = (table[places][:, None].astype(x.dtype) for table in (cosine, sine))
    first, second = slice(0, half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    result = x.copy()
    result[..., first] = x[..., first] * c - x[..., second] * s
    result[..., second] = x[..., second] * c + x[..., first] * s
    return result


def _rotary(a: RotaryEmbeddingAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, cosine, sine = present(operands, 3)
    given = optional(operands, 3)
    data = wide(x) if x.ndim == 4 else heads_first(wide(x), a.num_heads)
    batch, _, length, _ = data.shape
    if given is None:  # the tables' rows are those of the places already
        given = counted(batch * length).reshape(batch, length)
        cosine, sine = (table.reshape(-1, table.shape[-1]) for table in (cosine, sine))
    elif given.ndim == 1:
        given = np.add(given.reshape(1, 1), counted(length))
    places = np.broadcast_to(given, (batch, length))
    turned = rotated(data, cosine, sine, places, interleaved=a.interleaved)
    return ((turned if x.ndim == 4 else heads_last(turned)).astype(x.dtype),)


def _check_rotary(node: Node, a: RotaryEmbeddingAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    if rank not in (None, 3, 4):
        yield f"its operand has rank {rank}, not 3 or 4"
    if len(node.inputs) < 3 or None in node.inputs[:3]:
        yield "it needs two tables"
    if rank == 3 and a.num_heads < 1:
        yield "the number of its heads is not told"


ROTARY_EMBEDDING = Row(
    name="RotaryEmbedding",
    flow=Flow.FLOAT,
    apart=True,
    attributes=RotaryEmbeddingAttrs,
    compute=_rotary,
    check=_check_rotary,
    numerics="Pairs (a, b) of each head become (a cos - b sin, b cos + a sin) of their place, in "
    "float32; a negative place counts from the end of the tables, as in ONNX's definition "
    "(onnxruntime refuses it); a place that they do not have is an error. "
    "Against onnxruntime 1.32 on 250 random nodes: at most 3e-7 off.",
)


# ---- Attention of several heads: ``softmax(q @ k' * scale + bias, where seen) @ v`` --------------


@dataclass(frozen=True, slots=True)
class MultiHeadAttentionAttrs(Attributes):
    """MultiHeadAttention; a scale of 0 is ``1 / sqrt(head size)``.

    Attributes:
        num_heads: Heads of queries, keys and values.
        scale: What products are multiplied by.
        mask_filter_value: What is added to products that the mask hides.
        unidirectional: A query sees no key behind it, but the last one sees all: onnxruntime's
            mask leaves its line out, which only shows where there are more keys than queries.
    """

    num_heads: int
    scale: float = 0.0
    mask_filter_value: float = -10000.0
    unidirectional: bool = False


@dataclass(frozen=True, slots=True)
class MergedAttentionAttrs(Attributes):
    """Attention of com.microsoft, which makes queries, keys and values itself.

    Attributes:
        num_heads: Heads of queries, keys and values.
        qkv_hidden_sizes: How wide these are; empty where they are of one width.
        scale: What products are multiplied by; 0: ``1 / sqrt(head size)``.
        mask_filter_value: What is added to products that the mask hides.
        unidirectional: A query sees no key behind it.
    """

    num_heads: int
    qkv_hidden_sizes: tuple[int, ...] = ()
    scale: float = 0.0
    mask_filter_value: float = -10000.0
    unidirectional: bool = False

    @property
    def heads(self) -> MultiHeadAttentionAttrs:
        """The attention of what it makes."""
        return MultiHeadAttentionAttrs(
            self.num_heads, self.scale, self.mask_filter_value, self.unidirectional
        )


def weights(scores: Array, seen: Array, sink: Array | None) -> Array:
    """Returns the softmax over the keys that are seen; a sink takes part and is dropped.

    Args:
        scores: (batch, heads, queries, keys).
        seen: What broadcasts to it.
        sink: One number per head.
    """
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        sink = sink.astype(scores.dtype).reshape(1, -1, 1, 1)
        top = np.maximum(top, sink)
    # Of a query that sees no key, the top is minus infinity, and the difference would be NaN; its
    # sum is 0, and it gets zeros.
    raised = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = raised.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    return raised / np.where(total == 0, 1, total)


def some_results(node: Node, most: int) -> Iterator[str]:
    """Yields what stands against a node whose results are more than ``most``."""
    if not 1 <= len(node.outputs) <= most:
        yield f"it has {len(node.outputs)} results, and gives {most} at most"


def same_heads(node: Node, index: int, heads: int) -> Iterator[str]:
    """Yields what stands against a past of other heads."""
    past = node.optional(index)
    if past is not None and differ(known(past, 1), heads):
        yield f"the past has {known(past, 1)} heads, not {heads}"


def _multi_head(a: MultiHeadAttentionAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    own = operands[0]
    assert own is not None
    q, k, v = multi_head_operands(a, operands)
    old_k, old_v = optional(operands, 6), optional(operands, 7)
    past = 0
    if old_k is not None and old_v is not None:
        past = old_k.shape[2]
        k, v = (np.concatenate([wide(x), y], axis=2) for x, y in ((old_k, k), (old_v, v)))
    scale = q.dtype.type(a.scale or 1 / math.sqrt(q.shape[-1]))
    scores = (q @ k.swapaxes(-1, -2)) * scale
    bias, mask = optional(operands, 5), optional(operands, 4)
    if bias is not None:
        scores = scores + broadcast_into(bias, scores.shape).astype(scores.dtype)
    if mask is not None:
        # The number is added, as onnxruntime does: a query whose keys are all hidden weighs them as
        # if none were, where minus infinity would leave it nothing.
        hidden = _hidden(mask, q.shape[0], scores.shape[-1])
        scores = scores + np.where(hidden, scores.dtype.type(a.mask_filter_value), 0)
    seen = np.ones((1, 1), np.bool_)
    if a.unidirectional:
        seen = np.tri(scores.shape[2], scores.shape[3], past, dtype=np.bool_)
        seen[-1:] = True
    result = heads_last(weights(scores, seen, None) @ v)
    return result.astype(own.dtype), k.astype(own.dtype), v.astype(own.dtype)


def multi_head_operands(
    a: MultiHeadAttentionAttrs, operands: Operands
) -> tuple[Array, Array, Array]:
    """Returns queries, keys and values by heads; to those that are not yet biases are added."""
    flat = [wide(x) for x in present(operands, 3)]
    bias = optional(operands, 3)
    if bias is not None:
        sizes = [x.shape[1] * x.shape[3] if x.ndim == 4 else x.shape[2] for x in flat]
        parts = np.split(wide(bias), np.cumsum(sizes)[:-1])
        flat = [x if x.ndim == 4 else x + part for x, part in zip(flat, parts, strict=True)]
    q, k, v = (x if x.ndim == 4 else heads_first(x, a.num_heads) for x in flat)
    return q, k, v


def _hidden(mask: Array, batch: int, keys: int) -> Array:
    """Returns which products a mask hides: of lengths, of keys, or of queries and keys."""
    if mask.ndim == 1:
        return (counted(keys) >= mask.reshape(batch, 1))[:, None, None, :]
    return (mask == 0)[:, None, None, :] if mask.ndim == 2 else (mask == 0)[:, None]


def _check_multi_head(node: Node, a: MultiHeadAttentionAttrs) -> Iterator[str]:
    if a.num_heads < 1:
        yield f"it has {a.num_heads} heads"
    if (node.optional(6) is None) != (node.optional(7) is None):
        yield "the past has keys and values, or neither"
    if len(node.inputs) < 3 or None in node.inputs[:3]:
        yield "it needs queries, keys and values"
    yield from same_heads(node, 6, a.num_heads)
    yield from some_results(node, 3)


def _merged(a: MergedAttentionAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, weights = present(operands, 2)
    made = wide(x) @ wide(weights)
    bias, past = optional(operands, 2), optional(operands, 4)
    made = made if bias is None else made + wide(bias)
    widths = a.qkv_hidden_sizes or [made.shape[-1] // 3] * 3
    parts = np.split(made, np.cumsum(widths)[:-1], axis=-1)
    olds = [None, None] if past is None else list(past)
    mask = optional(operands, 3)
    if mask is not None and mask.ndim == 2 and mask.shape[1] == 1:
        mask = None
    given = [*parts, None, mask, optional(operands, 5), *olds]
    result, k, v = _multi_head(a.heads, given)
    if k.shape != v.shape:  # nobody asks for them as one
        return (result.astype(x.dtype),)
    return result.astype(x.dtype), np.stack([k, v]).astype(x.dtype)


def _check_merged(node: Node, a: MergedAttentionAttrs) -> Iterator[str]:
    if a.num_heads < 1:
        yield f"it has {a.num_heads} heads"
    if a.qkv_hidden_sizes and (
        len(a.qkv_hidden_sizes) != 3 or any(w % a.num_heads for w in a.qkv_hidden_sizes)
    ):
        yield f"queries, keys and values are {a.qkv_hidden_sizes} wide, of {a.num_heads} heads"
    if len(node.inputs) < 2 or None in node.inputs[:2]:
        yield "it needs data and weights"
    if len(node.outputs) > 1 and len(set(a.qkv_hidden_sizes[1:])) > 1:
        yield "it gives keys and values of other widths as one result"
    yield from some_results(node, 2)


MULTI_HEAD_ATTENTION = Row(
    name="MultiHeadAttention",
    flow=Flow.FLOAT,
    apart=True,
    attributes=MultiHeadAttentionAttrs,
    compute=_multi_head,
    check=_check_multi_head,
    numerics="p = q @ k' * scale + bias, and a low number where a mask hides; y = softmax(p) @ v. "
    "Sums in float32 in NumPy's order. Against onnxruntime 1.32 on 250 random nodes: at most 1e-6 "
    "off. Packed operands, which its CPU has not, are carried.",
)
MERGED_ATTENTION = Row(
    name="MergedAttention",
    flow=Flow.FLOAT,
    attributes=MergedAttentionAttrs,
    compute=_merged,
    check=_check_merged,
    apart=True,
    numerics="MultiHeadAttention of the three parts of x @ w + b; the past is keys and values in "
    "one, and a mask of one column hides nothing. Against onnxruntime 1.32 on 250 random nodes: at "
    "most 4e-6 off.",
)


# ---- ONNX's own Attention, of opsets 23 to 25: scaled dot products of queries, keys and values ---
# Keys and values begin with those of the past, or a cache outside is told how much of it is held.


RESULTS = ((0,), (0, 1, 2), (0, 3), (0, 1, 2, 3))
"""Which of ONNX's results are there: y, the new past in two, what the products became."""
DOUBLE = 11
"""ONNX's number of float64."""


@dataclass(frozen=True, slots=True)
class AttentionAttrs(Attributes):
    """Attention of ONNX; a scale of 0 is ``1 / sqrt(head size)``.

    Attributes:
        q_num_heads: Heads of queries that lie side by side; 0 where they are an axis.
        kv_num_heads: The same of keys and values; each serves as many queries.
        scale: What products are multiplied by.
        softcap: Products are bent into ``(-softcap, softcap)`` by tanh; 0: they are not.
        is_causal: A query sees no key behind it.
        left_window_size: How many keys before its own a query sees; -1: all.
        right_window_size: How many behind its own; -1: all.
        softmax_precision: ONNX's number of the type that the softmax is computed in; 0: the own.
        qk_matmul_output_mode: When the last result is taken: of products (0), bent (1), masked
            (2), or behind the softmax (3).
        results: Which results it gives, by their places in ONNX.
    """

    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    is_causal: bool = False
    left_window_size: int = -1
    right_window_size: int = -1
    softmax_precision: int = 0
    qk_matmul_output_mode: int = 0
    results: tuple[int, ...] = (0,)

    def factor(self, size: int) -> float:
        """Returns what queries and keys are multiplied by, each."""
        return math.sqrt(self.scale or 1 / math.sqrt(size))


def _attention(a: AttentionAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, key, value = present(operands, 3)
    counts = (a.q_num_heads, a.kv_num_heads, a.kv_num_heads)
    q, k, v = (
        each if each.ndim == 4 else heads_first(each, count)
        for each, count in zip((x, key, value), counts, strict=True)
    )
    old_k, old_v = optional(operands, 4), optional(operands, 5)
    past = 0
    if old_k is not None and old_v is not None:
        past = old_k.shape[2]
        k, v = np.concatenate([old_k, k], axis=2), np.concatenate([old_v, v], axis=2)
    # Heads of keys serve queries that are neighbours: 0, 0, 1, 1, not 0, 1, 0, 1.
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(wide(each), group, axis=1) for each in (k, v))
    queries = wide(q)
    factor = queries.dtype.type(a.factor(q.shape[-1]))
    raw = (queries * factor) @ (keys * factor).swapaxes(-1, -2)
    bent = raw
    if a.softcap:
        cap = raw.dtype.type(a.softcap)
        bent = np.tanh(raw / cap) * cap
    masked, seen = bent, _seen(a, operands, raw.shape, past)
    mask = optional(operands, 3)
    if mask is not None:
        mask = broadcast_into(_as_wide(mask, raw.shape[-1]), raw.shape)
        if mask.dtype == np.bool_:
            seen = np.logical_and(seen, mask)
        else:
            masked = masked + mask.astype(raw.dtype)
            # Minus infinity hides a key as False does, also from a query that has no other: it gets
            # zeros.
            seen = np.logical_and(seen, ~np.isneginf(mask))
    masked = np.where(seen, masked, -np.inf)
    kind = np.float64 if a.softmax_precision == DOUBLE else raw.dtype
    weighed = weights(masked.astype(kind), seen, None).astype(raw.dtype)
    mixed = weighed @ values
    shown = (raw, bent, masked, weighed)[a.qk_matmul_output_mode]
    y = mixed if x.ndim == 4 else heads_last(mixed)
    given = (y.astype(x.dtype), k, v, shown.astype(x.dtype))
    return tuple(given[index] for index in a.results)


def _seen(a: AttentionAttrs, operands: Operands, shape: tuple[int, ...], past: int) -> Array:
    """Returns which keys each query sees, whatever the mask says."""
    batch, _, length, count = shape
    held = optional(operands, 6)
    keys = counted(count)
    ends = np.full(batch, count) if held is None else held.reshape(-1)
    # The queries stand behind the past; where a cache outside holds it, they are its last tokens.
    begin = np.full(batch, past) if held is None else ends - length
    places = (begin[:, None] + counted(length))[:, None, :, None]
    seen: Array = keys < ends[:, None, None, None]
    if a.is_causal:
        seen = np.logical_and(seen, keys <= places)
    if a.left_window_size >= 0:
        seen = np.logical_and(seen, keys >= places - a.left_window_size)
    if a.right_window_size >= 0:
        seen = np.logical_and(seen, keys <= places + a.right_window_size)
    return np.broadcast_to(seen, (batch, 1, length, count))


def _as_wide(mask: Array, count: int) -> Array:
    """Returns a mask for all keys: those behind its last are hidden."""
    missing = count - mask.shape[-1]
    if missing <= 0:
        return mask
    hidden = False if mask.dtype == np.bool_ else -np.inf
    ends = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
    return np.pad(mask, ends, constant_values=hidden)


def _check_attention(node: Node, a: AttentionAttrs) -> Iterator[str]:
    if len(node.inputs) < 3 or None in node.inputs[:3]:
        yield "it needs queries, keys and values"
        return
    ranks = {node.operand(index).rank for index in range(3)} - {None}
    if len(ranks) > 1 or not ranks <= {3, 4}:
        yield f"its queries, keys and values have ranks {sorted(map(str, ranks))}"
    heads: int | None = a.q_num_heads
    shared: int | None = a.kv_num_heads
    if ranks == {3} and min(a.q_num_heads, a.kv_num_heads) < 1:
        yield "the numbers of its heads are not told"
    if ranks == {4}:
        heads, shared = (known(node.operand(index), 1) for index in range(2))
    if heads and shared and heads % shared:
        yield f"{heads} heads do not divide into {shared}"
    if (node.optional(4) is None) != (node.optional(5) is None):
        yield "the past has keys and values, or neither"
    if node.optional(4) is not None and node.optional(6) is not None:
        yield "it has a past of its own, and one outside"
    past = node.optional(4)
    if past is not None and differ(known(past, 1), shared):
        yield f"the past has {known(past, 1)} heads, not {shared}"
    if a.results not in RESULTS or len(node.outputs) != len(a.results):
        yield f"it has {len(node.outputs)} results, and gives those of {list(a.results)}"
    if a.softmax_precision not in (0, 1, DOUBLE):
        yield f"its softmax is computed in type {a.softmax_precision}"
    if a.scale < 0 or a.softcap < 0:
        yield "its scale and its bound are not negative"
    if not 0 <= a.qk_matmul_output_mode <= 3:
        yield f"its products are shown in mode {a.qk_matmul_output_mode}"
    mask = node.optional(3)
    if mask is not None and mask.type.dtype.is_integer and mask.type.dtype is not DType.BOOL:
        yield f"its mask is {mask.type.dtype}"


ATTENTION = Row(
    name="Attention",
    flow=Flow.FLOAT,
    apart=True,
    attributes=AttentionAttrs,
    compute=_attention,
    check=_check_attention,
    numerics="p = (q sqrt(scale)) @ (k sqrt(scale))', bent by softcap, plus the mask; y = softmax "
    "over the keys that a query sees @ v; a query that sees none gives zeros, and keys behind a "
    "short mask are hidden. Sums in float32 in NumPy's order. Against onnxruntime 1.32 on 600 "
    "random nodes: at most 2e-6 off. Its kernels of opsets 23 and 24 forget is_causal where one "
    "query has a past and several new keys, and show their lowest number for minus infinity "
    "(qk_matmul_output_mode 2); ONNX's reference is as here, but shows bent products for raw ones.",
)


OPERATORS = (
    MULTI_HEAD_ATTENTION,
    MERGED_ATTENTION,
    ATTENTION,
    ROTARY_EMBEDDING,
)
