"""quantize, dequantize, requantize and reinterpret."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from qdqbridge.graph.graph import Node
from qdqbridge.relax.emit.scope import Expr, Scope, storage, tvm_dtype, unsupported


def _quantize(scope: Scope, node: Node) -> Expr:
    result = node.output.quant
    assert result is not None
    return scope.quantize(scope.value(node.operand(0)), result.params)


def _dequantize(scope: Scope, node: Node) -> Expr:
    real = scope.real(node.operand(0))
    return scope.cast(real, tvm_dtype(node.output.type.dtype))


def _requantize(scope: Scope, node: Node) -> Expr:
    source, result = node.operand(0).quant, node.output.quant
    assert source is not None and result is not None
    stored = scope.value(node.operand(0))
    if source.params.same_mapping(result.params):
        return scope.clamp(stored, result.params)
    if not source.params.per_tensor or not result.params.per_tensor:
        return scope.quantize(scope.real(node.operand(0)), result.params)
    attrs = {
        "rounding": "TONEAREST_EVEN",
        "compute_dtype": "float32",
        "out_dtype": storage(result.params),
    }
    args = [
        stored,
        scope.scale(source.params),
        scope.zero_point(source.params),
        scope.scale(result.params),
        scope.zero_point(result.params),
    ]
    return scope.clamp(scope.qnn("requantize", args, attrs), result.params)


def _reinterpret(scope: Scope, node: Node) -> Expr:
    stored = scope.value(node.operand(0))
    if str(stored.ty.dtype) != tvm_dtype(node.output.type.dtype):
        raise unsupported(node, "it changes the stored element type")
    return stored if isinstance(stored, relax.Var) else scope.emit(stored)


CONVERSIONS: dict[str, Callable[[Scope, Node], Expr]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
    "reinterpret": _reinterpret,
}
