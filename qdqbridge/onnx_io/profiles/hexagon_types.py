"""Which signed types become unsigned for Hexagon, and what stands at the interface then.

A unit of the backend has one type; most of its operators take int8, few take int16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.types import QuantType
from qdqbridge.onnx_io.profiles.legalization import Cost, is_attention_score, replace_operand
from qdqbridge.ops.attributes import ReshapeAttrs
from qdqbridge.ops.build import requantized, result
from qdqbridge.ops.data_movement import RESHAPE
from qdqbridge.ops.elementwise import DIV
from qdqbridge.ops.selection import PAD

_BYTE = 8
_MATRIX = 2
"""The rank up to which there is no layout to change."""
_PLAIN = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"})
"""Data-movement operators that are taken of any type."""


def unsigned_types(graph: Graph) -> tuple[DType, ...]:
    """Returns the signed types that become unsigned.

    int8 does where an operator wants that, and where there is uint8 as well; int16 where anything
    is computed of it.
    """
    stored = {v.quant.params.storage_dtype for v in graph.values() if v.quant and not v.is_constant}
    wide = (DType.INT16,) if DType.INT16 in stored and any(map(_computes, graph.nodes)) else ()
    mixed = {DType.INT8, DType.UINT8} <= stored
    return (*wide, DType.INT8) if mixed or any(map(_wants_uint8, graph.nodes)) else wide


def converted_interfaces(graph: Graph) -> Iterator[Cost]:
    """Puts a conversion behind signed inputs and before signed outputs, which keep their type."""
    for dtype in unsigned_types(graph):
        _unsigned_inside(graph, dtype)
    yield from ()


def _wants_uint8(node: Node) -> bool:
    x = node.operand(0).quant if node.inputs and node.inputs[0] is not None else None
    if x is None or x.params.storage_dtype is not DType.INT8:
        return False
    if node.op is PAD:
        return int(x.params.zero_point.reshape(-1)[0]) not in (0, DType.INT8.qmax)
    return node.op.name in ("LeakyRelu", "InstanceNormalization") or (
        node.op is DIV and node.operand(1).is_constant and is_attention_score(node)
    )


def _unsigned_inside(graph: Graph, dtype: DType) -> None:
    """Puts a conversion behind inputs and before outputs of a type."""
    editor = Editor(graph)
    for value in graph.inputs:
        if _stored(value, dtype) and not all(_converts(node) for node, _ in value.users):
            reading, inside = list(value.users), _converted(value)
            for node, index in reading:
                replace_operand(node, index, inside)
    for value in dict.fromkeys(graph.outputs):
        made = value.producer
        if _stored(value, dtype) and made is not None and not _converts(made):
            outside = _converted(value)
            editor.insert(outside)
            for slot, other in enumerate(graph.outputs):
                if other is value:
                    graph.outputs[slot] = outside


def _stored(value: Value, dtype: DType) -> bool:
    return value.quant is not None and value.quant.params.storage_dtype is dtype


def _computes(node: Node) -> bool:
    return node.op.name not in _PLAIN and not _converts(node)


def _converts(node: Node) -> bool:
    return node.op.flow is Flow.CONVERT


def _converted(value: Value) -> Value:
    """Returns a value with the same parameters once more, which the writer makes unsigned.

    Images of 16 bits are rows meanwhile: the provider moves its changes of layout through
    conversions otherwise, to where a Transpose of int16 is left alone, which is not taken.
    """
    assert value.quant is not None
    params, shape, name = value.quant.params, value.type.shape, f"{value.name}_converted"
    dims = tuple(dim for dim in shape or () if isinstance(dim, int))
    plain = params.storage_dtype.bits <= _BYTE or shape is None or len(dims) < len(shape)
    if plain or len(dims) <= _MATRIX:
        return requantized(value, params, name=name)
    rows = _reshaped(value, (dims[0], math.prod(dims[1:])), f"{value.name}_rows")
    return _reshaped(requantized(rows, params, name=f"{name}_rows"), dims, name)


def _reshaped(value: Value, shape: tuple[int, ...], name: str) -> Value:
    assert value.quant is not None
    type_ = QuantType(value.quant.params, shape)
    return result(RESHAPE, ReshapeAttrs(shape), [value], type_, name=name)
