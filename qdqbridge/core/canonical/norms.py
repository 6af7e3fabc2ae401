"""Rules for norms whose scale and offset stand apart from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import Dim, TensorType, static_shape
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    NormAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE
from qdqbridge.core.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    LOG_SOFTMAX,
    RMS_NORMALIZATION,
    SOFTMAX,
    deviation,
)
from qdqbridge.core.rewrite import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    pattern_rule,
    replaced,
    rule,
    stored_behind,
)

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


# ---- Layer norms that a file writes out step by step, as one operator
#
# Exporters of opsets before 17 write ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * g + b``
# as up to nine operators. Rounded to codes after each step that would be a poor layer norm: the
# square of a small number has no code. As one operator it is rounded once.

_MEAN = Part("mean", ("ReduceMean", "x", {"keepdims": True}))
_SQUARE = AnyOf((("Mul", "c", "c"), ("Pow", "c", 2.0)))
_VARIANCE = Part("variance", ("ReduceMean", _SQUARE, {"keepdims": True}))


@pattern_rule(
    "layer-norm-of-steps",
    ("Div", Part("c", ("Sub", "x", _MEAN)), deviation(_VARIANCE)),
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


# ---- Softmax over several axes, as ONNX had it before opset 13: one over one axis of a matrix


@rule("softmax-of-a-matrix", SOFTMAX, LOG_SOFTMAX)
def softmax_of_a_matrix(node: Node, context: RuleContext) -> Proposal:
    """``Softmax(x; several axes) -> Reshape(Softmax(Flatten(x)))``, as newer opsets write it.

    Where x has no element, it is x.
    """
    del context
    attributes, x = node.attributes, node.operand(0)
    if not isinstance(attributes, SoftmaxAttrs) or len(attributes.axes) < 2:
        return None
    shape = x.type.shape
    first = attributes.axes[0]
    if shape is not None and 0 in shape and x.type == node.output.type:
        return Replace({node.output: x})
    if shape is None or any(dim != 1 for dim in _others(shape, attributes.axes)):
        return None
    written = _unflatten_target(shape, first)
    if written is None:
        return None
    matrix = (_element_count(shape[:first]), _element_count(shape[first:]))
    flat = result(FLATTEN, AxisAttrs(first), [x], x.type.with_shape(matrix), node.origin)
    type_ = node.output.type.with_shape(matrix)
    soft = result(node.op, SoftmaxAttrs((1,)), [flat], type_, node.origin)
    back = ReshapeAttrs(written)
    name = node.output.name
    value = result(RESHAPE, back, [soft], node.output.type, node.origin, name)
    return Replace({node.output: value})


_MOST_ONES = 1 << 12


@rule("softmax-of-one-element", SOFTMAX, LOG_SOFTMAX)
def softmax_of_one_element(node: Node, context: RuleContext) -> Proposal:
    """``Softmax(dequantize(q)) -> 1`` along axes of one element; so of integers that are cast.

    Of other floats, NaN may be.
    """
    del context
    x, output, shape = node.operand(0), node.output, static_shape(node.operand(0).type.shape)
    axes = node.record(SoftmaxAttrs).axes
    cast = made_by(x, CAST)
    finite = stored_behind(x) or (cast is not None and not cast.operand(0).type.dtype.is_float)
    if shape is None or not finite or not isinstance(output.type, TensorType):
        return None
    if any(shape[axis] != 1 for axis in axes) or math.prod(shape) > _MOST_ONES:
        return None
    data = np.full(shape, int(node.op is SOFTMAX), output.type.dtype.numpy)
    return Replace({output: constant(Constant.of(data), None, output.name)})


_SOFTMAX_ROWS = ("Reshape", "Flatten")


@pattern_rule(
    "softmax-of-rows",
    ("Reshape", Part("soft", (("Softmax", "LogSoftmax"), (_SOFTMAX_ROWS, "x")), sole=True)),
)
def softmax_of_rows(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Reshape(Softmax(Reshape(x), last axis)) -> Softmax(x, last axis)`` for the shape of x.

    Importers of opsets before 13 write a softmax so, also over one axis.
    """
    del context
    soft, x, shape = match.node("soft"), match["x"], node.output.type.shape
    rank = soft.output.rank
    if rank is None or soft.attributes != SoftmaxAttrs((rank - 1,)):
        return None
    if shape is None or len(shape) < 2 or x.type.shape != shape or x.quant is not None:
        return None
    if soft.output.type.shape is None or soft.output.type.shape[-1] != shape[-1]:
        return None
    if not isinstance(shape[-1], int) or node.output.quant is not None:
        return None
    return replaced(node, soft.op, SoftmaxAttrs((len(shape) - 1,)), [x], soft.origin)


def _others(shape: tuple[Dim, ...], axes: tuple[int, ...]) -> list[Dim]:
    """Returns the extents behind the first axis that are not normalized."""
    return [dim for i, dim in enumerate(shape) if i > axes[0] and i not in axes]


def _element_count(dims: tuple[Dim, ...]) -> Dim:
    """Returns the number of elements; the one name among ones, a new one for unknown products."""
    number, names = 1, [dim for dim in dims if isinstance(dim, str)]
    for dim in dims:
        number *= dim if isinstance(dim, int) else 1
    if not names:
        return number
    return names[0] if len(names) == 1 and number == 1 else "*".join([str(number), *names])


def _unflatten_target(shape: tuple[Dim, ...], first: int) -> tuple[int, ...] | None:
    """Returns the target of a Reshape from the matrix to ``shape``, None where ONNX has none."""
    copied = first == 1  # then the matrix has axis 0 as it was
    unknown = [i for i, dim in enumerate(shape) if isinstance(dim, str) and not (copied and i == 0)]
    if len(unknown) > 1 or 0 in shape:
        return None
    return tuple(
        dim if isinstance(dim, int) else (0 if copied and i == 0 else -1)
        for i, dim in enumerate(shape)
    )
