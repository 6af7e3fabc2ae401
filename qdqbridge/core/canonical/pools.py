"""Rules for pools and nearest resizes: one form where several mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs, ResizeAttrs
from qdqbridge.core.ops.build import requantized, result
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL, GLOBAL_MAX_POOL
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MEAN
from qdqbridge.core.ops.resize import RESIZE, moves
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, rule

# ---- Rules for pools: one form where several mean the same ---------------------------------------


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


# ---- The rules that give nearest resizes one form ------------------------------------------------


_CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


@rule("nearest-by-whole-factors", RESIZE)
def nearest_by_whole_factors(node: Node, context: RuleContext) -> Proposal:
    """``Resize(half_pixel, round) -> Resize(asymmetric, floor)`` of nearest by whole factors.

    Both take element ``i // factor``: ``(i + 1/2) / factor - 1/2`` is never halfway between two
    integers, and rounds to that.
    """
    del context
    given = node.attributes
    if not isinstance(given, ResizeAttrs) or given.mode != "nearest" or given.scales is None:
        return None
    if given.coordinate_transformation_mode not in _CENTRES or given.nearest_mode not in _ROUNDED:
        return None
    if any(scale < 1 or scale != int(scale) for scale in given.scales):
        return None
    written = replace(given, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    output, origin = node.output, node.origin
    value = result(node.op, written, node.inputs, output.type, origin, output.name)
    return Replace({output: value})


@rule("nearest-keeps-quantization", RESIZE)
def nearest_keeps_quantization(node: Node, context: RuleContext) -> Proposal:
    """``Resize(x) -> requantize(Resize(x))`` of nearest into other parameters than those of x.

    What only copies elements does not round them; where it stands is no matter of rule order.
    """
    del context
    given, source, target = node.attributes, node.operand(0).quant, node.output.quant
    if not isinstance(given, ResizeAttrs) or not moves(given) or source is None or target is None:
        return None
    if source.params.same_mapping(target.params) or not source.params.per_tensor:
        return None
    output, origin = node.output, node.origin
    copied = result(node.op, given, node.inputs, source.with_shape(target.shape), origin)
    return Replace({output: requantized(copied, target.params, origin, output.name)})
