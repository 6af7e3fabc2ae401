"""Rules that give changes of shape one form: files write the same reshape in many ways."""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.core.canonical.data_movement import moved_params
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import Dim, static_shape
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import (
    EXPAND,
    FLATTEN,
    RESHAPE,
    SQUEEZE,
    STEPS,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.selection import SLICE
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, made_by, rule

_ROWS = AxisAttrs(1)


@rule("reshape-nothing", RESHAPE, FLATTEN, EXPAND, TRANSPOSE, TILE)
def reshape_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x) -> x`` where the shape is the same; a Transpose that moves no axis too.

    A Reshape that copies every extent, or all but the one that is left, does so whatever their
    names in the file.
    """
    del context
    x, attributes = node.operand(0), node.attributes
    shape, target = x.type.shape, node.output.type
    if isinstance(attributes, TransposeAttrs):
        same = attributes.perm == tuple(range(len(attributes.perm)))
    elif isinstance(attributes, ReshapeAttrs) and attributes.shape is not None and shape:
        copied = len(_copied(node) or ()) + attributes.shape.count(-1)
        same = shape == target.shape or copied == len(attributes.shape) == len(shape)
    else:
        same = shape is not None and shape == target.shape
    if not same or x.type.with_shape(target.shape) != target:
        return None
    return Replace({node.output: x})


@rule("reshape-of-no-element", RESHAPE)
def reshape_of_no_element(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x, extents) -> const`` where an extent is 0 that x does not have at its place.

    Hosts would copy the extent of x in the place of that 0, and no element is left to move.
    """
    del context
    output, have = node.output, node.operand(0).type.shape
    shape = static_shape(output.type.shape)
    if shape is None or have is None:
        return None
    own = (*have, *[None] * len(shape))
    if all(dim != 0 or other == 0 for dim, other in zip(shape, own, strict=False)):
        return None
    data = Constant.of(np.zeros(shape, output.type.dtype.numpy))
    return Replace({output: Value(output.type, output.name, constant=data)})


@rule("flatten-is-reshape", FLATTEN)
def flatten_is_reshape(node: Node, context: RuleContext) -> Proposal:
    """``Flatten(x, axis) -> Reshape(x)`` along every axis but 1, which is a Flatten's own."""
    del context
    if node.attributes == _ROWS:
        return None
    target = reshape_between(node.operand(0), node.output)
    if target is None and node.attributes == AxisAttrs(0):
        target = (1, -1)
    return None if target is None else _as_reshape(node, "Reshape", ReshapeAttrs(target))


@rule("reshape-is-flatten", RESHAPE)
def reshape_is_flatten(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x) -> Flatten(x)`` where axis 0 stays and all others become one."""
    del context
    before, after = node.operand(0).type.shape, node.output.type.shape
    copied = _copied(node)
    if copied is None or before is None or after is None:
        return None
    if len(before) in (0, 2) or len(after) != 2 or 0 in (*before, *after):
        return None
    if before[0] != after[0] and 0 not in copied and not _keeps_first(before, after):
        return None
    return _as_reshape(node, "Flatten", _ROWS)


@rule("reshape-target", RESHAPE)
def reshape_target(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x, target) -> Reshape(x)`` with the one target that shapes written so share.

    An extent that x has at the same place is copied (0), so that it may change. What is left (-1)
    is the one that is unknown, or else the first extent, or where that is copied the last one that
    is not; all others are numbers. None is left of extents that may be 0: of nothing it would be 0.
    """
    del context
    copied = _copied(node)
    target = None if copied is None else reshape_between(node.operand(0), node.output, copied)
    if target is None or node.attributes == ReshapeAttrs(target):
        return None
    return _as_reshape(node, "Reshape", ReshapeAttrs(target))


def _copied(node: Node) -> frozenset[int] | None:
    """Returns the axes of which a Reshape says itself that they are copied.

    None for other operators, and where the target is known at run time only.
    """
    attributes = RESHAPE.of(node)
    if attributes is None or attributes.shape is None:
        return None
    zeros = () if attributes.allow_zero else enumerate(attributes.shape)
    return frozenset(index for index, dim in zeros if dim == 0)


def reshape_between(
    x: Value, y: Value, copied: frozenset[int] = frozenset()
) -> tuple[int, ...] | None:
    """Returns the target of a reshape of x to y, None where ONNX has none."""
    before, after = x.type.shape, y.type.shape
    if before is None or after is None or 0 in (*before, *after):
        return None
    same = {*copied, 0} if _keeps_first(before, after) else copied
    written = [
        0 if index in same else _extent(before, index, dim) for index, dim in enumerate(after)
    ]
    numbers = [index for index, dim in enumerate(written) if dim > 0]
    zeros = {index for index, dim in enumerate(written) if dim == 0}
    left = static_shape(tuple(dim for index, dim in enumerate(before) if index not in zeros))
    stated = math.prod(written[index] for index in numbers)
    if -1 not in written and numbers and left is not None and math.prod(left) == stated:
        written[numbers[0] if numbers[0] == 0 else numbers[-1]] = -1
    return tuple(written) if written.count(-1) <= 1 else None


