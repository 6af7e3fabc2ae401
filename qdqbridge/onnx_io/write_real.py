"""The float element type that an operator computes in between its DQ and Q nodes."""

from __future__ import annotations

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.types import QuantType


def real_dtype(node: Node) -> DType:
    """Returns the type that a node's operands are dequantized to.

    It is that in which the file computes, where Casts said so, else that of the operands known
    only at run time: constants can be given any type.
    """
    if node.origin.computed is not None:
        return node.origin.computed
    operands = [value for _, value in node.data_operands()]
    running = [value for value in operands if value.constant is None]
    found = {_expressed(value) for value in running or operands}
    floats = {dtype for dtype in found if dtype.is_float}
    return next(iter(floats)) if len(floats) == 1 else DType.FLOAT32


def is_quantized(node: Node) -> bool:
    """True where any operand or result is quantized."""
    return any(v is not None and v.quant is not None for v in (*node.inputs, *node.outputs))


def _expressed(value: Value) -> DType:
    type_ = value.type
    return type_.params.expressed_dtype if isinstance(type_, QuantType) else type_.dtype
