"""The rule for indices that count from the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.canonical.computed_shapes import extents_of
from qdqbridge.canonical.rule import Proposal, Reject, Replace, Scope, made_by, rule
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.ops.attributes import AxisAttrs
from qdqbridge.ops.build import constant, result
from qdqbridge.ops.elementwise import ADD, WHERE
from qdqbridge.ops.selection import GATHER


@rule("negative-indices", GATHER)
def negative_indices(node: Node, scope: Scope) -> Proposal:
    """``Gather(x, Where(Less(i, 0), i + extent, i)) -> Gather(x, i)``: ONNX counts so itself.

    Constant indices of a known extent count from the front.
    """
    del scope
    if node.operand(1).constant is not None:
        return _from_the_front(node)
    choice = made_by(node.operand(1), WHERE)
    test = None if choice is None else made_by(choice.operand(0), "Less")
    if choice is None or test is None:
        return None
    wrapped, index = choice.operand(1), choice.operand(2)
    if test.operand(0) is not index or not _is_zero(test.operand(1)):
        return None
    if not _is_wrapped(node, wrapped, index):
        return Reject("its negative indices are not counted from the end", (wrapped.name,))
    return _gathered(node, index)


def _gathered(node: Node, index: Value) -> Replace:
    operands, output = [node.operand(0), index], node.output
    value = result(node.op, node.attributes, operands, output.type, node.origin, output.name)
    return Replace({output: value})


def _from_the_front(node: Node) -> Proposal:
    index, extent = node.operand(1), _extent(node)
    if index.constant is None or not isinstance(extent, int):
        return None
    found: NDArray[Any] = index.constant.numpy()
    if found.dtype.kind != "i" or not (found < 0).any() or (found < -extent).any():
        return None
    moved = np.where(found < 0, found + found.dtype.type(extent), found).astype(found.dtype)
    return _gathered(node, constant(Constant.of(moved), None, index.name))


def _extent(node: Node) -> int | str | None:
    """Returns the extent of the axis that is gathered from."""
    shape, attributes = node.operand(0).type.shape, node.attributes
    known = shape is not None and isinstance(attributes, AxisAttrs)
    return shape[attributes.axis] if known else None  # type: ignore[union-attr, index] # known


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not value.constant.numpy().any()


def _is_wrapped(node: Node, wrapped: Value, index: Value) -> bool:
    """True where ``wrapped`` is ``index`` plus the extent of the axis that is gathered from."""
    extent, total = _extent(node), made_by(wrapped, ADD)
    if extent is None or total is None or index not in total.inputs:
        return False
    others = [v for v in total.inputs if v is not index and v is not None]
    return len(others) == 1 and extents_of(others[0]) == [extent]