def _keeps_first(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> bool:
    """True where all extents but the first have the same product, so that these are equal too.

    They may have two names, or one a name and the other the only number that fits.
    """
    a, b = static_shape(before[1:]), static_shape(after[1:])
    if a is None or b is None or not before or not after:
        return False
    return math.prod(a) == math.prod(b)


def _extent(before: tuple[Dim, ...], index: int, dim: Dim) -> int:
    if index < len(before) and before[index] == dim:
        return 0
    return dim if isinstance(dim, int) else -1


def _as_reshape(node: Node, name: str, attributes: Attributes) -> Replace:
    output = node.output
    value = result(
        BY_NAME[name], attributes, [node.operand(0)], output.type, node.origin, output.name
    )
    return Replace({output: value})


# ---- one after the other -----------------------------------------------------------------------


@rule("moved-twice", RESHAPE, FLATTEN, TRANSPOSE, UNSQUEEZE, SQUEEZE, SLICE)
def moved_twice(node: Node, context: RuleContext) -> Proposal:
    """``Transpose(Transpose(x)) -> Transpose(x)``; so Reshape, Squeeze, Unsqueeze, Slice.

    A Reshape needs no Squeeze or Unsqueeze before it.
    """
    del context
    inner = made_by(node.operand(0), node.op)
    if node.op in (RESHAPE, FLATTEN):
        found = (made_by(node.operand(0), op) for op in (RESHAPE, FLATTEN, UNSQUEEZE, SQUEEZE))
        inner = next(filter(None, found), None)
    attributes = _composed(node, inner) if inner is not None and inner.inputs else None
    if inner is None or attributes is None:
        return None
    x, output = inner.operand(0), node.output
    if (x.quant is None) != (output.quant is None):
        return None
    origin, name = inner.origin.joined(node.origin), output.name
    op = RESHAPE if isinstance(attributes, ReshapeAttrs) else node.op
    moved = Node(op, attributes, [x], [Value(output.type, name)], origin)
    if x.quant and output.quant and moved_params(moved, x.quant.params) != output.quant.params:
        return None
    return Replace({output: moved.output})


def _composed(node: Node, inner: Node) -> Attributes | None:
    """Returns the attributes of two data-movement operators as one."""
    a, b = inner.attributes, node.attributes
    if isinstance(a, TransposeAttrs) and isinstance(b, TransposeAttrs):
        return TransposeAttrs(tuple(a.perm[axis] for axis in b.perm))
    if isinstance(a, AxesAttrs) and isinstance(b, AxesAttrs):
        rank = inner.output.rank if node.op is UNSQUEEZE else inner.operand(0).rank
        return None if rank is None else _joined(node.op.name, a.axes, b.axes, rank)
    if isinstance(a, SliceAttrs) and isinstance(b, SliceAttrs):
        return _of_all_axes(a, b) if set(a.axes).isdisjoint(b.axes) else None
    if node.op in (RESHAPE, FLATTEN) and _is_static_reshape(inner) and _is_static_reshape(node):
        target = reshape_between(inner.operand(0), node.output)
        return None if target is None else ReshapeAttrs(target)
    return None


def _of_all_axes(a: SliceAttrs, b: SliceAttrs) -> SliceAttrs:
    cuts = [cut for s in (a, b) for cut in zip(s.axes, s.starts, s.ends, s.steps, strict=True)]
    axes, starts, ends, steps = zip(*sorted(cuts), strict=True)
    return SliceAttrs(starts, ends, axes, steps)


def _is_static_reshape(node: Node) -> bool:
    return node.op is not RESHAPE or _copied(node) is not None


def _joined(name: str, first: tuple[int, ...], then: tuple[int, ...], rank: int) -> AxesAttrs:
    """Returns the axes of two Squeezes or two Unsqueezes.

    Args:
        name: Which of them.
        first: Axes of the one that comes first.
        then: Axes of the other.
        rank: Of the first operand of a Squeeze, of the first result of an Unsqueeze.
    """
    if name == "Squeeze":
        left = [axis for axis in range(rank) if axis not in first]
        return AxesAttrs(tuple(sorted((*first, *(left[axis] for axis in then)))))
    kept = [axis for axis in range(rank + len(then)) if axis not in then]
    return AxesAttrs(tuple(sorted((*then, *(kept[axis] for axis in first)))))


# ---- The rule for blocks of depth that become space, and the other way round


@rule("blocks-of-depth", RESHAPE)
def blocks_of_depth(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(Transpose(Reshape(x))) -> DepthToSpace(x)`` or ``SpaceToDepth(x)``.

    One extent may be open beside the batch: a Reshape leaves no choice for one that is left.
    """
    del context
    turn = made_by(node.operand(0), TRANSPOSE)
    split = None if turn is None else made_by(turn.operand(0), RESHAPE)
    if turn is None or split is None:
        return None
    x, middle, after = split.operand(0), split.output.type.shape, node.output.type.shape
    image = x.type.shape and x.type.shape[1:]
    if image is None or len(image) != 3 or middle is None or after is None or len(middle) != 6:
        return None
    # The extents of a Reshape are compared by number: with two open ones, others may be meant than
    # here.
    if sum(isinstance(extent, str) for extent in image) > 1:
        return None
    known = tuple(extent if isinstance(extent, int) else None for extent in (0, *image))
    for (name, mode), steps in STEPS.items():
        size = middle["".join(steps.split).index("y")]
        if turn.attributes != TransposeAttrs(steps.perm) or not isinstance(size, int) or not size:
            continue
        wanted = steps.between(known, size), steps.result(known, size)
        if _fits(middle[1:], wanted[0][1:]) and _fits(after[1:], wanted[1][1:]):
            attributes, output = DepthSpaceAttrs(size, mode), node.output
            origin = split.origin.joined(turn.origin).joined(node.origin)
            made = result(BY_NAME[name], attributes, [x], output.type, origin, output.name)
            return Replace({output: made})
    return None


def _fits(shape: tuple[Dim, ...], wanted: tuple[int | None, ...]) -> bool:
    """True where every extent is the wanted one, and the one that is not known is open."""
    return len(shape) == len(wanted) and all(
        isinstance(a, str) if b is None else a == b for a, b in zip(shape, wanted, strict=True)
    )
