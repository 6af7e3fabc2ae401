"""Attention of several heads: ``softmax(q @ k' * scale + bias, where seen) @ v``.

The operators are onnxruntime's (``com.microsoft``), which its model builder and its fusions write.
Keys and values begin with those of the past.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.rotary_embedding import counted, heads_first, heads_last, wide
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import optional, present


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
        scores = scores + bias.astype(scores.dtype)
    if mask is not None:
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

OPERATORS = (MULTI_HEAD_ATTENTION, MERGED_ATTENTION)
