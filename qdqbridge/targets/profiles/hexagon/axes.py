"""Operators of more than four axes, which Hexagon takes of fewer: they see rows meanwhile."""

from __future__ import annotations

import math
from dataclasses import replace

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.attributes import ReshapeAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.hexagon.operators import MOST_AXES, ROWS_ONLY

_OF_ROWS = frozenset({DENSE, LAYER_NORMALIZATION, *(BY_NAME[n] for n in ROWS_ONLY if n in BY_NAME)})
"""Operators that do the same with every row."""


@rule("leading-axes-as-one", *_OF_ROWS, MATMUL)
def as_rows(node: Node, context: RuleContext) -> Proposal:
    """``f(x) -> Reshape(f(Reshape(x)))`` of more than four axes: all leading ones as one."""
    del context
    kept = count = 2 if node.op is MATMUL else 1
    shapes = [static_shape(v.type.shape) for v in (*node.inputs[:count], node.output) if v]
    if not _equal_leading_axes(node, shapes, kept):
        return None
    name, whole = node.output.name, shapes[-1] or ()
    rows = [_in_rows(node.operand(index), kept) for index in range(count)]
    type_ = node.output.type.with_shape(_merged(whole, kept))
    operands = [*rows, *node.inputs[count:]]
    made = result(node.op, _along_rows(node), operands, type_, node.origin, f"{name}_of_rows")
    return Replace({node.output: _reshaped(made, whole, name)})


def _equal_leading_axes(node: Node, shapes: list[tuple[int, ...] | None], kept: int) -> bool:
    """True where everything has the same leading axes, and too many."""
    norm, last = LAYER_NORMALIZATION.of(node), shapes[-1]
    whole = node.operand(0).quant is not None and node.output.quant is not None
    if node.op in (DENSE, MATMUL) and not whole:
        return False  # products of floats are taken
    if last is None or len(last) <= MOST_AXES or (norm and norm.axis != len(last) - 1):
        return False
    return all(shape is not None and shape[:-kept] == last[:-kept] for shape in shapes)


def _along_rows(node: Node) -> Attributes:
    norm = LAYER_NORMALIZATION.of(node)
    return node.attributes if norm is None else replace(norm, axis=1)


def _merged(shape: tuple[int, ...], kept: int) -> tuple[int, ...]:
    return (math.prod(shape[:-kept]), *shape[-kept:])


def _in_rows(value: Value, kept: int) -> Value:
    """Returns a value with its leading axes as one, without a way back and forth."""
    shape = _merged(static_shape(value.type.shape) or (), kept)
    made = value.producer
    source = made.operand(0) if made is not None and made.op is RESHAPE else None
    if source is not None and source.type == value.type.with_shape(shape):
        return source
    return _reshaped(value, shape, f"{value.name}_rows")


def _reshaped(value: Value, shape: tuple[int, ...], name: str) -> Value:
    return result(RESHAPE, ReshapeAttrs(shape), [value], value.type.with_shape(shape), name=name)
