"""Small constants that a file computes: shapes, bounds and scalars (never weights)."""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.core.canonical.decomposed import is_stored
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import Dim, static_shape
from qdqbridge.core.ops.attributes import ExpandAttrs, ReshapeAttrs, ShapeAttrs
from qdqbridge.core.ops.build import constant, evaluated, result
from qdqbridge.core.ops.conversion import CAST, QUANTIZE, REINTERPRET
from qdqbridge.core.ops.data_movement import EXPAND, RESHAPE
from qdqbridge.core.ops.elementwise import DIV, MUL, SUB
from qdqbridge.core.ops.folding import affordable
from qdqbridge.core.ops.shape_values import (
    FOLLOWED,
    MOST,
    SHAPE,
    Extents,
    computed_extents,
    shape_extents,
)
from qdqbridge.core.ops.unary import ROUND
from qdqbridge.core.rewrite import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    rule,
    stored_behind,
)

_SMALL = 4096
_GROWTH = 4
"""What a file computes may be this much larger than what it holds."""
# One IEEE operation each, so the constant has the bits that every runtime computes.
_EXACT = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "Min",
        "Max", "Cast", "Concat", "Where", "Relu", "LeakyRelu", "PRelu", "Clip", "Sign",
        "ReduceMax", "ReduceMin",
    )
)  # fmt: skip
_EXACT_OPAQUE = frozenset(
    (
        "Size", "ConstantOfShape", "Range", "CastLike", "NonZero", "Equal", "Less", "Greater",
        "IsNaN", "IsInf", "Not", "And", "Or", "Xor", "LessOrEqual", "GreaterOrEqual", "EyeLike",
        "Trilu", "OneHot", "GatherElements", "GatherND", "ArgMax", "ArgMin", "Hardmax",
        "MatMulInteger",
    )
)  # fmt: skip


@rule("small-constant")
def small_constant(node: Node, context: RuleContext) -> Proposal:
    """``op(const…) -> const`` for small operands and operators that are exact everywhere.

    Of any size where only quantizes read the result (idiom B6 without constant folding: a training
    weight times the scale of its batch norm); it is computed when first looked at.
    """
    name = node.op.name.rpartition("::")[2]
    if len(node.outputs) != 1 or (name not in _EXACT and name not in _EXACT_OPAQUE):
        return None
    shape = static_shape(node.output.type.shape)
    operands = [value for value in node.inputs if value is not None]
    if shape is None or _is_part(node, context):
        return None
    sizes = [math.prod(shape)]
    for value in operands:
        if value.constant is None or value.quant:
            return None
        sizes.append(value.constant.size)
    is_small = max(sizes) <= _SMALL
    # An Expand or a Tile of a number must not become a large constant of the file.
    grows = sizes[0] > _GROWTH * max(sizes[1:], default=0)
    if not is_small and (grows or not _is_only_quantized(node, context)):
        return None
    if not affordable(node, [v and v.constant for v in node.inputs], context.budget):
        return None
    if is_small:
        data = Constant.of(evaluated(node))
    else:
        data = Constant(node.output.type.dtype, shape, lambda: evaluated(node))
    return Replace({node.output: constant(data, None, node.output.name)})


def _is_only_quantized(node: Node, context: RuleContext) -> bool:
    readers = context.readers(node.output)
    plain = all(reader.op is QUANTIZE for reader in readers)
    return plain and bool(readers) and not context.is_output(node.output)


def _is_part(node: Node, context: RuleContext) -> bool:
    """True for what may begin a quantization in float arithmetic: see :mod:`decomposed`."""
    readers = {reader.op for reader in context.readers(node.output)}
    if node.op is CAST:
        return is_stored(node.operand(0)) and not readers.isdisjoint((SUB, MUL))
    return node.op in (DIV, MUL) and ROUND in readers


# ---- Rules for shapes that a file computes at run time from the shapes of other tensors

_DEPTH = 32
_LARGEST = 1 << 63


