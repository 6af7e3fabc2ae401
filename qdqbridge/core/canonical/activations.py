"""Rules for operators of one operand that a file writes as the very same float operations."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import HardSigmoidAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.elementwise import DIV, MUL
from qdqbridge.core.ops.unary import HARD_SIGMOID, HARD_SWISH, RECIPROCAL
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule


@rule("division-of-one", DIV)
def division_of_one(node: Node, context: RuleContext) -> Proposal:
    """``Div(1, x) -> Reciprocal(x)``."""
    del context
    x = node.operand(1)
    if number(node.operand(0)) != 1.0 or x.type != node.output.type or not _is_float(x):
        return None
    output = node.output
    value = result(RECIPROCAL, NO_ATTRIBUTES, [x], output.type, node.origin, output.name)
    return Replace({output: value})


@rule("hard-swish-of-its-gate", MUL)
def hard_swish_of_its_gate(node: Node, context: RuleContext) -> Proposal:
    """``Mul(x, HardSigmoid(x; 1/6, 1/2)) -> HardSwish(x)``, which ONNX defines so."""
    for index in (0, 1):
        gate, x = made_by(node.operand(index), HARD_SIGMOID), node.operand(1 - index)
        if gate is None or gate.operand(0) is not x or context.sole_reader(gate.output) is not node:
            continue
        if x.type.dtype is not DType.FLOAT32 or x.type != node.output.type:
            continue
        if gate.attributes == HardSigmoidAttrs(float(np.float32(1 / 6)), 0.5):
            output, origin = node.output, gate.origin.joined(node.origin)
            value = result(HARD_SWISH, NO_ATTRIBUTES, [x], output.type, origin, output.name)
            return Replace({output: value})
    return None


def number(value: Value | None) -> float | None:
    """Returns the number in a plain float constant of one element."""
    if value is None or value.constant is None or value.quant is not None:
        return None
    if value.constant.size != 1 or not value.type.dtype.is_float:
        return None
    return float(value.constant.numpy().reshape(()).astype(np.float64))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float
