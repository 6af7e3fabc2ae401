"""Resizes that TFLite has not: to the nearest element in other ways than its three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import AxisAttrs, ResizeAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Proposal, Replace, Rule, RuleContext, rule
from qdqbridge.tflite_io.writer.rows.windows import resize_flags

Number = TypeVar("Number", int, float)
_IMAGE = 4
_LARGEST = 1 << 24
"""Up to which float32 counts."""


@rule("nearest-by-index", "Resize")
def nearest_by_index(node: Node, context: RuleContext) -> Proposal:
    """``Resize(x; nearest) -> Gather(Gather(x; rows); columns)`` where TFLite takes other ones."""
    del context
    attributes, x, output = node.attributes, node.operand(0), node.output
    given, made = x.type.shape, output.type.shape
    if not isinstance(attributes, ResizeAttrs) or attributes.mode != "nearest":
        return None
    if given is None or made is None or len(given) != _IMAGE or given[1] != made[1]:
        return None
    if attributes.roi or resize_flags(attributes, given, made) is not None:
        return None
    for axis in (2, 3):
        old, new = given[axis], made[axis]
        if isinstance(old, str) or isinstance(new, str) or not 0 < max(old, new) < _LARGEST:
            return None
    value = x
    for axis in (2, 3):
        places = _places(attributes, axis, given[axis], made[axis])
        if np.array_equal(places, np.arange(len(places))) and given[axis] == made[axis]:
            continue
        assert value.type.shape is not None
        shape = tuple(made[a] if a == axis else e for a, e in enumerate(value.type.shape))
        index = constant(Constant.of(places), None, "")
        type_ = value.type.with_shape(shape)
        value = result(BY_NAME["Gather"], AxisAttrs(axis), [value, index], type_, node.origin)
    if value is x:
        return None
    value.name, value.type = output.name, output.type
    return Replace({output: value})


def _places(attributes: ResizeAttrs, axis: int, old: object, new: object) -> np.ndarray:
    """Returns which element along an axis each result takes: those of a ramp."""
    assert isinstance(old, int) and isinstance(new, int)
    shape = tuple(old if a == axis else 1 for a in range(_IMAGE))
    along = replace(
        attributes,
        scales=None if attributes.scales is None else _only(attributes.scales, axis, 1.0),
        sizes=None if attributes.sizes is None else _only(attributes.sizes, axis, 1),
    )
    ramp = np.arange(old, dtype=np.float32).reshape(shape)
    values = [Value(TensorType(DType.FLOAT32, shape))]
    row = Node(BY_NAME["Resize"], along, values, [Value(TensorType(DType.FLOAT32, None))])
    return np.asarray(evaluate_node(row, [ramp])[0]).reshape(-1).astype(np.int64)


def _only(numbers: Sequence[Number], axis: int, rest: Number) -> tuple[Number, ...]:
    return tuple(number if a == axis else rest for a, number in enumerate(numbers))


RULES: tuple[Rule, ...] = (nearest_by_index,)
