"""Norms that TVM's frontends write as several calls, put together again.

Only what nobody writes for anything else: a chain that a model may well contain itself stays what
it is, and :mod:`qdqbridge.core.canonical.fusions` is there for who wants it whole. Element-wise
operators are recognized by their forms, see :mod:`qdqbridge.tvm.qnn.read.rules`.
"""

from __future__ import annotations

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    EpsilonAttrs,
    ReduceAttrs,
    ReshapeAttrs,
)
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
)
from qdqbridge.core.rewrite.rule import Replace, Rule, RuleContext, rule
from qdqbridge.tvm.qnn.read.rules import FROM_TVM
from qdqbridge.tvm.qnn.read.rules.recorded import completed, provenance_of_node

VARIANCE = "variance"
"""Form of a mean that one call of TVM's makes of differences from the mean."""

_INSTANCE: Pattern = (
    "Add",
    ("Mul", ("Div", ("Sub", "x", "mean"), ("Sqrt", ("Add", "variance", "#epsilon"))), "gamma"),
    "beta",
)


@rule("instance-norm-of-frontend", ADD)
def instance_norm_of_frontend(node: Node, context: RuleContext) -> Replace | None:
    """``(x - mean) / Sqrt(variance(x) + eps) * gamma + beta -> InstanceNormalization``."""
    del context
    found = PatternMatch()
    if provenance_of_node(node) or not match_value_pattern(node.output, _INSTANCE, found):
        return None
    x, mean = found.values["x"], found.values["mean"].producer
    rank = x.rank or 0
    over = ReduceAttrs(tuple(range(2, rank)))
    if not _is_variance(found.values["variance"], x, over):
        return None
    if mean is None or mean.operand(0) is not x or mean.attributes not in (over, NO_ATTRIBUTES):
        return None
    vectors = [_channel_vector(found.values[name], rank) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(found.numbers["epsilon"])
    return completed(node, INSTANCE_NORMALIZATION, [x, *vectors], attributes)


def _is_variance(value: Value, x: Value, over: ReduceAttrs) -> bool:
    """True for what one call of TVM's makes; a model's own steps stay what they are."""
    made, found = value.producer, PatternMatch({"x": x})
    if made is None or made.origin.variant != VARIANCE or made.attributes != over:
        return False
    steps = ("ReduceMean", ("Mul", ("Sub", "x", "mean"), ("Sub", "x", "mean")))
    return match_value_pattern(value, steps, found)


@rule("batch-norm-of-frontend", ADD)
def batch_norm_of_frontend(node: Node, context: RuleContext) -> Replace | None:
    """``(x - mean) / Sqrt(variance + eps) * gamma + beta -> BatchNormalization``.

    TVM decomposes it so for inference.
    """
    del context
    found, provenance = PatternMatch(), provenance_of_node(node)
    if provenance is not None and provenance.op != BATCH_NORMALIZATION.name:
        return None
    if not match_value_pattern(node.output, _INSTANCE, found):
        return None
    names = ("gamma", "beta", "mean", "variance")
    vectors = [_per_channel(found.values[name], node.output.rank or 0) for name in names]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(found.numbers["epsilon"])
    return completed(node, BATCH_NORMALIZATION, [found.values["x"], *vectors], attributes)


def _per_channel(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel, whose other axes have been added."""
    wide, shape = value.producer, value.type.shape or ()
    if wide is not None:
        added = AxesAttrs((0, *range(2, rank)))
        return wide.operand(0) if wide.attributes == added and wide.operand(0).rank == 1 else None
    if value.constant is None or len(shape) != rank or [*shape[:1], *shape[2:]] != [1] * (rank - 1):
        return None
    return _flat(value, value.constant)


_AFFINE: Pattern = ("Add", ("Mul", "norm", "gamma"), "beta")


@rule("group-norm-of-frontend", ADD)
def group_norm_of_frontend(node: Node, context: RuleContext) -> Replace | None:
    """``GroupNormalization(x, 1, 0) * gamma + beta -> GroupNormalization(x, gamma, beta)``."""
    del context
    found = PatternMatch()
    if provenance_of_node(node) or not match_value_pattern(node.output, _AFFINE, found):
        return None
    norm = found.values["norm"].producer
    if norm is None or norm.op is not GROUP_NORMALIZATION:
        return None
    ones, zeros = norm.operand(1).constant, norm.operand(2).constant
    if ones is None or zeros is None or zeros.numpy().any() or (ones.numpy() != 1).any():
        return None
    rank = node.output.rank or 0
    vectors = [_channel_vector(found.values[name], rank) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    return completed(node, norm.op, [norm.operand(0), *vectors], norm.attributes)


def _channel_vector(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel of ``rank`` axes."""
    node, shape = value.producer, value.type.shape or ()
    if shape[1:] != (1,) * (rank - 2) or len(shape) != rank - 1:
        return None
    if node is not None and isinstance(node.attributes, ReshapeAttrs | AxesAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    return None if value.constant is None else _flat(value, value.constant)


def _flat(value: Value, data: Constant) -> Value:
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), value.name, constant=flat)


RULES: tuple[Rule, ...] = (
    *FROM_TVM,
    instance_norm_of_frontend,
    group_norm_of_frontend,
    batch_norm_of_frontend,
)
"""What completes operators of several calls in a Relax module."""
