"""Rules for operators of one operand that a file spells as the very same float operations."""

from __future__ import annotations

import numpy as np

from qdqbridge.canonical.build import result
from qdqbridge.canonical.rule import Proposal, Replace, Scope, made_by, rule
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.attributes import ClipAttrs, HardSigmoidAttrs
from qdqbridge.ops.table import BY_NAME

_SWISH = (float(np.float32(1 / 6)), 0.5)


@rule("division-of-one", "Div")
def division_of_one(node: Node, scope: Scope) -> Proposal:
    """``Div(1, x) -> Reciprocal(x)``."""
    del scope
    x = node.operand(1)
    if number(node.operand(0)) != 1.0 or x.type != node.output.type or not _is_float(x):
        return None
    output = node.output
    value = result(BY_NAME["Reciprocal"], NO_ATTRIBUTES, [x], output.type, node.origin, output.name)
    return Replace({output: value})


@rule("hard-sigmoid-of-steps", "Clip")
def hard_sigmoid_of_steps(node: Node, scope: Scope) -> Proposal:
    """``Clip(Add(Mul(x, alpha), beta), 0, 1) -> HardSigmoid(x)``."""
    add = made_by(node.operand(0), "Add")
    if node.attributes != ClipAttrs(0.0, 1.0) or add is None or not _is_float(node.output):
        return None
    scaled, beta = _and_number(add)
    times = made_by(scaled, "Mul")
    if times is None or beta is None or any(_leaves(n, scope) for n in (add, times)):
        return None
    x, alpha = _and_number(times)
    if x is None or alpha is None or x.type != node.output.type:
        return None
    origin = times.origin.joined(add.origin).joined(node.origin)
    attributes, output = HardSigmoidAttrs(alpha, beta), node.output
    value = result(BY_NAME["HardSigmoid"], attributes, [x], output.type, origin, output.name)
    return Replace({output: value})


@rule("hard-swish-of-a-gate", "Mul")
def hard_swish_of_a_gate(node: Node, scope: Scope) -> Proposal:
    """``Mul(x, HardSigmoid(x, 1/6, 1/2)) -> HardSwish(x)``."""
    for index in (0, 1):
        x, gate = node.operand(index), made_by(node.operand(1 - index), "HardSigmoid")
        if gate is None or gate.operand(0) is not x or _leaves(gate, scope):
            continue
        given = gate.attributes
        if not isinstance(given, HardSigmoidAttrs) or (given.alpha, given.beta) != _SWISH:
            continue
        if x.type != node.output.type or not _is_float(x):
            continue
        origin, output = gate.origin.joined(node.origin), node.output
        value = result(BY_NAME["HardSwish"], NO_ATTRIBUTES, [x], output.type, origin, output.name)
        return Replace({output: value})
    return None


def number(value: Value | None) -> float | None:
    """Returns the number in a plain float constant of one element."""
    if value is None or value.constant is None or value.quant is not None:
        return None
    if value.constant.size != 1 or not value.type.dtype.is_float:
        return None
    return float(value.constant.numpy().reshape(()).astype(np.float64))


def _and_number(node: Node) -> tuple[Value | None, float | None]:
    """Returns the operand of a commutative node that is no number, and the number."""
    for index in (0, 1):
        found = number(node.operand(index))
        other = node.operand(1 - index)
        if found is not None and (node.operand(index).rank or 0) <= (other.rank or 0):
            return other, found
    return None, None


def _leaves(node: Node, scope: Scope) -> bool:
    """True where somebody else reads a result, so that it is computed anyway."""
    return scope.sole_reader(node.output) is None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float
