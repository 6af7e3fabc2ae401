"""Operators that Relay lacks, or that its importer writes as several calls, whole again."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.ops.attributes import NormAttrs, ReduceAttrs
from qdqbridge.core.ops.elementwise import ADD, SUB, WHERE
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.rewrite.rule import Replace, Rule, RuleContext, rule
from qdqbridge.tvm.qnn.read.rules import FROM_TVM
from qdqbridge.tvm.qnn.read.rules.recorded import completed, provenance_of_node

_ROOT: Pattern = ("Sqrt", ("Add", ("ReduceMean", ("Mul", "d", "d")), "#epsilon"))
_CENTRED: Pattern = ("Sub", "x", "mean")
_LAYER_NORM: Pattern = (
    "Add",
    ("Mul", ("Mul", _CENTRED, ("Div", 1.0, _ROOT)), "gamma"),
    "beta",
)

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


@rule("half-to-even", WHERE)
def half_to_even(node: Node, context: RuleContext) -> Replace | None:
    """``Where(x - Floor(x) > 0.5 or …, Floor(x) + 1, Floor(x)) -> Round(x)``."""
    del context
    found = PatternMatch()
    if not match_value_pattern(node.output, _ROUND, found):
        return None
    return completed(node, "Round", [found.values["x"]])


@rule("layer-norm-of-importer", ADD)
def layer_norm_of_importer(node: Node, context: RuleContext) -> Replace | None:
    """``(x - mean) * (1 / Sqrt(variance + eps)) * gamma + beta -> LayerNormalization``."""
    del context
    found = PatternMatch()
    if provenance_of_node(node) or not match_value_pattern(node.output, _LAYER_NORM, found):
        return None
    mean, x = found.values["mean"].producer, found.values["x"]
    centred = found.values["d"].producer
    axis = _mean_first_axis(mean, x)
    if axis is None or centred is None or centred.op is not SUB:
        return None
    if centred.operand(0) is not x or centred.operand(1).producer is not mean:
        return None
    operands = [x, found.values["gamma"], found.values["beta"]]
    attributes = NormAttrs(axis, found.numbers["epsilon"])
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


RULES: tuple[Rule, ...] = (half_to_even, *FROM_TVM, layer_norm_of_importer)
"""What completes operators of several calls in a Relay module."""
