"""Operators as their file wrote them, where onnxruntime's float kernels round differently.

They do for Gemm and MatMul + Add, for a bias inside and behind Gemm, and for the two layouts of a
Gemm's weight (measured on 1.31).
"""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, ReduceAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import permuted_params, permuted_shape
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import GEMM
from qdqbridge.onnx_io.writer.packed import packed_row
from qdqbridge.onnx_io.writer.rows import RowWriter, is_quantized, real_dtype
from qdqbridge.onnx_io.writer.unfused import unfused, unfused_operand

COLUMNS = "Gemm(transB=0)"
"""Form of a Gemm whose weight is ``[K, N]``."""
ROWS = "Gemm(transB=1)"
"""The variant of a Dense to be written with its weight as it is kept, ``[N, K]``."""
_SEQUENCE = ReduceAttrs((2,))
_ROWS = GemmAttrs(trans_b=True)
_SWAPPED = (1, 0)


def file_variant(node: Node) -> tuple[str, Attributes]:
    """Returns the operator to write for a node, and its attributes.

    A mean over space is a GlobalAveragePool, and one of a sequence a ReduceMean, but for files that
    had it the other way round; of stored integers onnxruntime has a kernel for the pool alone.
    """
    name, variant = node.op.name, node.origin.variant
    rank = node.operand(0).rank if node.inputs else None
    if name == "GlobalAveragePool" and variant == "ReduceMean" and rank is not None:
        return variant, ReduceAttrs(tuple(range(2, rank)))
    pool = variant == "GlobalAveragePool" or (not variant and is_quantized(node))
    if name == "ReduceMean" and pool and rank == 3 and node.attributes == _SEQUENCE:
        return "GlobalAveragePool", NO_ATTRIBUTES
    if isinstance(node.attributes, ReshapeAttrs):
        return name, _numbered(node.attributes, node.operand(0))
    return name, node.attributes


def _numbered(attributes: ReshapeAttrs, data: Value) -> ReshapeAttrs:
    """Returns a target with a number for its -1 where that is known.

    onnxruntime cannot tell what a -1 stands for where another extent is 0, a batch of nothing say.
    """
    target, shape = attributes.shape or (), data.type.shape
    if -1 not in target or shape is None or attributes.allow_zero:
        return attributes
    copied = {axis for axis, extent in enumerate(target) if extent == 0}
    rest = [extent for axis, extent in enumerate(shape) if axis not in copied]
    known = [extent for extent in rest if isinstance(extent, int) and extent]
    if len(known) != len(rest):
        return attributes
    left = math.prod(known) // math.prod(extent for extent in target if extent > 0)
    return ReshapeAttrs(tuple(left if extent == -1 else extent for extent in target))


def is_product_of_rows(node: Node) -> bool:
    """True for a float Gemm that has the operands of a Dense."""
    if node.op is not GEMM or node.attributes != _ROWS or is_quantized(node):
        return False
    return node.operand(1).constant is not None


def adds_behind(node: Node) -> bool:
    """True for a float convolution whose bias was an Add of its own."""
    if node.op not in (CONV, CONV_TRANSPOSE) or not node.origin.with_add:
        return False
    bias = node.optional(2)
    return bias is not None and bias.constant is not None and not is_quantized(node)


def add_behind(writer: RowWriter, node: Node, product: str, target: str) -> None:
    """Adds the row of such a bias.

    Args:
        writer: Where it goes.
        node: The convolution.
        product: Its result without bias.
        target: The tensor to write.
    """
    bias, output = node.operand(2), node.output
    assert bias.constant is not None
    shape = (bias.constant.size, *([1] * ((output.rank or 0) - 2)))
    column = bias.constant.map(lambda array: array.reshape(shape), shape=shape)
    inputs = [product, writer.constant(column, writer.tensors.of(bias))]
    writer.row("Add", inputs, target, TensorType(real_dtype(node), output.type.shape))


