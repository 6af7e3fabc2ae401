"""Rules for operators of one operand that a file writes as the very same float operations."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.unary import HARD_SWISH, RECIPROCAL
from qdqbridge.core.rewrite.rule import Proposal, RuleContext, pattern_rule, replaced


@pattern_rule("division-of-one", ("Div", 1.0, "x"))
def division_of_one(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Div(1, x) -> Reciprocal(x)``."""
    del context
    x = match["x"]
    if x.type != node.output.type or not _is_float(x):
        return None
    return replaced(node, RECIPROCAL, NO_ATTRIBUTES, [x])


_GATE = ("HardSigmoid", "x", {"alpha": float(np.float32(1 / 6)), "beta": 0.5})


@pattern_rule("hard-swish-of-its-gate", ("Mul", "x", Part("gate", _GATE, sole=True)))
def hard_swish_of_its_gate(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Mul(x, HardSigmoid(x; 1/6, 1/2)) -> HardSwish(x)``, which ONNX defines so."""
    del context
    x = match["x"]
    if x.type.dtype is not DType.FLOAT32 or x.type != node.output.type:
        return None
    return replaced(node, HARD_SWISH, NO_ATTRIBUTES, [x], match.origin())


def number(value: Value | None) -> float | None:
    """Returns the number in a plain float constant of one element."""
    if value is None or value.constant is None or value.quant is not None:
        return None
    if value.constant.size != 1 or not value.type.dtype.is_float:
        return None
    return float(value.constant.numpy().reshape(()).astype(np.float64))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float
