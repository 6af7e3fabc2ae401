"""Rules for the indices of a Gather: those that count from the end, and those that only count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.computed_shapes import extents_of
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import AxisAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.data_movement import RESHAPE, UNSQUEEZE
from qdqbridge.core.ops.elementwise import ADD, MUL, WHERE
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.core.rewrite.rule import Proposal, Reject, Replace, RuleContext, made_by, rule


@rule("negative-indices", GATHER)
def negative_indices(node: Node, context: RuleContext) -> Proposal:
    """``Gather(x, Where(Less(i, 0), i + extent, i)) -> Gather(x, i)``: ONNX counts so itself.

    Constant indices of a known extent count from the front.
    """
    del context
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


_DEPTH = 32
"""How many additions and the like are followed to what indices are."""


@rule("gather-of-all-in-order", GATHER)
def gather_of_all_in_order(node: Node, context: RuleContext) -> Proposal:
    """``Gather(x, [0, 1, 2, …]) -> Reshape(x)`` for a vector x: a view by strides, written out.

    PyTorch's exporter gives ``as_strided`` such indices: constants, or sums of a Range per axis.
    """
    del context
    x, index, attributes = node.operand(0), node.operand(1), node.attributes
    shape = index.type.shape
    if x.rank != 1 or not isinstance(attributes, AxisAttrs) or not shape or 0 in shape:
        return None
    if (x.quant is not None and not x.quant.params.per_tensor) or _symbolic_element_count(
        shape
    ) != _held(x):
        return None
    steps = _index_start_and_strides(index, _DEPTH)
    if steps is None or steps[0] != 0:
        return None
    left = [(e, s) for e, s in zip(shape, steps[1], strict=True) if e != 1]
    for place, (_, step) in enumerate(left, 1):
        known, names = _symbolic_element_count(tuple(extent for extent, _ in left[place:]))
        if names or step != known:  # only the first extent may be one that is not known
            return None
    target = tuple(extent if isinstance(extent, int) else -1 for extent in shape)
    if target.count(-1) > 1:
        return None
    output = node.output
    made = ReshapeAttrs(target)
    return Replace({output: result(RESHAPE, made, [x], output.type, node.origin, output.name)})


def _symbolic_element_count(shape: tuple[Dim, ...]) -> tuple[int, list[str]]:
    """Returns a number of elements: that of the known extents, and the names of the others."""
    known = math.prod(extent for extent in shape if isinstance(extent, int))
    return known, sorted(extent for extent in shape if isinstance(extent, str))


def _held(x: Value) -> tuple[int, list[str]] | None:
    """Returns the number of elements of a vector; of one that is reshaped, as its source has it."""
    reshape = made_by(x, RESHAPE)
    shape = x.type.shape if reshape is None else reshape.operand(0).type.shape
    return None if shape is None else _symbolic_element_count(shape)


def _index_start_and_strides(index: Value, depth: int) -> tuple[int, list[int]] | None:
    """Returns the first of integers that grow evenly along each axis, and by how much they grow.

    Along an axis of extent 1 they grow by anything.
    """
    shape, node = index.type.shape, index.producer
    if shape is None or depth == 0:
        return None
    if index.constant is not None:
        return _steps_of(index.constant)
    if node is None:
        return None
    if node.op.name == "Range":
        start, step = node.operand(0).constant, node.operand(2).constant
        return None if start is None or step is None else (int(start.numpy()), [int(step.numpy())])
    if node.op in (ADD, MUL):
        a, b = (
            _index_start_and_strides(value, depth - 1) for value in node.inputs if value is not None
        )
        if a is None or b is None:
            return None
        if node.op is MUL:
            factor = b[0] if not any(b[1]) else 0
            same = node.operand(0).type.shape == shape
            return (a[0] * factor, [step * factor for step in a[1]]) if factor and same else None
        steps = [0] * len(shape)
        for value, (_, own) in zip(node.inputs, (a, b), strict=True):
            extents = () if value is None else value.type.shape or ()
            for axis, (extent, step) in enumerate(zip(extents, own, strict=True), -len(own)):
                steps[axis] += 0 if extent == 1 else step
        return a[0] + b[0], steps
    if node.op in (UNSQUEEZE, RESHAPE) and node.operand(0).rank is not None:
        own = _index_start_and_strides(node.operand(0), depth - 1)
        before = node.operand(0).type.shape or ()
        kept = [axis for axis, extent in enumerate(shape) if extent != 1]
        left = [axis for axis, extent in enumerate(before) if extent != 1]
        if own is None or [shape[axis] for axis in kept] != [before[axis] for axis in left]:
            return None
        found = dict(zip(kept, (own[1][axis] for axis in left), strict=True))
        return own[0], [found.get(axis, 0) for axis in range(len(shape))]
    return None


def _steps_of(constant: Constant) -> tuple[int, list[int]] | None:
    array: NDArray[Any] = constant.numpy()
    if not array.size or array.dtype.kind != "i":
        return None
    first, steps = int(array.flat[0]), list[int]()
    found: NDArray[Any] = np.full((1,) * array.ndim, first, np.int64)
    for axis, extent in enumerate(array.shape):
        origin = [0] * array.ndim
        origin[axis] = min(1, extent - 1)
        steps.append(int(array[tuple(origin)]) - first)
        places: NDArray[Any] = np.asarray(range(extent), np.int64) * steps[-1]
        found = found + np.expand_dims(places, [a for a in range(array.ndim) if a != axis])
    return (first, steps) if np.array_equal(found, array) else None