def dense_rows(writer: RowWriter, node: Node, target: str, type_: TensorType) -> None:
    """Adds the rows of one Dense node.

    Args:
        writer: Where they go.
        node: ``Dense(x, w[N, K], bias[N])``; or ``DynamicBlockDense``, whose activations are not
            rounded where the profile has no operator for that.
        target: The float tensor to write.
        type_: Its type.
    """
    if writer.options.packed and packed_row(writer, node, target, type_):
        return
    gemm = _is_gemm(node)
    bias = node.optional(2)
    behind = bias is not None and (not gemm or _from_add(node))
    dtype = real_dtype(node)
    product = writer.free.take(f"{target}_product") if behind else target
    weight, transposed = _float_weight_tensor(writer, node, gemm=gemm)
    inputs = [writer.real(node.operand(0), dtype), weight]
    attributes: dict[str, int] = {}
    if gemm:
        attributes = {"transB": int(not transposed)}
        if bias is not None and not behind:
            inputs.append(writer.bias(bias, dtype))
    writer.row("Gemm" if gemm else "MatMul", inputs, product, type_, attributes, node)
    if behind and bias is not None:
        writer.row("Add", [product, writer.bias(bias, dtype)], target, type_)


def _is_gemm(node: Node) -> bool:
    variant = node.origin.variant
    if variant.startswith("Gemm"):
        return True  # the rank of x may be unknown, ONNX says that it is 2
    matrices = node.operand(0).rank == 2 or node.op is GEMM
    return matrices and not variant.startswith("MatMul")


def _from_add(node: Node) -> bool:
    """True where the bias was an Add of its own in the file."""
    return node.origin.with_add


def _float_weight_tensor(writer: RowWriter, node: Node, *, gemm: bool) -> tuple[str, bool]:
    """Returns the float weight, and True where it is ``[K, N]``."""
    w, dtype = node.operand(1), real_dtype(node)
    columns = _columns(node, w)
    if writer.options.convolvable and _scales_laid_otherwise(w):
        w = _as_floats(writer, w, dtype)
    if gemm and not columns:
        real = writer.real(w, dtype)
        return unfused_operand(writer, node, w, real, TensorType(dtype, w.type.shape)), False
    if w.constant is None:
        real = writer.real(w, dtype)
        type_ = TensorType(dtype, permuted_shape(w.type.shape, _SWAPPED))
        name = writer.free.take(f"{real}_transposed")
        return writer.row("Transpose", [real], name, type_, {"perm": list(_SWAPPED)}), True
    swapped = w.constant.map(np.transpose, shape=w.constant.shape[::-1])
    stored = writer.constant(swapped, writer.tensors.of(w))
    if w.quant is None:
        return stored, True
    shape = permuted_shape(w.type.shape, _SWAPPED)
    type_ = QuantType(permuted_params(w.quant.params, _SWAPPED), shape)
    target = writer.free.take(f"{stored}_DequantizeLinear_Output")
    real = writer.dequantize(stored, type_, target, dtype)
    return unfused(writer, node, real, TensorType(dtype, shape)), True


def _scales_laid_otherwise(w: Value) -> bool:
    """True for a constant ``[N, K]`` with a scale for each of the K terms, or blocks of results."""
    params = None if w.quant is None or w.constant is None else w.quant.params
    return params is not None and params.axis == (0 if params.blocked else 1)


def _as_floats(writer: RowWriter, w: Value, dtype: DType) -> Value:
    assert w.quant is not None and w.constant is not None
    params = w.quant.params
    real = w.constant.map(lambda array: dequantize(array, params), dtype=DType.FLOAT32)
    if dtype is not DType.FLOAT32:
        floats = real
        real = floats.map(lambda array: array.astype(dtype.numpy), dtype=dtype)
    value = Value(TensorType(dtype, w.type.shape), w.name, constant=real)
    writer.tensors.adopt(value, writer.tensors.of(w))
    return value


def _columns(node: Node, w: Value) -> bool:
    """True where the file's weight was ``[K, N]``: it says so, or its array in memory is one."""
    if node.origin.variant != "Gemm":
        return node.origin.variant == COLUMNS
    if w.constant is None:
        return False
    array = w.constant.numpy()
    return array.strides == (array.itemsize, array.itemsize * array.shape[0])
