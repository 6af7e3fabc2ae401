"""Conv, ConvTranspose, Dense, Gemm and MatMul on quantized operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import static_shape
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.relax.dialect import accumulator_dtype, magnitude
from qdqbridge.relax.emit.scope import Expr, Scope, number, op, storage, tvm_dtype


def quantized_accumulation(scope: Scope, node: Node) -> Expr | None:
    """Emits the integer form; returns None where the operands have none."""
    x, w = node.operand(0), node.operand(1)
    if x.quant is None or w.quant is None or not x.quant.params.per_tensor:
        return None
    if node.op.name in ("Conv", "ConvTranspose"):
        return _convolution(scope, node)
    if node.op.name == "Dense":
        return _dense(scope, node)
    if node.op.name in ("MatMul", "Gemm"):
        return _matmul(scope, node)
    return None


def _params(node: Node) -> tuple[QuantParams, QuantParams]:
    x, w = node.operand(0).quant, node.operand(1).quant
    assert x is not None and w is not None
    return x.params, w.params


def _operands(scope: Scope, node: Node) -> list[Expr]:
    px, pw = _params(node)
    return [
        scope.value(node.operand(0)),
        scope.value(node.operand(1)),
        scope.zero_point(px),
        scope.zero_point(pw),
        scope.scale(px),
        scope.scale(pw),
    ]


def _accumulator(node: Node, products: int) -> str:
    px, pw = _params(node)
    bias = node.optional(2)
    largest = 0
    if bias is not None and bias.quant is not None and bias.constant is not None:
        largest = int(np.abs(bias.constant.numpy().astype(np.int64)).max(initial=0))
    left = magnitude(storage(px), px.zero_point)
    right = magnitude(storage(pw), pw.zero_point)
    return accumulator_dtype(products, left, right, largest)


def _convolution(scope: Scope, node: Node) -> Expr:
    attributes, shape = node.attributes, static_shape(node.operand(1).type.shape)
    assert isinstance(attributes, ConvAttrs | ConvTransposeAttrs) and shape is not None
    rank = len(shape) - 2
    transposed = isinstance(attributes, ConvTransposeAttrs)
    products = int(np.prod(shape[2:])) * (shape[0] // attributes.group if transposed else shape[1])
    channels = shape[1] * attributes.group if transposed else shape[0]
    attrs: dict[str, Any] = {
        "strides": list(attributes.strides),
        "padding": list(attributes.pads),
        "dilation": list(attributes.dilations),
        "groups": attributes.group,
        "channels": channels,
        "kernel_size": list(shape[2:]),
        "out_dtype": _accumulator(node, products),
    }
    if isinstance(attributes, ConvTransposeAttrs):
        attrs["output_padding"] = list(attributes.output_padding)
    name = f"conv{rank}d" + ("_transpose" if transposed else "")
    acc = scope.qnn(name, _operands(scope, node), attrs)
    group = attributes.group if transposed else 1
    return _finish(scope, node, acc, axis=1, trailing=rank, tiles=group)


def _dense(scope: Scope, node: Node) -> Expr:
    shape = static_shape(node.operand(1).type.shape)
    assert shape is not None
    attrs = {"units": shape[0], "out_dtype": _accumulator(node, shape[1])}
    acc = scope.qnn("dense", _operands(scope, node), attrs)
    rank = node.output.rank or len(acc.ty.shape.values)
    return _finish(scope, node, acc, axis=rank - 1, trailing=0)


def _matmul(scope: Scope, node: Node) -> Expr | None:
    attributes, x = node.attributes, node.operand(0)
    if (x.rank or 0) < 2 or (node.operand(1).rank or 0) < 2:
        return None
    gemm = attributes if isinstance(attributes, GemmAttrs) else GemmAttrs()
    inner = x.type.shape[-2 if gemm.trans_a else -1] if x.type.shape else None
    attrs = {
        "transpose_a": gemm.trans_a,
        "transpose_b": gemm.trans_b,
        "out_dtype": _accumulator(node, inner if isinstance(inner, int) else 1 << 31),
    }
    bias = node.optional(2)
    if bias is not None and (bias.quant is not None or gemm.beta != 1.0):
        return None
    acc = scope.qnn("batch_matmul", _operands(scope, node), attrs)
    rank = len(acc.ty.shape.values)
    return _finish(scope, node, acc, axis=rank - 1, trailing=0, alpha=gemm.alpha)


def _finish(
    scope: Scope,
    node: Node,
    acc: Expr,
    *,
    axis: int,
    trailing: int,
    tiles: int = 1,
    alpha: float = 1.0,
) -> Expr:
    """Bias, then requantize into the result's type, or dequantize where it is float."""
    px, pw = _params(node)
    left = px.scale.astype(np.float32)
    if alpha != 1.0:
        left = np.asarray(np.float32(alpha) * left, np.float32)
    scale = np.asarray(left * pw.scale.astype(np.float32), np.float32)
    scale = np.tile(scale, tiles) if scale.ndim else scale
    bias = node.optional(2)
    if bias is not None and bias.quant is not None:
        acc = _add_bias(scope, acc, bias, trailing)
    zero = number(np.zeros((), np.int32))
    result = node.output.quant
    float_bias = bias if bias is not None and bias.quant is None else None
    if result is not None and float_bias is None:
        attrs = {
            "axis": axis,
            "rounding": "TONEAREST_EVEN",
            "compute_dtype": "float32",
            "out_dtype": storage(result.params),
        }
        args = [acc, number(scale), zero, scope.scale(result.params)]
        args.append(scope.zero_point(result.params))
        return scope.clamp(scope.qnn("requantize", args, attrs), result.params)
    real = scope.qnn("dequantize", [acc, number(scale), zero], {"axis": axis})
    if float_bias is not None:
        vector = _column(scope, scope.value(float_bias), float_bias, trailing)
        real = scope.emit(op.add(real, scope.cast(vector, "float32")))
    if result is not None:
        return scope.quantize(real, result.params)
    return scope.cast(real, tvm_dtype(node.output.type.dtype))


def _add_bias(scope: Scope, acc: Expr, bias: Value, trailing: int) -> Expr:
    assert bias.constant is not None
    dtype = str(acc.ty.dtype)
    array = bias.constant.numpy().astype(dtype).reshape(-1, *([1] * trailing))
    return scope.emit(op.add(acc, number(array)))


def _column(scope: Scope, vector: Expr, bias: Value, trailing: int) -> Expr:
    if not trailing or bias.rank != 1:
        return vector
    return scope.emit(op.reshape(vector, (-1, *([1] * trailing))))
