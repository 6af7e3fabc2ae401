"""Which signed types become unsigned for Hexagon, and what stands at the interface then.

A unit of the backend has one type; most of its operators take int8, few take int16.
"""

from __future__ import annotations

import math

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantType, static_shape
from qdqbridge.core.ops.attributes import ReshapeAttrs
from qdqbridge.core.ops.build import requantized, result
from qdqbridge.core.ops.conversion import DEQUANTIZE, REQUANTIZE
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE
from qdqbridge.core.ops.elementwise import CONCAT, DIV
from qdqbridge.core.ops.selection import PAD
from qdqbridge.core.rewrite.interface import converted_interface
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, replaced, rule
from qdqbridge.targets.profiles.hexagon.operators import IMAGES, MOST_AXES
from qdqbridge.targets.profiles.legalization import enters

_BYTE = 8
_MATRIX, _IMAGE = 2, 4
"""The ranks up to which there is no layout to change, and up to which there is one."""
_PLAIN = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"})
"""Data-movement operators that are taken of any type."""


def unsigned_types(graph: Graph) -> tuple[DType, ...]:
    """Returns the signed types that become unsigned.

    int8 does where an operator wants that, and where there is uint8 as well; int16 where anything
    is computed of it.
    """
    stored = {v.quant.params.storage_dtype for v in graph.values() if v.quant and not v.is_constant}
    wide = (DType.INT16,) if DType.INT16 in stored and any(map(_wants_uint16, graph.nodes)) else ()
    mixed = {DType.INT8, DType.UINT8} <= stored
    return (*wide, DType.INT8) if mixed or any(map(_wants_uint8, graph.nodes)) else wide


@rule("interface-converted")
def converted_interfaces(node: Node, context: RuleContext) -> Proposal:
    """``f(x) -> requantize(f(requantize(x)))`` of signed inputs and outputs, which keep their type.

    Inside, what is signed becomes unsigned.
    """
    signed = context.fact(unsigned_types)

    def wanted(value: Value) -> bool:
        if value.quant is None or value.quant.params.storage_dtype not in signed:
            return False
        beside = [value.producer] if value.producer is not None else [n for n, _ in value.users]
        return not all(map(_is_conversion, beside))

    return converted_interface(node, context, wanted, _converted)


def _is_conversion(node: Node) -> bool:
    return _converts(node) and not _moves_wrongly(node)


@rule("conversion-moved-up", REQUANTIZE)
def early_conversions(node: Node, context: RuleContext) -> Proposal:
    """``requantize(Reshape(Transpose(x))) -> Reshape(requantize(Transpose(x)))``: the same numbers.

    In front of a product the backend takes the rows in another order otherwise.
    """
    del context
    moved = node.operand(0).producer
    if moved is None or moved.op is not RESHAPE or len(moved.output.users) > 1:
        return None
    source, quant = moved.operand(0), node.output.quant
    made = source.producer
    if made is None or made.op is not TRANSPOSE or quant is None:
        return None
    if not any(user.op.flow is Flow.ACCUMULATE for user, _ in node.output.users):
        return None
    early = requantized(source, quant.params, node.origin, f"{source.name}_converted")
    return replaced(node, RESHAPE, moved.attributes, [early], moved.origin)


@rule("converted-image-as-rows", REQUANTIZE)
def converted_rows(node: Node, context: RuleContext) -> Proposal:
    """Images that are converted where they leave the graph, as rows meanwhile.

    Otherwise the provider moves its change of layout behind the conversion, and leaves it there.
    """
    value, source = node.output, node.operand(0)
    made, dims = source.producer, static_shape(value.type.shape)
    if not context.is_output(value) or value.quant is None or dims is None:
        return None
    if not _MATRIX < len(dims) <= _IMAGE:
        return None
    while made is not None and made.op.flow in (Flow.ELEMENTWISE, Flow.CONVERT):
        made = made.operand(0).producer
    if made is None or made.op.name not in IMAGES:
        return None
    rows = _reshaped(source, (dims[0], math.prod(dims[1:])), f"{value.name}_rows")
    stored = requantized(rows, value.quant.params, node.origin, f"{value.name}_converted")
    return Replace({value: _reshaped(stored, dims, value.name)})


def _wants_uint16(node: Node) -> bool:
    return _computes(node) or _moves_wrongly(node)


def _wants_uint8(node: Node) -> bool:
    x = node.operand(0).quant if node.inputs and node.inputs[0] is not None else None
    if x is None or x.params.storage_dtype is not DType.INT8:
        return False
    if node.op is PAD:
        return int(x.params.zero_point.reshape(-1)[0]) not in (0, DType.INT8.qmax)
    divides = node.op is DIV and node.operand(1).is_constant
    return divides or _moves_wrongly(node) or node.op.name in _UNSIGNED


_UNSIGNED = frozenset({"HardSigmoid", "InstanceNormalization", "LeakyRelu", "LogSoftmax", "Neg"})
"""Operators that are taken of uint8, and not of int8."""


def _moves_wrongly(node: Node) -> bool:
    """True for movements of signed integers that more than four axes make wrong."""
    if len(node.operand(0).type.shape or ()) <= MOST_AXES:
        return False
    moved = node.op in (RESHAPE, FLATTEN, SQUEEZE) and enters(node.operand(0))
    if node.op is DEQUANTIZE and enters(node.operand(0)):
        moved = any(user.op in (RESHAPE, FLATTEN, SQUEEZE) for user, _ in node.output.users)
    return moved or (node.op is CONCAT and _of_two_scales(node))


def _of_two_scales(node: Node) -> bool:
    sides = [value.quant.params for value in node.inputs if value is not None and value.quant]
    return any(not side.same_mapping(sides[0]) for side in sides)


def _computes(node: Node) -> bool:
    return node.op.name not in _PLAIN and not _converts(node)


def _converts(node: Node) -> bool:
    return node.op.flow is Flow.CONVERT


def _converted(value: Value) -> Value:
    """Returns a value with the same parameters once more, which the writer makes unsigned.

    What is made within narrower ends stays within them, so that it is clamped once.
    Images of 16 bits are rows meanwhile: the provider moves its changes of layout through
    conversions otherwise, to where a Transpose of int16 is left alone, which is not taken.
    """
    assert value.quant is not None
    shape, name = value.type.shape, f"{value.name}_converted"
    params = value.quant.params if value.producer is None else value.quant.params.widened()
    dims = tuple(dim for dim in shape or () if isinstance(dim, int))
    plain = params.storage_dtype.bits <= _BYTE or shape is None or len(dims) < len(shape)
    if plain or len(dims) <= _MATRIX or len(dims) > _IMAGE:
        return requantized(value, params, name=name)
    rows = _reshaped(value, (dims[0], math.prod(dims[1:])), f"{value.name}_rows")
    return _reshaped(requantized(rows, params, name=f"{name}_rows"), dims, name)


def _reshaped(value: Value, shape: tuple[int, ...], name: str) -> Value:
    assert value.quant is not None
    type_ = QuantType(value.quant.params, shape)
    return result(RESHAPE, ReshapeAttrs(shape), [value], type_, name=name)
