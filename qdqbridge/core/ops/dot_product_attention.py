"""ONNX's own Attention, of opsets 23 to 25: scaled dot products of queries, keys and values.

Keys and values begin with those of the past, or a cache outside is told how much of it is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.attention import weights
from qdqbridge.core.ops.rotary_embedding import counted, heads_first, heads_last, wide
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import optional, present

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
        mask = _as_wide(mask, raw.shape[-1])
        if mask.dtype == np.bool_:
            seen = np.logical_and(seen, mask)
        else:
            masked = masked + mask.astype(raw.dtype)
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

OPERATORS = (ATTENTION,)
