"""Softmax over several axes, as ONNX had it before opset 13: one over one axis of a matrix."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import AxisAttrs, ReshapeAttrs, SoftmaxAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE
from qdqbridge.core.ops.softmax import LOG_SOFTMAX, SOFTMAX
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    pattern_rule,
    replaced,
    rule,
)


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


_ROWS = ("Reshape", "Flatten")


@pattern_rule(
    "softmax-of-rows",
    ("Reshape", Part("soft", (("Softmax", "LogSoftmax"), (_ROWS, "x")), sole=True)),
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
