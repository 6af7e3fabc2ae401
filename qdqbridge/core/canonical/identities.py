"""Rules for what is superfluous: operators that give back what they take, values twice there."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import Shape, static_shape
from qdqbridge.core.ops import resize
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    DepthSpaceAttrs,
    PadAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
)
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    TILE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.elementwise import CONCAT, DIV, MUL, SUB
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL, GLOBAL_MAX_POOL, MAX_POOL
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MEAN, REDUCE_MIN, REDUCE_SUM
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import PAD, SLICE, SPLIT
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.ops.unary import NEG
from qdqbridge.core.rewrite import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    replaced,
    rule,
    stored_behind,
)

# ---- identities ----------------------------------------------------------------------------------
# Rules for operators that give back what they take: by their attributes, or because two undo.


@rule(
    "moves-nothing", TILE, PAD, SLICE, SPLIT, CONCAT, SQUEEZE, UNSQUEEZE, MAX_POOL,
    DEPTH_TO_SPACE, SPACE_TO_DEPTH, RESIZE,
)  # fmt: skip
def moves_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Tile(x, 1) -> x``; so a Pad by 0, a Slice of all, a Resize to the same extents and others.

    Whatever it moves, where x has no element. Only where x has the type of the result: rounding
    into another one is no move.
    """
    del context
    x = node.inputs[0] if node.inputs else None
    if x is None or len(node.outputs) != 1:
        return None
    if not _gives_back(node, x) and (0 not in (x.type.shape or ()) or x.type != node.output.type):
        return None
    return Replace({node.output: x}) if _same_kind(x, node.output) else None


def _same_kind(x: Value, y: Value) -> bool:
    """True where a value has the element type of another, and its parameters."""
    if x.quant is None or y.quant is None:
        return x.quant is y.quant is None and x.type.dtype is y.type.dtype
    return x.quant.params == y.quant.params


@rule(
    "reduces-nothing", REDUCE_MAX, REDUCE_MEAN, REDUCE_MIN, REDUCE_SUM, "ReduceProd",
    GLOBAL_AVERAGE_POOL, GLOBAL_MAX_POOL,
)  # fmt: skip
def reduces_nothing(node: Node, context: RuleContext) -> Proposal:
    """``ReduceMean(x) -> x`` along axes of one element; a Squeeze of them where they go."""
    del context
    x, output, given = node.operand(0), node.output, node.attributes
    shape = x.type.shape
    if shape is None or not _same_kind(x, output) or (x.quant and not x.quant.params.per_tensor):
        return None
    if isinstance(given, ReduceAttrs):
        axes, kept = given.axes, given.keepdims
    elif node.op.name == "ReduceProd":
        stated = given.stated()
        if len(node.inputs) > 1 or stated.get("noop_with_empty_axes"):
            return None
        axes = tuple(axis % len(shape) for axis in stated.get("axes", range(len(shape))))
        kept = bool(stated.get("keepdims", 1))
    else:
        axes, kept = tuple(range(2, len(shape))), True
    if any(shape[axis] != 1 for axis in axes):
        return None
    if kept or not axes:
        return Replace({output: x})
    return replaced(node, SQUEEZE, AxesAttrs(tuple(sorted(axes))), [x])


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


_NEUTRAL: Mapping[Operator, int] = {SUB: 0, MUL: 1, DIV: 1}
"""What changes no bit as the second operand; a sum with 0 loses the sign of -0."""


