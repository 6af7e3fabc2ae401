"""Attention over blocks of keys, and a cache of keys and values (Phi-3 small).

The operator is onnxruntime's (``com.microsoft``): GroupQueryAttention in which a query sees the
blocks of keys that a mask names. Heads have the layouts of the mask in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.attention import same_heads, some_results
from qdqbridge.core.ops.group_query_attention import GROUP_QUERY_ATTENTION, GroupQueryAttentionAttrs
from qdqbridge.core.ops.rotary_embedding import counted
from qdqbridge.core.ops.stored import optional


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
    layouts = np.arange(a.num_heads) % seen.shape[0]
    own_blocks = seen[layouts[None, :, None, None], queries[:, None, :, None], keys]
    bias = np.where(own_blocks, np.float32(0), np.float32(-np.inf))
    given = (*operands[:5], lengths - 1, total, optional(operands, 9), optional(operands, 10))
    result, *kept = GROUP_QUERY_ATTENTION.compute(a.grouped, (*given, None, bias))
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

OPERATORS = (SPARSE_ATTENTION,)
"""Attention over blocks of keys."""
