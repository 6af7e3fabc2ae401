"""Rules for norms whose scale and offset stand apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
)
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, pattern_rule, replaced

_ROWS = (LAYER_NORMALIZATION, RMS_NORMALIZATION)
_NORMS = tuple(op.name for op in (*_ROWS, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION))
_NORM = Part("norm", (_NORMS, "x", Part("gamma", constant=True), "beta?"), sole=True)
_OTHER = Part("other", constant=True)
_BETA = 2


@pattern_rule("norm-without-offset", ("LayerNormalization", "x", "gamma", "beta"))
def norm_without_offset(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, gamma, 0) -> LayerNormalization(x, gamma)``."""
    del context
    if not _all(match["beta"], 0):
        return None
    return replaced(node, node.op, node.attributes, node.inputs[:_BETA])


@pattern_rule("scale-into-norm", ("Mul", _NORM, _OTHER))
def scale_into_norm(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Mul(norm(x, gamma), c) -> norm(x, gamma * c)`` for a constant c."""
    del context
    norm, factor = match.node("norm"), _of_its_axes(match)
    if factor is None or not _has_no_offset(match):
        return None
    gamma = match["gamma"].constant
    assert gamma is not None  # the pattern says so
    scaled = constant(Constant.of(gamma.numpy() * factor), None, match["other"].name)
    return _normalized(node, match, [norm.operand(0), scaled, *norm.inputs[_BETA:]])


@pattern_rule("offset-into-norm", ("Add", _NORM, _OTHER))
def offset_into_norm(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(norm(x, gamma, 0), beta) -> norm(x, gamma, beta)`` for a constant beta."""
    del context
    norm, offset = match.node("norm"), _of_its_axes(match)
    if norm.op is RMS_NORMALIZATION or offset is None or not _has_no_offset(match):
        return None
    beta = constant(Constant.of(offset), None, match["other"].name)
    return _normalized(node, match, [*norm.inputs[:_BETA], beta])


def _normalized(node: Node, match: PatternMatch, operands: Sequence[Value | None]) -> Replace:
    norm = match.node("norm")
    return replaced(node, norm.op, norm.attributes, operands, match.origin())


def _has_no_offset(match: PatternMatch) -> bool:
    beta = match.values.get("beta")
    return beta is None or _all(beta, 0)


def _of_its_axes(match: PatternMatch) -> NDArray[Any] | None:
    """Returns the other constant as one of the shape of gamma; None where it varies elsewhere."""
    norm, gamma, other = match.node("norm"), match["gamma"], match["other"]
    extents, rank, data = static_shape(gamma.type.shape), norm.output.rank, other.constant
    if data is None or other.quant is not None or norm.output.quant is not None:
        return None
    if extents is None or rank is None or other.type.dtype is not gamma.type.dtype:
        return None
    own = data.shape
    varying = extents if norm.op in _ROWS else (*extents, *([1] * (rank - 2)))
    if len(own) > rank:
        return None
    own, wanted = ((1,) * (rank - len(shape)) + shape for shape in (own, varying))
    if any(a not in (1, b) for a, b in zip(own, wanted, strict=True)):
        return None
    return np.broadcast_to(data.numpy().reshape(own), wanted).reshape(extents)


def _all(value: Value, number: int) -> bool:
    """True for a plain constant of equal numbers."""
    data = value.constant
    plain = data is not None and isinstance(value.type, TensorType)
    return plain and data is not None and bool(np.all(data.numpy() == number))
