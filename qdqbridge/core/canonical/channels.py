"""Rules that carry transposes to channels-last down a graph, until something undoes them.

For graphs of frontends whose images are channels-last (TFLite): between two convolutions nothing
is left of that layout, however the values in between branch. They are no part of the canonical
form, because they move transposes of any graph, and the order in which floats are summed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from qdqbridge.core.canonical.identities import BEFORE_ALL, ENDLESS
from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import Dim, QuantType
from qdqbridge.core.ops.attributes import (
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import (
    constant,
    dequantized,
    inverse,
    permuted_operand,
    permuted_params,
    permuted_type,
    result,
    retyped,
)
from qdqbridge.core.ops.composition import COMPOSITION
from qdqbridge.core.ops.conversion import CAST, DEQUANTIZE, QUANTIZE, REQUANTIZE
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, TILE, TRANSPOSE
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.normalization import LOG_SOFTMAX, SOFTMAX
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MEAN, REDUCE_MIN, REDUCE_SUM
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT
from qdqbridge.core.ops.shapes import sliced
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, made_by, rule

_LAST = ((0, 2, 1), (0, 2, 3, 1), (0, 2, 3, 4, 1))


@rule("operator-before-transpose")
def operator_before_transpose(node: Node, context: RuleContext) -> Proposal:
    """``op(Transpose(x), Transpose(y), c) -> Transpose(op(x, y, c'))`` of channels-last x and y.

    Of elementwise operators, joins, paddings, slices, tiles and a softmax; a constant is transposed
    itself.
    """
    del context
    perm = _permutation(node)
    if perm is None or len(node.outputs) != 1 or node.output.rank != len(perm):
        return None
    if not _in_any_layout(node):
        return None
    operands: list[Value | None] = []
    for index, value in enumerate(node.inputs):
        # Indices have no layout.
        if value is not None and not node.op.is_data(index) and node.op is GATHER:
            operands.append(value)
            continue
        permuted = None if value is None else _permuted(value, perm)
        if value is not None and permuted is None:
            return None
        operands.append(permuted)
    if node.output.type.shape is None:
        return None
    back, output = inverse(perm), node.output
    attributes, type_ = permuted_attributes(node.attributes, back), permuted_type(output.type, back)
    inner = result(node.op, attributes, operands, type_, node.origin, output.name)
    return Replace({node.output: _transposed(inner, perm, node)})


@rule("reduce-before-transpose", REDUCE_MEAN, REDUCE_SUM, REDUCE_MAX, REDUCE_MIN)
def reduce_before_transpose(node: Node, context: RuleContext) -> Proposal:
    """``ReduceMean(Transpose(x)) -> ReduceMean(x)`` over the same axes; so sums and extremes."""
    del context
    perm, attributes = _permutation(node), node.attributes
    if perm is None or not isinstance(attributes, ReduceAttrs):
        return None
    x = _permuted(node.operand(0), perm)
    axes = permuted_attributes(attributes, inverse(perm))
    left = [perm[axis] for axis in range(len(perm)) if axis not in attributes.axes]
    if x is None:
        return None
    if attributes.keepdims:
        if node.output.type.shape is None:
            return None
        type_ = permuted_type(node.output.type, inverse(perm))
        inner = result(node.op, axes, [x], type_, node.origin, node.output.name)
        return Replace({node.output: _transposed(inner, perm, node)})
    # Without the reduced axes nothing says a layout any more: the others would change places.
    if left != sorted(left):
        return None
    output = node.output
    return Replace({output: result(node.op, axes, [x], output.type, node.origin, output.name)})


@rule("split-before-transpose", SPLIT)
def split_before_transpose(node: Node, context: RuleContext) -> Proposal:
    """``Split(Transpose(x)) -> Transpose(Split(x))``, for each part."""
    del context
    given, perm = node.attributes, _perm(node.operand(0))
    if perm is None or not isinstance(given, SplitAttrs) or len(node.inputs) != 1:
        return None
    x, back = _permuted(node.operand(0), perm), inverse(perm)
    if x is None or any(value.type.shape is None for value in node.outputs):
        return None
    parts = [Value(permuted_type(value.type, back), value.name) for value in node.outputs]
    # Nobody needs the node itself: its results know it, and the editor links what they stand
    # behind.
    Node(node.op, permuted_attributes(given, back), [x], parts, node.origin)
    return Replace({
        old: result(
            TRANSPOSE, TransposeAttrs(perm), [part], old.type, node.origin, old.name
        )
        for old, part in zip(node.outputs, parts, strict=True)
    })  # fmt: skip


@rule("constant-of-fewer-axes")
def constant_of_fewer_axes(node: Node, context: RuleContext) -> Proposal:
    """``Add(x, const[1,1,8]) -> Add(x, const[8])`` where x has all axes of the result."""
    del context
    if node.op.flow is not Flow.ELEMENTWISE or node.op in (CONCAT, COMPOSITION):
        return None
    rank = node.output.rank
    # Else the constant's extents of 1 are what makes the result's rank.
    if rank is None or not any(v and not v.is_constant and v.rank == rank for v in node.inputs):
        return None
    operands = [None if value is None else _shorter(value) for value in node.inputs]
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return None
    output = node.output
    made = result(node.op, node.attributes, operands, output.type, node.origin, output.name)
    return Replace({output: made})


def _shorter(value: Value) -> Value:
    """Returns a constant without its leading extents of 1."""
    data, params = value.constant, None if value.quant is None else value.quant.params
    if data is None or not data.shape or data.shape[0] != 1:
        return value
    count = next((i for i, extent in enumerate(data.shape) if extent != 1), len(data.shape))
    if params is not None and params.axis is not None:
        # Its scales lie along an axis that would go.
        if params.axis < count or params.blocked:
            return value
        params = params.with_axis(params.axis - count)
    shape = data.shape[count:]
    return constant(data.map(lambda array: array.reshape(shape), shape=shape), params, value.name)


@rule("reshape-of-a-transpose", RESHAPE, FLATTEN)
def reshape_of_a_transpose(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(Transpose(x)) -> Reshape(x)`` where the transpose moves extents of 1 only."""
    del context
    turn, attributes = made_by(node.operand(0), TRANSPOSE), node.attributes
    if turn is None or not isinstance(turn.attributes, TransposeAttrs) or len(node.inputs) != 1:
        return None
    shape = turn.operand(0).type.shape
    perm, output = turn.attributes.perm, node.output
    # A target may copy the batch with a 0, and ONNX's 0 looks at the axis in its own place.
    if shape is None or perm[0] != 0 or turn.operand(0).quant != _like(output, turn.operand(0)):
        return None
    long = [axis for axis in perm if shape[axis] != 1]
    if long != sorted(long):
        return None
    if isinstance(attributes, ReshapeAttrs) and 0 in (attributes.shape or ())[1:]:
        explicit = _explicit(output)  # what it copies lies elsewhere before the transpose
        if explicit is None:
            return None
        attributes = explicit
    x, origin = turn.operand(0), node.origin
    return Replace({output: result(node.op, attributes, [x], output.type, origin, output.name)})


@rule("transpose-of-a-reshape", TRANSPOSE)
def transpose_of_a_reshape(node: Node, context: RuleContext) -> Proposal:
    """``Transpose(Reshape(x)) -> Reshape(x)`` where the transpose moves extents of 1 only."""
    del context
    inner, attributes, output = node.operand(0).producer, node.attributes, node.output
    if inner is None or inner.op not in (RESHAPE, FLATTEN) or len(inner.inputs) != 1:
        return None
    shape, x = inner.output.type.shape, inner.operand(0)
    if not isinstance(attributes, TransposeAttrs) or shape is None:
        return None
    long = [axis for axis in attributes.perm if shape[axis] != 1]
    made = _explicit(output)
    if long != sorted(long) or made is None:
        return None
    if x.quant is not None and x.quant != _like(output, x):
        return None
    origin = node.origin.joined(inner.origin)
    return Replace({output: result(RESHAPE, made, [x], output.type, origin, output.name)})


@rule("slice-of-needed-axes", SLICE)
def slice_of_needed_axes(node: Node, context: RuleContext) -> Proposal:
    """``Slice(x) -> Slice(x)`` of the axes that it cuts, counted from the front where known."""
    del context
    given, shape = node.attributes, node.operand(0).type.shape
    if not isinstance(given, SliceAttrs) or shape is None or len(node.inputs) != 1:
        return None
    kept = [
        (axis, *cut)
        for axis, start, end, step in sorted(
            zip(given.axes, given.starts, given.ends, given.steps, strict=True)
        )
        if (cut := _cut(shape[axis], start, end, step)) is not None
    ]
    axes, starts, ends, steps = zip(*kept, strict=True) if kept else ((), (), (), ())
    wanted = SliceAttrs(starts, ends, axes, steps)
    if not kept or wanted == given:
        return None
    output = node.output
    made = result(node.op, wanted, node.inputs, output.type, node.origin, output.name)
    return Replace({output: made})


def _cut(extent: Dim, start: int, end: int, step: int) -> tuple[int, int, int] | None:
    """Returns start, end and step of an axis, None where all of it is taken as it lies."""
    if isinstance(extent, str):
        # Of an open extent only what says "to the end" is known to take all.
        return None if start == 0 and end >= ENDLESS and step == 1 else (start, end, step)
    taken = sliced(extent, start, end, step)
    if taken == range(extent) and step == 1:
        return None
    # A backward range ends at -1, which ONNX would count from the end.
    return taken.start, taken.stop if taken.stop >= 0 else BEFORE_ALL, step


@rule("widened-constant", CAST)
def widened_constant(node: Node, context: RuleContext) -> Proposal:
    """``Cast(const) -> const`` from half floats: weights that are stored so and read as float32."""
    del context
    source, dtype = node.operand(0), node.output.type.dtype
    halves = (DType.FLOAT16, DType.BFLOAT16)
    if source.constant is None or source.type.dtype not in halves or dtype is not DType.FLOAT32:
        return None
    wide = source.constant.map(lambda array: array.astype(np.float32), dtype=dtype)
    return Replace({node.output: constant(wide, None, node.output.name)})


CHANNELS: tuple[Rule, ...] = (
    widened_constant,
    operator_before_transpose,
    reduce_before_transpose,
    reshape_of_a_transpose,
    slice_of_needed_axes,
    split_before_transpose,
    constant_of_fewer_axes,
    transpose_of_a_reshape,
)


def _explicit(value: Value) -> ReshapeAttrs | None:
    """Returns the target of a reshape that copies no extent, None where two are open."""
    shape = value.type.shape
    if shape is None or sum(isinstance(extent, str) for extent in shape) > 1:
        return None
    extents = tuple(-1 if isinstance(extent, str) else extent for extent in shape)
    return ReshapeAttrs(extents, allow_zero=0 in extents)


def _like(output: Value, x: Value) -> object:
    """Returns the type that x must have for the reshape to be data movement of it."""
    if output.quant is None or x.quant is None:
        return None
    return x.quant if x.quant.params == output.quant.params else output.quant


def _permutation(node: Node) -> tuple[int, ...] | None:
    """Returns how the operands are transposed, the same for all that are; None if none is."""
    found = {
        perm for value in node.inputs if value is not None and (perm := _perm(value)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _perm(value: Value) -> tuple[int, ...] | None:
    while (convert := _conversion(value)) is not None:
        value = convert.operand(0)
    turn = _turn(value)
    return None if turn is None else turn[1]


def _conversion(value: Value) -> Node | None:
    """Returns what makes a value of another type, element by element."""
    kinds = (QUANTIZE, REQUANTIZE, DEQUANTIZE)
    return next((node for kind in kinds if (node := made_by(value, kind)) is not None), None)


def _turn(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """Returns what a channels-last value is made of, and how it is permuted.

    A Reshape of an image of one channel, or of one pixel, is such a permutation too.
    """
    node = value.producer
    if node is None:
        return None
    if isinstance(node.attributes, TransposeAttrs):
        perm = node.attributes.perm
        return (node.operand(0), perm) if perm in _LAST else None
    before, after = node.operand(0).type.shape if node.inputs else None, value.type.shape
    if node.op is not RESHAPE or len(node.inputs) != 1 or before is None or after is None:
        return None
    if (
        len(before) != _IMAGE
        or len(after) != _IMAGE
        or node.operand(0).quant != _like(value, node.operand(0))
    ):
        return None
    perm = (0, 2, 3, 1)
    alike = tuple(before[axis] for axis in perm) == after
    # Only where one of the two has extent 1 does a Reshape leave every element in its place.
    still = before[1] == 1 or before[2:] == (1, 1)
    return (node.operand(0), perm) if alike and still and before != after else None


_IMAGE = 4


def _permuted(value: Value, perm: tuple[int, ...]) -> Value | None:
    """Returns an operand as it is without the transposition."""
    if value.constant is not None:
        return permuted_operand(value, inverse(perm))
    node = _conversion(value)
    if node is not None:
        inner = _permuted(node.operand(0), perm)
        if inner is None:
            return None
        if value.quant is None:
            return dequantized(inner, value.type.dtype, node.origin)
        params = permuted_params(value.quant.params, inverse(perm))
        return retyped(node, [inner], QuantType(params, inner.type.shape), value.name)
    turn = _turn(value)
    return turn[0] if turn is not None and turn[1] == perm else None


def _transposed(inner: Value, perm: tuple[int, ...], node: Node) -> Value:
    attributes, type_ = TransposeAttrs(perm), node.output.type
    return result(TRANSPOSE, attributes, [inner], type_, node.origin, node.output.name)


def _in_any_layout(node: Node) -> bool:
    """True for an operator that does the same wherever its axes lie, which its attributes name."""
    if node.op is GATHER:
        return node.operand(1).rank == 1
    along = (CONCAT, PAD, SLICE, TILE, SOFTMAX, LOG_SOFTMAX)
    return node.op in along or node.op.flow is Flow.ELEMENTWISE


# ---- The rule for regions of another layout: transposes around them cancel

_MOST = 64
_CONVERTED = (QUANTIZE, DEQUANTIZE, REQUANTIZE, CAST)


@rule("region-of-a-layout", TRANSPOSE)
def region_of_a_layout(node: Node, context: RuleContext) -> Proposal:
    """``Transpose(op(Transpose(x))) -> op(x)`` where the second undoes the first.

    Of any number of elementwise operators, joins, conversions and reductions in between, if every
    way into them is such a transpose or a constant. Nothing is computed that was not.
    """
    attributes = node.attributes
    if not isinstance(attributes, TransposeAttrs) or node.operand(0).producer is None:
        return None
    source = node.operand(0)
    if source.producer is None or source.producer.op is TRANSPOSE:
        return None
    region = _FloatRegion(attributes.perm, context)
    value = region.permuted(source)
    if value is None or not region.cancelled:
        return None
    value.name = value.name or node.output.name
    return Replace({node.output: value})


@dataclass(slots=True)
class _FloatRegion:
    """What lies before a transpose, built anew in the layout behind it.

    Attributes:
        perm: The permutation of the transpose.
        context: The surroundings.
        made: What stands for what.
        cancelled: How many transposes into the region are undone.
    """

    perm: tuple[int, ...]
    context: RuleContext
    made: dict[Value, Value] = field(default_factory=dict[Value, Value])
    cancelled: int = 0

    def permuted(self, value: Value) -> Value | None:
        """Returns a value with its axes permuted, without a new transpose; None if there is none.

        A value that is read outside of the region too would be computed twice, so it is refused.
        """
        if value in self.made:
            return self.made[value]
        constant = value.constant is not None
        found = permuted_operand(value, self.perm) if constant else self._computed(value)
        if found is not None:
            self.made[value] = found
        return found

    def _computed(self, value: Value) -> Value | None:
        node = value.producer
        # Bounded, since the region is walked again for each transpose that could end one.
        if node is None or len(self.made) > _MOST:
            return None
        attributes = node.attributes
        if isinstance(attributes, TransposeAttrs):
            undone = tuple(attributes.perm[axis] for axis in self.perm)
            if undone != tuple(range(len(self.perm))):
                return None
            self.cancelled += 1
            return node.operand(0)
        if len(node.outputs) != 1 or self.context.sole_reader(value) is None:
            return None
        movable = node.output.rank == len(self.perm) and _transposes_in_any_layout(node)
        return self._rebuilt(node) if movable else None

    def _rebuilt(self, node: Node) -> Value | None:
        operands: list[Value | None] = []
        for value in node.inputs:
            if value is None:
                operands.append(None)
                continue
            if value.constant is None and value.rank != len(self.perm):
                return None
            permuted = self.permuted(value)
            if permuted is None:
                return None
            operands.append(permuted)
        if node.output.type.shape is None:
            return None
        attributes = permuted_attributes(node.attributes, self.perm)
        result = Value(permuted_type(node.output.type, self.perm), node.output.name)
        Node(node.op, attributes, operands, [result], node.origin)
        return result


def _transposes_in_any_layout(node: Node) -> bool:
    """True for an operator that gives the same numbers wherever its axes lie in memory."""
    attributes = node.attributes
    if node.op.by_steps and node.op.flow is not Flow.ELEMENTWISE:
        return False
    if isinstance(attributes, SoftmaxAttrs):
        return len(attributes.axes) == 1
    if isinstance(attributes, ReduceAttrs):  # a sum depends on the order in memory
        return node.op in (REDUCE_MAX, REDUCE_MIN) and attributes.keepdims
    layouts = node.op in (CONCAT, PAD) or node.op in _CONVERTED
    return layouts or node.op.flow is Flow.ELEMENTWISE
