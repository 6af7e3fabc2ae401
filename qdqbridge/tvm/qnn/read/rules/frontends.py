"""Operators that TVM's frontends write as several calls, put together again.

Only what nobody writes for anything else: a chain that a model may well contain itself stays what
it is, and :mod:`qdqbridge.core.canonical.fusions` is there for who wants it whole.
"""

from __future__ import annotations

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import Part, Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    EpsilonAttrs,
    NormAttrs,
    ReduceAttrs,
    ReshapeAttrs,
)
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    deviation,
    mean_square,
)
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.rewrite import Replace, Rule, RuleContext, pattern_rule
from qdqbridge.tvm.qnn.read.rules.recorded import completed, provenance_of_node

# ---- Relax -------------------------------------------------------------------------------------

VARIANCE = "variance"
"""Form of a mean that one call of TVM's makes of differences from the mean."""

_CENTRED: Pattern = ("Sub", "x", "mean")
_INSTANCE: Pattern = (
    "Add",
    ("Mul", ("Div", _CENTRED, deviation("variance")), "gamma"),
    "beta",
)


@pattern_rule("instance-norm-of-frontend", _INSTANCE)
def instance_norm_of_frontend(
    node: Node, match: PatternMatch, context: RuleContext
) -> Replace | None:
    """``(x - mean) / Sqrt(variance(x) + eps) * gamma + beta -> InstanceNormalization``."""
    del context
    if provenance_of_node(node):
        return None
    x, mean = match["x"], match["mean"].producer
    rank = x.rank or 0
    over = ReduceAttrs(tuple(range(2, rank)))
    if not _is_variance(match["variance"], x, over):
        return None
    if mean is None or mean.operand(0) is not x or mean.attributes not in (over, NO_ATTRIBUTES):
        return None
    vectors = [_channel_vector(match[name], rank) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(match.numbers["epsilon"])
    return completed(node, INSTANCE_NORMALIZATION, [x, *vectors], attributes)


def _is_variance(value: Value, x: Value, over: ReduceAttrs) -> bool:
    """True for what one call of TVM's makes; a model's own steps stay what they are."""
    made, found = value.producer, PatternMatch({"x": x})
    if made is None or made.origin.variant != VARIANCE or made.attributes != over:
        return False
    return match_value_pattern(value, mean_square(_CENTRED), found)


@pattern_rule("batch-norm-of-frontend", _INSTANCE)
def batch_norm_of_frontend(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``(x - mean) / Sqrt(variance + eps) * gamma + beta -> BatchNormalization``.

    TVM decomposes it so for inference.
    """
    del context
    provenance = provenance_of_node(node)
    if provenance is not None and provenance.op != BATCH_NORMALIZATION.name:
        return None
    names = ("gamma", "beta", "mean", "variance")
    vectors = [_per_channel(match[name], node.output.rank or 0) for name in names]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(match.numbers["epsilon"])
    return completed(node, BATCH_NORMALIZATION, [match["x"], *vectors], attributes)


def _per_channel(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel, whose other axes have been added."""
    wide, shape = value.producer, value.type.shape or ()
    if wide is not None:
        added = AxesAttrs((0, *range(2, rank)))
        return wide.operand(0) if wide.attributes == added and wide.operand(0).rank == 1 else None
    if value.constant is None or len(shape) != rank or [*shape[:1], *shape[2:]] != [1] * (rank - 1):
        return None
    return _flat(value, value.constant)


_AFFINE = (
    "Add",
    ("Mul", Part("norm", ("GroupNormalization", "x", "ones", "zeros")), "gamma"),
    "beta",
)


@pattern_rule("group-norm-of-frontend", _AFFINE)
def group_norm_of_frontend(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``GroupNormalization(x, 1, 0) * gamma + beta -> GroupNormalization(x, gamma, beta)``."""
    del context
    ones, zeros = match["ones"].constant, match["zeros"].constant
    if provenance_of_node(node) or ones is None or zeros is None:
        return None
    if zeros.numpy().any() or (ones.numpy() != 1).any():
        return None
    vectors = [_channel_vector(match[name], node.output.rank or 0) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    attributes = match.node("norm").attributes
    return completed(node, GROUP_NORMALIZATION, [match["x"], *vectors], attributes)


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


# ---- Relay -------------------------------------------------------------------------------------

_INVERSE: Pattern = ("Div", 1.0, deviation(mean_square(_CENTRED)))
_LAYER_NORM: Pattern = ("Add", ("Mul", ("Mul", _CENTRED, _INVERSE), "gamma"), "beta")

_LOW: Pattern = ("Floor", "x")
_REST: Pattern = ("Sub", "x", _LOW)
_EVEN: Pattern = ("Mul", ("Floor", ("Mul", _LOW, 0.5)), 2.0)
_TIE: Pattern = (
    "unread:logical_and",
    ("unread:equal", _REST, 0.5),
    ("unread:not_equal", _LOW, _EVEN),
)
_UP: Pattern = ("unread:logical_or", ("unread:greater", _REST, 0.5), _TIE)
_ROUND: Pattern = ("Where", _UP, ("Add", _LOW, 1.0), _LOW)


@pattern_rule("half-to-even", _ROUND)
def half_to_even(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``Where(x - Floor(x) > 0.5 or …, Floor(x) + 1, Floor(x)) -> Round(x)``."""
    del context
    return completed(node, "Round", [match["x"]])


@pattern_rule("layer-norm-of-importer", _LAYER_NORM)
def layer_norm_of_importer(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``(x - mean) * (1 / Sqrt(variance + eps)) * gamma + beta -> LayerNormalization``."""
    del context
    x, axis = match["x"], _mean_first_axis(match["mean"].producer, match["x"])
    if provenance_of_node(node) or axis is None:
        return None
    operands = [x, match["gamma"], match["beta"]]
    attributes = NormAttrs(axis, match.numbers["epsilon"])
    return completed(node, LAYER_NORMALIZATION, operands, attributes)


def _mean_first_axis(mean: Node | None, x: Value) -> int | None:
    """Returns the first of the last axes over which a mean is taken, None for other axes."""
    if mean is None or mean.operand(0) is not x:
        return None
    rank, attributes = x.rank or 0, mean.attributes
    if mean.op is GLOBAL_AVERAGE_POOL:
        return 2
    if mean.op is not REDUCE_MEAN or not isinstance(attributes, ReduceAttrs):
        return None
    axes = attributes.axes
    whole = bool(axes) and axes == tuple(range(axes[0], rank)) and attributes.keepdims
    return axes[0] if whole else None


RELAX: tuple[Rule, ...] = (
    instance_norm_of_frontend,
    group_norm_of_frontend,
    batch_norm_of_frontend,
)
RELAY: tuple[Rule, ...] = (half_to_even, layer_norm_of_importer)
