"""quantize, dequantize, requantize and reinterpret."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr, unsupported


def _quantize(scope: EmissionScope, node: Node) -> Expr:
    result = node.output.quant
    assert result is not None
    return scope.quantize(scope.value(node.operand(0)), result.params)


def _dequantize(scope: EmissionScope, node: Node) -> Expr:
    real = scope.real(node.operand(0))
    return scope.cast(real, tvm_dtype(node.output.type.dtype))


def _requantize(scope: EmissionScope, node: Node) -> Expr:
    assert node.output.quant is not None
    return scope.converted(node.operand(0), node.output.quant.params)


def _reinterpret(scope: EmissionScope, node: Node) -> Expr:
    stored = scope.value(node.operand(0))
    if scope.dtype(stored) != tvm_dtype(node.output.type.dtype):
        raise unsupported(node, "it changes the stored element type")
    return scope.emit(stored)


CONVERSIONS: Mapping[Operator, Callable[[EmissionScope, Node], Expr]] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    REQUANTIZE: _requantize,
    REINTERPRET: _reinterpret,
}
