"""Layer norms that a file writes out step by step, as one operator.

Exporters of opsets before 17 write ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * g + b`` as
up to nine operators. Rounded to codes after each step that would be a poor layer norm: the square
of a small number has no code. As one operator it is rounded once.
"""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import NormAttrs, ReduceAttrs
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.rewrite.rule import Proposal, RuleContext, pattern_rule, replaced

_MEAN = Part("mean", ("ReduceMean", "x", {"keepdims": True}))
_SQUARE = AnyOf((("Mul", "c", "c"), ("Pow", "c", 2.0)))
_VARIANCE = Part("variance", ("ReduceMean", _SQUARE, {"keepdims": True}))


@pattern_rule(
    "layer-norm-of-steps",
    ("Div", Part("c", ("Sub", "x", _MEAN)), ("Sqrt", ("Add", _VARIANCE, "#epsilon"))),
)
def layer_norm_of_steps(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Div(c, Sqrt(ReduceMean(c * c) + e)) -> LayerNormalization(x)``, ``c = x - mean(x)``."""
    x, axis = match["x"], _first_of_last_axes(match.node("mean"))
    if context.is_output(match["c"]) or axis is None:
        return None
    if _first_of_last_axes(match.node("variance")) != axis:
        return None
    extents = (x.type.shape or ())[axis:]
    if not _is_float32(x) or not all(isinstance(extent, int) for extent in extents):
        return None
    unit = constant(Constant.of(np.ones([int(e) for e in extents], np.float32)), None, "")
    attributes = NormAttrs(axis, match.numbers["epsilon"])
    return replaced(node, LAYER_NORMALIZATION, attributes, [x, unit], match.origin("mean", "c"))


def _first_of_last_axes(mean: Node) -> int | None:
    """Returns the first of the axes that a ReduceMean reduces, where these are the last ones."""
    attributes, rank = mean.record(ReduceAttrs), mean.operand(0).rank
    if rank is None:
        return None
    axes = sorted(axis % rank for axis in attributes.axes)
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT32
