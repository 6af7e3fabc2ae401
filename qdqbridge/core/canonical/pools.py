"""Rules for pools: one form where several mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL, GLOBAL_MAX_POOL
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MEAN
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_GLOBAL: Mapping[Operator, Operator] = {
    REDUCE_MEAN: GLOBAL_AVERAGE_POOL,
    REDUCE_MAX: GLOBAL_MAX_POOL,
}
_REDUCED: Mapping[Operator, Operator] = {pool: reduction for reduction, pool in _GLOBAL.items()}
_POOLED = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
"""What the global pools of every opset take; reductions take integers, too."""
_IMAGES = 4
"""The rank from which a reduction of all axes behind the channels is one over space."""


@rule("mean-over-space", *_GLOBAL)
def mean_over_space(node: Node, context: RuleContext) -> Proposal:
    """``ReduceMean(x, axes=[2, 3]) -> GlobalAveragePool(x)`` of images; so ReduceMax."""
    del context
    x = node.operand(0)
    rank = x.rank
    if x.quant is None and x.type.dtype not in _POOLED:
        return None
    if rank is None or rank < _IMAGES or node.attributes != ReduceAttrs(tuple(range(2, rank))):
        return None
    op, output = _GLOBAL[node.op], node.output
    operands = node.inputs[:1]
    value = result(op, NO_ATTRIBUTES, operands, output.type, node.origin, output.name)
    return Replace({output: value})


@rule("pool-over-a-sequence", *_REDUCED)
def pool_over_a_sequence(node: Node, context: RuleContext) -> Proposal:
    """``GlobalAveragePool(x) -> ReduceMean(x, axes=[2])`` of rank 3.

    What is reduced there may as well be features as time, and nothing tells which.
    """
    del context
    if node.operand(0).rank != _IMAGES - 1:
        return None
    op, output = _REDUCED[node.op], node.output
    value = result(op, ReduceAttrs((2,)), node.inputs, output.type, node.origin, output.name)
    return Replace({output: value})


@rule("no-padding-to-count", AVERAGE_POOL)
def no_padding_to_count(node: Node, context: RuleContext) -> Proposal:
    """``AveragePool(count_include_pad=1) -> AveragePool`` where there is no padding.

    Not with ``ceil_mode``, whose windows runtimes have counted differently beyond the end.
    """
    del context
    given = node.attributes
    if not isinstance(given, PoolAttrs) or not given.count_include_pad or given.ceil_mode:
        return None
    if any(given.pads):
        return None
    plain = replace(given, count_include_pad=False)
    output = node.output
    value = result(node.op, plain, node.inputs, output.type, node.origin, output.name)
    return Replace({output: value})
