"""Conv, ConvTranspose, Dense, Gemm and MatMul on quantized operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import static_shape
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.relax.dialect import accumulator_dtype, magnitude
from qdqbridge.relax.emit.scope import Expr, Scope, number, op, storage, tvm_dtype, unsupported


def quantized_accumulation(scope: Scope, node: Node) -> Expr | None:
    """Emits the integer form; returns None where the operands have none."""
    x, w = node.operand(0), node.operand(1)
    if x.quant is None or w.quant is None or not x.quant.params.per_tensor:
        return None
    if node.op.name in ("Conv", "ConvTranspose"):
        return _convolution(scope, node)
    if node.op.name == "Dense":
        return _dense(scope, node)
    return _product(scope, node)


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
    return _by_matrix(scope, node, scope.value(node.operand(0)), node.operand(1).constant)


def _product(scope: Scope, node: Node) -> Expr:
    """Gemm and MatMul: ``qnn.dense`` where the second operand is a constant matrix."""
    attributes, w = node.attributes, node.operand(1)
    gemm = attributes if isinstance(attributes, GemmAttrs) else GemmAttrs()
    if w.constant is not None and w.rank == 2:
        rows, columns = w.constant.shape
        weight = w.constant
        if not gemm.trans_b:
            weight = weight.map(np.transpose, shape=(columns, rows))
        x = scope.value(node.operand(0))
        x = scope.emit(op.permute_dims(x)) if gemm.trans_a else x
        return _by_matrix(scope, node, x, weight, gemm)
    return _batch_matmul(scope, node, gemm)


def _by_matrix(
    scope: Scope, node: Node, x: Expr, weight: Constant | None, gemm: GemmAttrs | None = None
) -> Expr:
    """Emits ``qnn.dense`` of ``x`` and a weight of shape (units, K)."""
    stored = scope.value(node.operand(1))
    if weight is not None:
        stored = scope.constant(weight, node.operand(1).name)
    units, inner = (int(extent) for extent in stored.ty.shape.values)
    attrs = {"units": units, "out_dtype": _accumulator(node, inner)}
    acc = scope.qnn("dense", [x, stored, *_operands(scope, node)[2:]], attrs)
    return _finish(scope, node, acc, axis=len(acc.ty.shape.values) - 1, trailing=0, gemm=gemm)


def _batch_matmul(scope: Scope, node: Node, gemm: GemmAttrs) -> Expr:
    x, w, *params = _operands(scope, node)
    if node.operand(1).quant is not None and not _params(node)[1].per_tensor:
        raise unsupported(node, "qnn.batch_matmul takes one scale for its second operand")
    single = [len(e.ty.shape.values) == 1 for e in (x, w)]  # vectors are matrices of one row
    x = scope.emit(op.expand_dims(x, [0])) if single[0] else x
    w = scope.emit(op.expand_dims(w, [1])) if single[1] else w
    extent = x.ty.shape.values[-2 if gemm.trans_a else -1]
    inner = int(extent) if isinstance(extent, int | tirx.IntImm) else 1 << 31
    attrs = {
        "transpose_a": gemm.trans_a,
        "transpose_b": gemm.trans_b,
        "out_dtype": _accumulator(node, inner),
    }
    acc = scope.qnn("batch_matmul", [x, w, *params], attrs)
    if any(single):
        rank = len(acc.ty.shape.values)
        axes = [rank - 2 + i for i in range(2) if single[i]]
        acc = scope.emit(op.squeeze(acc, axes))
    return _finish(scope, node, acc, axis=-1, trailing=0, gemm=gemm)


def _finish(
    scope: Scope,
    node: Node,
    acc: Expr,
    *,
    axis: int,
    trailing: int,
    tiles: int = 1,
    gemm: GemmAttrs | None = None,
) -> Expr:
    """Bias, then requantize into the result's type, or dequantize where it is float."""
    px, pw = _params(node)
    left = px.scale.astype(np.float32)
    if gemm is not None and gemm.alpha != 1.0:
        left = np.asarray(np.float32(gemm.alpha) * left, np.float32)
    scale = np.asarray(left * pw.scale.astype(np.float32), np.float32)
    scale = np.tile(scale, tiles) if scale.ndim else scale
    bias, beta = node.optional(2), 1.0 if gemm is None else gemm.beta
    if bias is not None and beta == 1.0 and _in_units(bias, scale):
        acc, bias = _add_bias(scope, acc, bias, trailing), None
    zero, result = number(np.zeros((), np.int32)), node.output.quant
    if result is not None and bias is None:
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
    if bias is not None:
        real = scope.emit(op.add(real, _real_bias(scope, bias, trailing, beta)))
    if result is not None:
        return scope.quantize(real, result.params)
    return scope.cast(real, tvm_dtype(node.output.type.dtype))


def _in_units(bias: Value, scale: NDArray[Any]) -> bool:
    """True where a bias counts in units of the accumulator's scale, so that it can be added."""
    if bias.constant is None or bias.quant is None:
        return False
    params = bias.quant.params
    if params.storage_dtype is not DType.INT32 or not params.symmetric or params.blocked:
        return False
    own, wanted = np.broadcast_arrays(params.scale.reshape(-1), scale)
    return bool(np.array_equal(own, wanted))


def _real_bias(scope: Scope, bias: Value, trailing: int, beta: float) -> Expr:
    if bias.constant is None:
        real = scope.cast(scope.real(bias), "float32")
    else:
        stored = bias.constant.numpy()
        array = stored if bias.quant is None else dequantize(stored, bias.quant.params)
        real = number(array.astype(np.float32))
    if beta != 1.0:
        real = scope.emit(op.multiply(real, number(np.asarray(beta, np.float32))))
    return _column(scope, real, bias, trailing)


def _add_bias(scope: Scope, acc: Expr, bias: Value, trailing: int) -> Expr:
    assert bias.constant is not None
    array = bias.constant.numpy().astype(str(acc.ty.dtype))
    array = array.reshape(-1, *([1] * trailing)) if trailing else array
    return scope.emit(op.add(acc, number(array)))


def _column(scope: Scope, vector: Expr, bias: Value, trailing: int) -> Expr:
    if not trailing or bias.rank != 1:
        return vector
    return scope.emit(op.reshape(vector, (-1, *([1] * trailing))))
