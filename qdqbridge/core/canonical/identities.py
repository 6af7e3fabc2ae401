"""Rules for operators that give back what they take: by their attributes, or because two undo."""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops import resize
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    DepthSpaceAttrs,
    PadAttrs,
    PoolAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
)
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    TILE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.pooling import MAX_POOL
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import PAD, SLICE, SPLIT
from qdqbridge.core.ops.unary import NEG
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule


@rule(
    "moves-nothing", TILE, PAD, SLICE, SPLIT, CONCAT, SQUEEZE, UNSQUEEZE, MAX_POOL,
    DEPTH_TO_SPACE, SPACE_TO_DEPTH, RESIZE,
)  # fmt: skip
def moves_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Tile(x, 1) -> x``; so a Pad by 0, a Slice of all, a Resize to the same extents and others.

    Only where x has the type of the result: rounding into another one is no move.
    """
    del context
    x = node.inputs[0] if node.inputs else None
    if x is None or len(node.outputs) != 1 or not _gives_back(node, x):
        return None
    same = x.quant is node.output.quant is None and x.type.dtype is node.output.type.dtype
    if not same and (x.quant is None or node.output.quant is None):
        return None
    if x.quant is not None and node.output.quant is not None:
        same = x.quant.params == node.output.quant.params
    return Replace({node.output: x}) if same else None


@rule("negated-twice", NEG, "Not")
def negated_twice(node: Node, context: RuleContext) -> Proposal:
    """``Neg(Neg(x)) -> x``, and ``Not(Not(x)) -> x``: signs flip back, of NaN and of zero too.

    Not where one of them rounds into a quantized type.
    """
    del context
    inner = made_by(node.operand(0), node.op)
    if inner is None:
        return None
    x, output = inner.operand(0), node.output
    if any(value.quant is not None for value in (x, inner.output, output)):
        return None
    return Replace({output: x})


def _gives_back(node: Node, x: Value) -> bool:
    match node.attributes:
        case TileAttrs(repeats):
            return set(repeats) <= {1}
        case PadAttrs(pads):
            return not any(pads)
        case SliceAttrs():
            return _takes_all(node.attributes, x)
        case AxesAttrs(axes):
            return not axes
        case DepthSpaceAttrs(block_size):
            return block_size == 1
        case PoolAttrs(kernel_shape, strides, _, pads):
            return {*kernel_shape, *strides} == {1} and not any(pads)
        case ResizeAttrs():
            return _keeps_extents(node.attributes, x)
        case SplitAttrs(_, sizes):
            return len(sizes) == 1
        case _:
            return node.op is CONCAT and len(node.inputs) == 1


def _takes_all(given: SliceAttrs, x: Value) -> bool:
    shape = x.type.shape
    if shape is None:
        return False
    for start, end, axis, step in zip(
        given.starts, given.ends, given.axes, given.steps, strict=True
    ):
        extent = shape[axis]
        whole = isinstance(extent, int) and end >= extent
        if start != 0 or step != 1 or not (whole or end >= ENDLESS):
            return False
    return True


ENDLESS = 2**31 - 1
"""An end of a Slice that no extent reaches: ONNX's text names it, and every larger one."""
_LAST, BEFORE_ALL = 2**63 - 1, -(2**63)


@rule("slice-to-the-end", SLICE)
def slice_to_the_end(node: Node, context: RuleContext) -> Proposal:
    """``Slice(x, ends=2147483647) -> Slice(x, ends=9223372036854775807)``: to the end, one way.

    Whatever number a file writes for what no extent reaches; so the begin of a Slice backwards, and
    below zero the end of one backwards. One that begins before every axis begins at 0.
    """
    del context
    given = node.record(SliceAttrs)
    rows = [_bounds(*row) for row in zip(given.starts, given.ends, given.steps, strict=True)]
    starts, ends = tuple(start for start, _ in rows), tuple(end for _, end in rows)
    if (starts, ends) == (given.starts, given.ends):
        return None
    output, attributes = node.output, replace(given, starts=starts, ends=ends)
    value = result(SLICE, attributes, node.inputs, output.type, node.origin, output.name)
    return Replace({output: value})


def _bounds(start: int, end: int, step: int) -> tuple[int, int]:
    if step > 0:
        return 0 if start <= -ENDLESS else start, _LAST if end >= ENDLESS else end
    return _LAST if start >= ENDLESS else start, BEFORE_ALL if end <= -ENDLESS else end


def _keeps_extents(given: ResizeAttrs, x: Value) -> bool:
    """True where every factor is 1, whatever the mode."""
    if given.coordinate_transformation_mode == "tf_crop_and_resize":
        return False
    if given.scales is not None:
        return set(given.scales) <= {1.0}
    shape = static_shape(x.type.shape)
    return shape is not None and resize.sizes(given, shape) == shape
