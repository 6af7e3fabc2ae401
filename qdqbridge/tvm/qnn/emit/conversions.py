"""quantize, dequantize, requantize and reinterpret."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, unsupported


def _quantize(emitter: FunctionEmitter, node: Node) -> Expr:
    result = node.output.quant
    assert result is not None
    return emitter.quantize(emitter.value(node.operand(0)), result.params)


def _dequantize(emitter: FunctionEmitter, node: Node) -> Expr:
    real = emitter.real(node.operand(0))
    return emitter.cast(real, tvm_dtype(node.output.type.dtype))


def _requantize(emitter: FunctionEmitter, node: Node) -> Expr:
    assert node.output.quant is not None
    return emitter.converted(node.operand(0), node.output.quant.params)


def _reinterpret(emitter: FunctionEmitter, node: Node) -> Expr:
    stored = emitter.value(node.operand(0))
    if emitter.dtype(stored) != tvm_dtype(node.output.type.dtype):
        raise unsupported(node, "it changes the stored element type")
    return emitter.emit(stored)


CONVERSIONS: Mapping[Operator, Callable[[FunctionEmitter, Node], Expr]] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    REQUANTIZE: _requantize,
    REINTERPRET: _reinterpret,
}
