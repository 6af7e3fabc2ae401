"""The float element type that an operator computes in between its DQ and Q nodes."""

from __future__ import annotations

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.types import QuantType, ValueType


def real_dtypes(node: Node) -> set[DType]:
    """Returns the float types of a node's data operands; a derived bias has no say."""
    operands = list(node.data_operands())
    if node.op.flow is Flow.ACCUMULATE:
        operands = [pair for pair in operands if pair[0] < 2]
    found = {_expressed(value.type) for _, value in operands}
    return {dtype for dtype in found if dtype.is_float}


def real_dtype(node: Node) -> DType:
    """Returns the one type that a node's operands are dequantized to."""
    found = real_dtypes(node)
    return next(iter(found)) if len(found) == 1 else DType.FLOAT32


def _expressed(type_: ValueType) -> DType:
    return type_.params.expressed_dtype if isinstance(type_, QuantType) else type_.dtype


def mixes_types(node: Node) -> bool:
    """True where a quantized operand or result has a scale of another type than the node's."""
    dtype = real_dtype(node)
    operands = [value for _, value in node.data_operands() if value.constant is None]
    quants = [v.quant for v in (*operands, *node.inputs[1:2], *node.outputs) if v is not None]
    return any(q is not None and q.params.expressed_dtype is not dtype for q in quants)
