"""Gelu that a graph writes out step by step, with roundings in between, as one operator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.attributes import GeluAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.elementwise import ADD, DIV, MUL
from qdqbridge.core.ops.unary import ERF, GELU
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_STEPS = 10
"""Operators that a Gelu is made of, conversions among them, and some to spare."""
_AT = np.linspace(-6, 6, 193)
"""Where a chain of operators is compared with Gelu."""
_NEAR = 2e-3
"""How far apart they may be: constants are rounded to 8 bits in some files."""
_WANTED = GELU.compute(GeluAttrs(), [_AT])[0]
_PLAIN = frozenset((DIV, MUL, ADD, ERF))


@rule("gelu-in-whole")
def whole_gelus(node: Node, context: RuleContext) -> Proposal:
    """``Mul(x, Add(Erf(Div(x, sqrt 2)), 1)) / 2 -> Gelu(x)``, in whatever order, rounded once."""
    del context
    if not _has_erf(node):
        return None
    root = _root(node)
    found = _find_gelu_result(root, _WANTED) if root.quant is not None else None
    if found is None or found[0].quant is None:
        return None  # the backend takes no Gelu of floats either
    end, rounded = found
    assert end.producer is not None
    value = result(GELU, GeluAttrs(), [root], end.type, end.producer.origin, end.name)
    cost = Note("no-erf", node.name, f"Gelu is rounded once, not {rounded + 1} times")
    return Replace({end: value}, (cost,) if rounded else ())


def _has_erf(node: Node) -> bool:
    if isinstance(node.attributes, CompositionAttrs):
        return any(step.op is ERF for step in node.attributes.steps)
    return node.op is ERF


def _root(node: Node) -> Value:
    """Returns what is scaled in front of an Erf, before any conversion of it."""
    value = node.operand(0)
    for _ in range(_STEPS):
        made = value.producer
        if made is None or (made.op.flow is not Flow.CONVERT and not _scales(made)):
            return value
        if made.op.flow is Flow.CONVERT and made.operand(0).constant is not None:
            return value
        if made.op.flow is Flow.CONVERT and len(made.operand(0).users) == 1:
            return value  # nothing else reads it: it is the operand itself that is converted
        value = made.operand(0)
    return value


def _scales(node: Node) -> bool:
    return node.op in (DIV, MUL) and _real_scalar(node.inputs[1]) is not None


def _real_scalar(value: Value | None) -> NDArray[Any] | None:
    """Returns the real number that a constant is, dequantized or not; None for other values."""
    made = None if value is None else value.producer
    if made is not None and made.op.flow is Flow.CONVERT:
        value = made.inputs[0]
    if value is None or value.constant is None or value.constant.size != 1:
        return None
    array = value.constant.numpy()
    real = array if value.quant is None else dequantize(array, value.quant.params)
    return real.astype(np.float64).reshape(())


def _find_gelu_result(root: Value, wanted: NDArray[Any]) -> tuple[Value, int] | None:
    """Returns the value behind ``root`` that is its Gelu, and how often it is rounded before."""
    known: dict[Value, NDArray[Any]] = {root: _AT}
    pending, rounded = [root], 0
    for _ in range(_STEPS):
        if not pending:
            return None
        for node, _ in list(pending.pop(0).users):
            if node.output in known:
                continue
            array = _computed(node, known)
            if array is None:
                continue
            known[node.output] = array
            if np.abs(array - wanted).max() < _NEAR and node.op.flow is not Flow.CONVERT:
                return node.output, rounded
            rounded += node.output.quant is not None
            pending.append(node.output)
    return None


def _computed(node: Node, known: dict[Value, NDArray[Any]]) -> NDArray[Any] | None:
    """Returns what a node makes of the real numbers that are known; None where it needs others."""
    whole = isinstance(node.attributes, CompositionAttrs)
    if not (whole or node.op.flow is Flow.CONVERT or node.op in _PLAIN):
        return None
    operands: list[NDArray[Any]] = []
    for value in node.inputs:
        array = _real_scalar(value) if value not in known else known[value]
        if array is None:
            return None
        operands.append(array)
    if node.op.flow is Flow.CONVERT:
        return operands[0]
    with np.errstate(all="ignore"):
        (array,) = node.op.compute(node.attributes, operands)
    return array if array.dtype == DType.FLOAT64.numpy and array.shape == _AT.shape else None