@rule("computes-nothing", *_NEUTRAL)
def computes_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Mul(x, 1) -> x``, and so a Div by 1 and a Sub of 0, of what is not quantized."""
    del context
    x, other, output = node.operand(0), node.operand(1), node.output
    if any(value.quant is not None for value in (x, other, output)) or other.constant is None:
        return None
    shape, own = other.type.shape, x.type.shape
    if shape is None or own is None or x.is_constant or output.type != x.type:
        return None
    neutral = _NEUTRAL[node.op]
    if math.prod(static_shape(shape) or ()) > _FEW or (other.constant.numpy() != neutral).any():
        return None
    widens = len(shape) > len(own) or any(
        extent not in (1, mine) for extent, mine in zip(shape[::-1], own[::-1], strict=False)
    )
    # x - (-0) is x + 0, which makes 0 of -0.
    negative = neutral == 0 and np.signbit(other.constant.numpy()).any()
    return None if widens or negative else Replace({output: x})


_FEW = 1 << 12


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
        case PoolAttrs(kernel_shape, strides, _, pads) if not node.op.by_steps:
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
    # Of a crop the factors say nothing: it may show another part in the same extents.
    if given.coordinate_transformation_mode == "tf_crop_and_resize":
        return False
    if given.scales is not None:
        return set(given.scales) <= {1.0}
    shape = static_shape(x.type.shape)
    return shape is not None and resize.sizes(given, shape) == shape


# ---- What a file writes twice is there once: a conversion of a value, what a subgraph captures ---


_MANY = 64
"""Readers of one value that are compared one by one."""
_FEW_SHARED = 64


_RANDOM = frozenset(
    (
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
        "Multinomial", "Dropout", "If", "Loop", "Scan",
    )
)  # fmt: skip
"""What gives other numbers each time, or may hold what does."""


_TAKE_IN = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)
"""What computes in integers where a quantize takes its result."""


@rule("merge-equal")
def merge_equal(node: Node, context: RuleContext) -> Proposal:
    """``f(x), f(x) -> f(x)`` (idioms A23, A24), as optimizers of files do, but of what is random.

    Not where each may take in a quantize of its own.
    """
    name = node.op.name
    # What another domain's operator does nobody knows: it may count its calls.
    if name in _RANDOM or (name not in BY_NAME and "::" in name):
        return None
    first = node.inputs[0] if node.inputs else None
    if len(node.outputs) != 1 or first is None or first.constant is not None:
        return None
    if _takes_in(node, context):
        return None
    for count, (other, _) in enumerate(first.users):
        if other is node:
            return None
        if count == _MANY:
            break
        if _equal(node, other) and not _takes_in(other, context):
            return _merged(node, other)
    # Behind so many readers: what was met before, which may have been rewritten meanwhile.
    count = node.op.commuting
    operands = (*sorted(map(id, node.inputs[:count])), *map(_identity, node.inputs[count:]))
    key = node.op.name, repr(node.attributes), operands, node.output.type.with_shape(None)
    # The first of its kind is kept as long as the rule runs: it may be gone from the graph by now.
    other = context.shared.setdefault(key, node)
    if other is node:
        return None
    if other.linked and _equal(node, other) and not _takes_in(other, context):
        return _merged(node, other)
    context.shared[key] = node
    return None


def has_equal(node: Node) -> bool:
    """Returns whether another node computes the same, so that both become one."""
    first = node.operand(0)
    if len(node.outputs) != 1 or first.constant is not None:
        return False
    return any(other is not node and _equal(node, other) for other, _ in first.users)


def _takes_in(node: Node, context: RuleContext) -> bool:
    """True for an operator of quantized values that a quantize reads."""
    if node.op.flow not in _TAKE_IN or node.output.quant is not None:
        return False
    stored = (v is not None and (v.quant or stored_behind(v)) for v in node.inputs)
    return any(stored) and any(reader.op is QUANTIZE for reader in context.readers(node.output))


@rule("capture-once")
def capture_once(node: Node, context: RuleContext) -> Proposal:
    """``If(c, x, x) -> If(c, x)``: what a subgraph captures under two names it captures once.

    An initializer and an Identity of it, say, or two initializers of the same few elements.
    """
    del context
    own = len(node.inputs) - node.attributes.captured()
    captured, found = node.inputs[own:], dict[Hashable, int]()
    firsts = [found.setdefault(_identity(value), place) for place, value in enumerate(captured)]
    if len(found) == len(captured):
        return None
    once = node.attributes.captured_once(firsts)
    operands = [*node.inputs[:own], *(captured[first] for first in found.values())]
    outputs = [Value(output.type, output.name) for output in node.outputs]
    for output, old in zip(outputs, node.outputs, strict=True):
        output.declared, output.metadata = old.declared, old.metadata
    Node(node.op, once, operands, outputs, node.origin)
    return Replace(dict(zip(node.outputs, outputs, strict=True)))


def _identity(value: Value | None) -> Hashable:
    """Returns what is equal of one value, and of two constants of the same few elements."""
    if value is None or value.constant is None or value.constant.size > _FEW_SHARED:
        return value
    # By bits, so that -0 is not 0 and a NaN is itself.
    return value.type, value.constant.numpy().tobytes()


def _equal(node: Node, other: Node) -> bool:
    return (
        other.op is node.op
        and len(other.inputs) == len(node.inputs)
        and _same_operands(node, other)
        and other.attributes == node.attributes
        and repr(other.attributes) == repr(node.attributes)  # 0.0 == -0.0
        and len(other.outputs) == 1
        and other.output.type.with_shape(node.output.type.shape) == node.output.type
        and _agree(other.output.type.shape, node.output.type.shape)
    )


def _agree(a: Shape, b: Shape) -> bool:
    """True for shapes that one result may have, of which less may be known in one place."""
    if a is None or b is None or a == b:
        return True
    pairs = zip(a, b, strict=False)
    numbers = [pair for pair in pairs if all(isinstance(dim, int) for dim in pair)]
    return len(a) == len(b) and all(left == right for left, right in numbers)


def _merged(node: Node, other: Node) -> Replace:
    """Has both read as the one that comes first, with what is known of the shape of either."""
    shape, second = other.output.type.shape, node.output.type.shape
    if shape is None:
        shape = second
    elif second is not None:
        # A number says more than a name.
        shape = tuple(b if isinstance(b, int) else a for a, b in zip(shape, second, strict=True))
    if shape == other.output.type.shape:
        return Replace({node.output: other.output})
    type_ = other.output.type.with_shape(shape)
    value = result(node.op, node.attributes, other.inputs, type_, other.origin, other.output.name)
    return Replace({other.output: value, node.output: value})


def _same_operands(node: Node, other: Node) -> bool:
    """True for the same operands; those that may change places stand in any order."""
    left, count = list(other.inputs), min(node.op.commuting, len(node.inputs))
    for index, value in enumerate(node.inputs):
        places = range(max(count - index, 1))
        place = next((i for i in places if _same_operand(left[i], value)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_operand(a: Value | None, b: Value | None) -> bool:
    """True for one value, and for two constants of the same few elements."""
    if a is b:
        return True
    if a is None or b is None or a.constant is None or b.constant is None or a.type != b.type:
        return False
    return a.constant.size <= _FEW_SHARED and a.constant.same_bits(b.constant)
