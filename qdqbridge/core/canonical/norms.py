"""Rules for norms whose scale and offset stand apart from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
)
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_NORMS = frozenset(
    (LAYER_NORMALIZATION, RMS_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION)
)
_ROWS = frozenset((LAYER_NORMALIZATION, RMS_NORMALIZATION))
_GAMMA, _BETA = 1, 2


@rule("norm-without-offset", LAYER_NORMALIZATION)
def norm_without_offset(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, gamma, 0) -> LayerNormalization(x, gamma)``."""
    del context
    beta = node.optional(_BETA)
    if beta is None or not _all(beta, 0):
        return None
    return Replace({node.output: _normalized(node, node.inputs[:_BETA], node)})


@rule("scale-into-norm", MUL)
def scale_into_norm(node: Node, context: RuleContext) -> Proposal:
    """``Mul(norm(x, 1), gamma) -> norm(x, gamma)`` for a constant gamma."""
    for norm, other in _sides(node, context):
        beta = norm.optional(_BETA)
        if not _all(norm.operand(_GAMMA), 1) or (beta is not None and not _all(beta, 0)):
            continue
        gamma = _as_operand(norm, other)
        if gamma is not None:
            operands = [norm.operand(0), gamma, *norm.inputs[_BETA:]]
            return Replace({node.output: _normalized(norm, operands, node)})
    return None


@rule("offset-into-norm", ADD)
def offset_into_norm(node: Node, context: RuleContext) -> Proposal:
    """``Add(norm(x, gamma, 0), beta) -> norm(x, gamma, beta)`` for a constant beta."""
    for norm, other in _sides(node, context):
        old = norm.optional(_BETA)
        if norm.op is RMS_NORMALIZATION or (old is not None and not _all(old, 0)):
            continue
        beta = _as_operand(norm, other)
        if beta is not None:
            operands = [norm.operand(0), norm.operand(_GAMMA), beta]
            return Replace({node.output: _normalized(norm, operands, node)})
    return None


def _normalized(norm: Node, operands: Sequence[Value | None], last: Node) -> Value:
    origin = norm.origin if norm is last else norm.origin.joined(last.origin)
    output = last.output
    return result(norm.op, norm.attributes, operands, output.type, origin, output.name)


def _sides(node: Node, context: RuleContext) -> list[tuple[Node, Value]]:
    """Returns a float norm that only ``node`` reads, and what ``node`` does to it."""
    found: list[tuple[Node, Value]] = []
    for index in (0, 1):
        value = node.operand(index)
        norm = value.producer
        if norm is None or norm.op not in _NORMS or value.quant is not None:
            continue
        if context.sole_reader(value) is node and value.type == node.output.type:
            found.append((norm, node.operand(1 - index)))
    return found


def _as_operand(norm: Node, value: Value) -> Value | None:
    """Returns a factor or offset as the norm's own operand; None where it is none."""
    gamma, rank = norm.operand(_GAMMA), norm.output.rank
    extents = static_shape(gamma.type.shape)
    if value.constant is None or value.quant is not None or extents is None or rank is None:
        return None
    if value.type.dtype is not gamma.type.dtype:
        return None
    own = value.constant.shape
    rows = norm.op in _ROWS
    wanted = extents if rows else (*extents, *([1] * (rank - 2)))
    if len(own) > rank or (1,) * (rank - len(own)) + own != (1,) * (rank - len(wanted)) + wanted:
        return None
    shaped = value.constant.map(lambda array: array.reshape(extents), shape=extents)
    return constant(shaped, None, value.name)


def _all(value: Value, number: int) -> bool:
    """True for a plain constant of equal numbers."""
    data = value.constant
    plain = data is not None and isinstance(value.type, TensorType)
    return plain and data is not None and bool(np.all(data.numpy() == number))