@rule("shape-of-stored", SHAPE)
def shape_of_stored(node: Node, context: RuleContext) -> Proposal:
    """``Shape(dequantize(q)) -> Shape(q)``, and that of its bits as another type."""
    del context
    bits = made_by(node.operand(0), REINTERPRET)
    stored = stored_behind(node.operand(0)) if bits is None else bits.operand(0)
    if stored is None:
        return None
    return Replace(
        {node.output: result(node.op, node.attributes, [stored], node.output.type, node.origin)}
    )


@rule("known-extents", SHAPE, *FOLLOWED)
def known_extents(node: Node, context: RuleContext) -> Proposal:
    """``Shape(x) -> const`` where the extents asked for are known."""
    del context
    if node.output.type.dtype.is_float or node.output.quant is not None:
        return None
    extents = extents_of(node.output)
    if extents is None or any(isinstance(dim, str) for dim in extents):
        return None
    shape = node.output.type.shape
    if any(abs(int(dim)) >= _LARGEST for dim in extents):
        return None
    if shape is None and len(extents) == 1:
        return None  # a scalar, or a vector of one
    array = np.array(extents, np.int64).astype(node.output.type.dtype.numpy)
    if shape is not None and len(shape) == 0:
        array = array.reshape(())
    return Replace({node.output: constant(Constant.of(array), None, node.output.name)})


@rule("static-reshape", RESHAPE, EXPAND)
def static_reshape(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x, extents) -> Reshape(x)`` with the target as an attribute.

    An unknown extent of the target that x has at the same place is copied (0); one other is -1.
    """
    del context
    attributes = node.attributes
    if not isinstance(attributes, ReshapeAttrs | ExpandAttrs) or attributes.shape is not None:
        return None
    target = extents_of(node.operand(1))
    if target is None:
        target = None if node.output.type.shape is None else list(node.output.type.shape)
    if target is None:
        return None
    if isinstance(attributes, ExpandAttrs):
        if any(isinstance(dim, str) for dim in target):
            return None
        fixed = tuple(dim for dim in target if isinstance(dim, int))
        made: ReshapeAttrs | ExpandAttrs = ExpandAttrs(fixed)
    else:
        written = _reshape_dims(target, node.operand(0).type.shape or ())
        if written is None:
            return None
        made = ReshapeAttrs(written)
    type_ = node.output.type
    if not target:  # of a vector without elements, whose numbers ONNX's inference does not know
        type_ = type_.with_shape(())
    value = result(node.op, made, node.inputs[:1], type_, node.origin, node.output.name)
    return Replace({node.output: value})


def _reshape_dims(target: Extents, source: tuple[Dim, ...]) -> tuple[int, ...] | None:
    """Returns ONNX's form of a target with unknown extents, None where it has none."""
    written: list[int] = []
    for index, dim in enumerate(target):
        if isinstance(dim, int):
            if dim == 0:
                return None
            written.append(dim)
        elif index < len(source) and source[index] == dim:
            written.append(0)
        else:
            written.append(-1)
    return tuple(written) if written.count(-1) <= 1 else None


def extents_of(value: Value) -> Extents | None:
    """Returns the numbers in a small integer vector or scalar; a name stands for an open extent.

    Follows shape arithmetic back to shapes and constants.
    """
    return _followed(value, {}, 0)


def _followed(value: Value, known: dict[Value, Extents | None], depth: int) -> Extents | None:
    if value not in known:
        known[value] = _made(value, known, depth)
    return known[value]


def _made(value: Value, known: dict[Value, Extents | None], depth: int) -> Extents | None:
    if (value.rank or 0) > 1 or value.quant is not None:
        return None  # what a shape is made of has one axis
    if value.constant is not None:
        small = value.constant.size <= MOST and value.constant.dtype.is_integer
        return [int(x) for x in value.constant.numpy().reshape(-1)] if small else None
    if value.type.shape == (0,):
        return []
    node = value.producer
    if node is None or depth > _DEPTH or value.type.dtype not in (DType.INT32, DType.INT64):
        return None
    if isinstance(node.attributes, ShapeAttrs):
        return shape_extents(node.attributes, node.operand(0).type.shape)
    name = node.op.name
    if name not in FOLLOWED:
        return None
    parts = [None if v is None else _followed(v, known, depth + 1) for v in node.inputs]
    return computed_extents(name, node.attributes, parts)
