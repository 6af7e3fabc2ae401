"""Conv, ConvTranspose, Dense, Gemm and MatMul on quantized operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.graph.weights import geometry_of
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.emit.convolution import ConvolutionCall, convolution
from qdqbridge.tvm.qnn.emit.dtypes import storage, tvm_dtype
from qdqbridge.tvm.qnn.emit.matrices import batches
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr, unsupported
from qdqbridge.tvm.qnn.ranges import accumulator_dtype, magnitude


def quantized_accumulation(scope: EmissionScope, node: Node) -> Expr | None:
    """Emits the integer form; returns None where the operands have none."""
    x, w = node.operand(0), node.operand(1)
    if x.quant is None or w.quant is None or not x.quant.params.per_tensor:
        return None
    if node.op.body is not None:  # steps that could not be nodes
        return None
    if isinstance(node.attributes, ConvAttrs | ConvTransposeAttrs):
        return _convolution(scope, node, node.attributes)
    if node.op is DENSE:
        return _dense(scope, node)
    return _product(scope, node)


def _params(node: Node) -> tuple[QuantParams, QuantParams]:
    x, w = node.operand(0).quant, node.operand(1).quant
    assert x is not None and w is not None
    return x.params, w.params


def _parameters(scope: EmissionScope, node: Node) -> list[Expr]:
    """Returns zero points, then scales, of both operands."""
    px, pw = _params(node)
    return [
        scope.zero_point(px),
        scope.number(_kernel_zero_point(scope, pw)),
        scope.scale(px),
        scope.scale(pw),
    ]


def _kernel_zero_point(scope: EmissionScope, params: QuantParams) -> NDArray[np.int32]:
    if scope.variant.scalar_zero_point and params.symmetric:
        return np.zeros((), np.int32)
    return params.zero_point


def _accumulator(node: Node, products: int) -> str:
    px, pw = _params(node)
    bias = node.optional(2)
    largest = 0
    if bias is not None and bias.quant is not None and bias.constant is not None:
        largest = int(np.abs(bias.constant.numpy().astype(np.int64)).max(initial=0))
    left = magnitude(storage(px), px.zero_point)
    right = magnitude(storage(pw), pw.zero_point)
    return accumulator_dtype(products, left, right, largest)


def _convolution(
    scope: EmissionScope, node: Node, attributes: ConvAttrs | ConvTransposeAttrs
) -> Expr:
    shape = static_shape(node.operand(1).type.shape)
    if shape is None:
        raise unsupported(node, "the extents of its weight are known at run time only")
    form = convolution(scope, node, attributes, shape)
    x = scope.value(node.operand(0))
    if form.lifted:
        x = scope.emit(scope.op.expand_dims(x, [form.height]))
    w = scope.value(node.operand(1)) if form.kernel is None else _kernel(scope, node, form)
    attrs = {**form.attrs, "out_dtype": _accumulator(node, form.products)}
    acc = scope.qnn(form.name, [x, w, *_parameters(scope, node)], attrs)
    result = _finish(scope, node, acc, axis=form.axis)
    return scope.emit(scope.op.squeeze(result, [form.height])) if form.lifted else result


def _kernel(scope: EmissionScope, node: Node, form: ConvolutionCall) -> Expr:
    """Returns the weight as ``form`` wants it laid out."""
    w = node.operand(1)
    assert form.kernel is not None
    if w.constant is not None:
        return scope.constant(form.kernel.of(w.constant), w.name)
    spread = scope.emit(scope.op.reshape(scope.value(w), list(form.kernel.shape)))
    return scope.emit(scope.op.permute_dims(spread, list(form.kernel.axes)))


def _dense(scope: EmissionScope, node: Node) -> Expr:
    w = node.operand(1)
    stored = scope.value(w) if w.constant is None else scope.constant(w.constant, w.name)
    return _by_matrix(scope, node, scope.value(node.operand(0)), stored)


def _product(scope: EmissionScope, node: Node) -> Expr:
    """Gemm and MatMul: ``qnn.dense`` of a constant matrix, and of one with scales per channel."""
    attributes, w = node.attributes, node.operand(1)
    gemm = attributes if isinstance(attributes, GemmAttrs) else GemmAttrs()
    one_scale = w.quant is None or _params(node)[1].per_tensor
    if w.rank != 2 or (w.constant is None and one_scale):
        return _batch_matmul(scope, node, gemm)
    if w.constant is None:
        stored = scope.value(w)
        stored = stored if gemm.trans_b else scope.emit(scope.op.permute_dims(stored))
    else:
        rows, columns = w.constant.shape
        weight = w.constant
        if not gemm.trans_b:
            weight = weight.map(np.transpose, shape=(columns, rows))
        stored = scope.constant(weight, w.name)
    x = scope.value(node.operand(0))
    x = scope.emit(scope.op.permute_dims(x)) if gemm.trans_a else x
    return _by_matrix(scope, node, x, stored, gemm)


def _by_matrix(
    scope: EmissionScope,
    node: Node,
    x: Expr,
    stored: Expr,
    gemm: GemmAttrs | None = None,
) -> Expr:
    """Emits ``qnn.dense`` of ``x`` and a weight of shape (units, K)."""
    extents = scope.extents(stored)
    if not all(isinstance(extent, int) for extent in extents):
        raise unsupported(node, "qnn.dense takes a weight of known extents")
    units, inner = (int(extent) for extent in extents)
    attrs = {"units": units, "out_dtype": _accumulator(node, inner)}
    lead = scope.extents(x)[:-1]
    flat = scope.only_matrices and len(lead) != 1
    if flat:
        x = scope.emit(scope.op.reshape(x, (-1, inner)))
    acc = scope.qnn("dense", [x, stored, *_parameters(scope, node)], attrs)
    result = _finish(scope, node, acc, axis=scope.rank(acc) - 1, gemm=gemm)
    return scope.emit(scope.op.reshape(result, (*lead, units))) if flat else result


def _batch_matmul(scope: EmissionScope, node: Node, gemm: GemmAttrs) -> Expr:
    x, w = scope.value(node.operand(0)), scope.value(node.operand(1))
    if node.operand(1).quant is not None and not _params(node)[1].per_tensor:
        raise unsupported(node, "qnn.batch_matmul takes one scale for its second operand")
    single = [scope.rank(e) == 1 for e in (x, w)]  # vectors are matrices of one row
    x = scope.emit(scope.op.expand_dims(x, [0])) if single[0] else x
    w = scope.emit(scope.op.expand_dims(w, [1])) if single[1] else w
    x, w = scope.aligned([x, w], trailing=2)
    extent = scope.extents(x)[-2 if gemm.trans_a else -1]
    inner = extent if isinstance(extent, int) else 1 << 31
    attrs = {
        "transpose_a": gemm.trans_a,
        "transpose_b": gemm.trans_b,
        "out_dtype": _accumulator(node, inner),
    }
    lead: list[Any] | None = None
    if scope.only_matrices:
        x, w, lead = batches(scope, x, w, gemm)
        attrs = {"out_dtype": attrs["out_dtype"]}
    acc = scope.qnn("batch_matmul", [x, w, *_parameters(scope, node)], attrs)
    result = _finish(scope, node, acc, axis=-1, gemm=gemm)
    if lead is not None and len(lead) != 1:
        result = scope.emit(scope.op.reshape(result, (*lead, *scope.extents(acc)[-2:])))
    if any(single):
        rank = scope.rank(result)
        axes = [rank - 2 + i for i in range(2) if single[i]]
        result = scope.emit(scope.op.squeeze(result, axes))
    return result


def _finish(
    scope: EmissionScope,
    node: Node,
    acc: Expr,
    *,
    axis: int,
    gemm: GemmAttrs | None = None,
) -> Expr:
    """Bias, then requantize into the result's type, or dequantize where it is float."""
    scale = _scale(node, 1.0 if gemm is None else gemm.alpha)
    bias, beta = node.optional(2), 1.0 if gemm is None else gemm.beta
    if bias is not None and beta == 1.0 and _in_units(bias, scale):
        assert bias.constant is not None
        array = bias.constant.numpy().astype(scope.dtype(acc))
        acc, bias = scope.variant.bias(scope, acc, array, axis), None
    elif bias is None and scope.variant.zero_bias and axis >= 0:
        none = np.zeros(scope.extents(acc)[axis], scope.dtype(acc))
        acc = scope.variant.bias(scope, acc, none, axis)
    result = node.output.quant
    if result is not None and bias is None:
        return scope.variant.requantize(scope, acc, scale, axis, result.params)
    zero = scope.number(np.zeros((), np.int32))
    real = scope.qnn("dequantize", [acc, scope.number(scale), zero], {"axis": axis})
    if bias is not None:
        fitting = scope.aligned([real, _real_bias(scope, bias, axis, real, beta)])
        real = scope.emit(scope.op.add(*fitting))
    if result is not None:
        return scope.quantize(real, result.params)
    return scope.cast(real, tvm_dtype(node.output.type.dtype))


