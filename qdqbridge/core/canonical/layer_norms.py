"""Layer norms that a file writes out step by step, as one operator.

Exporters of opsets before 17 write ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * g + b`` as
up to nine operators. Rounded to codes after each step that would be a poor layer norm: the square
of a small number has no code. As one operator it is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import NormAttrs, ReduceAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.elementwise import ADD, DIV, MUL, POW, SUB
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.ops.unary import SQRT
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule

_GAMMA, _BETA = 1, 2


@rule("layer-norm-of-steps", DIV)
def layer_norm_of_steps(node: Node, context: RuleContext) -> Proposal:
    """``Div(c, Sqrt(ReduceMean(c * c) + e)) -> LayerNormalization(x)``, ``c = x - mean(x)``."""
    centre, root = node.operand(0), made_by(node.operand(1), SQRT)
    minus = made_by(centre, SUB)
    if root is None or minus is None or context.is_output(centre):
        return None
    square, epsilon = _offset(made_by(root.operand(0), ADD))
    variance, mean = made_by(square, REDUCE_MEAN), made_by(minus.operand(1), REDUCE_MEAN)
    if variance is None or mean is None or mean.operand(0) is not minus.operand(0):
        return None
    x, axis = minus.operand(0), _layer_norm_axis(mean)
    power = variance.operand(0).producer
    if (
        axis is None
        or _layer_norm_axis(variance) != axis
        or power is None
        or not _squares(power, centre)
    ):
        return None
    extents = (x.type.shape or ())[axis:]
    if not _is_float32(x) or not all(isinstance(extent, int) for extent in extents):
        return None
    unit = constant(Constant.of(np.ones([int(e) for e in extents], np.float32)), None, "")
    origin = mean.origin.joined(minus.origin)
    for step in (power, variance, root.operand(0).producer, root, node):
        origin = origin if step is None else origin.joined(step.origin)
    value = result(
        LAYER_NORMALIZATION,
        NormAttrs(axis, epsilon),
        [x, unit],
        node.output.type,
        origin,
        node.output.name,
    )
    return Replace({node.output: value})


@rule("scale-into-layer-norm", MUL)
def scale_into_layer_norm(node: Node, context: RuleContext) -> Proposal:
    """``Mul(LayerNormalization(x, g), c) -> LayerNormalization(x, g * c)``."""
    return _absorbed(node, context, _GAMMA)


@rule("offset-into-layer-norm", ADD)
def offset_into_layer_norm(node: Node, context: RuleContext) -> Proposal:
    """``Add(LayerNormalization(x, g), c) -> LayerNormalization(x, g, c)``."""
    return _absorbed(node, context, _BETA)


LAYER_NORMS = (layer_norm_of_steps, scale_into_layer_norm, offset_into_layer_norm)


def _absorbed(node: Node, context: RuleContext, index: int) -> Proposal:
    """Returns the layer norm before ``node`` with the other operand in its operand ``index``."""
    for norm, other in _sides(node):
        gamma, attributes = norm.operand(_GAMMA).constant, norm.attributes
        if context.sole_reader(norm.output) is not node or norm.optional(_BETA) is not None:
            continue
        if gamma is None or other.constant is None or not isinstance(attributes, NormAttrs):
            continue
        extents, added = gamma.shape, other.constant.numpy()
        if not _fits(added.shape, extents, norm.output.rank):
            continue
        wide = np.broadcast_to(added.reshape(added.shape[-len(extents) :]), extents)
        array = np.array(wide, np.float32)
        if index == _GAMMA:
            array *= gamma.numpy().astype(np.float32)
        taken = constant(Constant.of(array), None, other.name)
        operands = [norm.operand(0), taken]
        if index == _BETA:
            operands = [norm.operand(0), norm.operand(_GAMMA), taken]
        origin = norm.origin.joined(node.origin)
        value = result(
            LAYER_NORMALIZATION, attributes, operands, node.output.type, origin, node.output.name
        )
        return Replace({node.output: value})
    return None


def _sides(node: Node) -> Iterator[tuple[Node, Value]]:
    """Yields a layer norm that ``node`` reads, and its other operand."""
    for index in (0, 1):
        norm = made_by(node.operand(index), LAYER_NORMALIZATION)
        if norm is not None:
            yield norm, node.operand(1 - index)


def _fits(shape: tuple[int, ...], extents: tuple[int, ...], rank: int | None) -> bool:
    """True where a constant of ``shape`` varies along the normalized axes only."""
    if rank is None or len(shape) > rank or any(extent != 1 for extent in shape[: -len(extents)]):
        return False
    own = shape[-len(extents) :]
    return all(a in (1, b) for a, b in zip(reversed(own), reversed(extents), strict=False))


def _offset(add: Node | None) -> tuple[Value | None, float]:
    """Returns the operand of an Add that is not constant, and the number that is added."""
    for index in (0, 1):
        number = None if add is None else add.operand(index).constant
        if add is not None and number is not None and number.size == 1:
            return add.operand(1 - index), float(number.numpy().reshape(-1)[0])
    return None, 0.0


def _layer_norm_axis(mean: Node) -> int | None:
    """Returns the first of the last axes that a ReduceMean reduces and keeps."""
    attributes, rank = mean.attributes, mean.operand(0).rank
    if not isinstance(attributes, ReduceAttrs) or not attributes.keepdims or rank is None:
        return None
    axes = sorted(axis % rank for axis in attributes.axes)
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _squares(power: Node, value: Value) -> bool:
    """True for ``value * value`` and ``value ** 2``."""
    if power.op is MUL:
        return power.operand(0) is value and power.operand(1) is value
    exponent = power.operand(1).constant if power.op is POW else None
    if exponent is None or power.operand(0) is not value:
        return False
    return exponent.size == 1 and float(exponent.numpy().reshape(-1)[0]) == 2.0


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT32