def _scale(node: Node, alpha: float) -> NDArray[np.float32]:
    """Returns the scale of the accumulator, one number or one per channel."""
    px, pw = _params(node)
    left = px.scale.astype(np.float32)
    if alpha != 1.0:
        left = np.asarray(np.float32(alpha) * left, np.float32)
    scale = np.asarray(left * pw.scale.astype(np.float32), np.float32)
    geometry = geometry_of(node)
    return scale if geometry is None else geometry.spread(scale)


def _in_units(bias: Value, scale: NDArray[Any]) -> bool:
    """True where a bias counts in units of the accumulator's scale, so that it can be added."""
    if bias.constant is None or bias.quant is None:
        return False
    params = bias.quant.params
    if params.storage_dtype is not DType.INT32 or not params.symmetric or params.blocked:
        return False
    own, wanted = np.broadcast_arrays(params.scale.reshape(-1), scale)
    return bool(np.array_equal(own, wanted))


def _real_bias(scope: EmissionScope, bias: Value, axis: int, acc: Expr, beta: float) -> Expr:
    if bias.constant is None:
        real = scope.cast(scope.real(bias), "float32")
    else:
        stored = bias.constant.numpy()
        array = stored if bias.quant is None else dequantize(stored, bias.quant.params)
        real = scope.number(array.astype(np.float32))
    if beta != 1.0:
        real = scope.emit(scope.op.multiply(real, scope.number(np.asarray(beta, np.float32))))
    trailing = scope.rank(acc) - 1 - axis
    if axis < 0 or not trailing or bias.rank != 1:
        return real
    return scope.emit(scope.op.reshape(real, (-1, *([1] * trailing))))
