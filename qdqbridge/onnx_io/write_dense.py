"""Dense as the file spelled it: Gemm or MatMul, the weight's rows in the file's direction.

onnxruntime's float kernels round differently for Gemm and MatMul + Add, for a bias inside and
behind Gemm, and for the two layouts of the weight (measured on 1.31), so the spelling is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType, Shape, TensorType
from qdqbridge.onnx_io.write_real import real_dtype

if TYPE_CHECKING:
    from qdqbridge.onnx_io.write_nodes import NodeWriter

COLUMNS = "Gemm(transB=0)"
"""Spelling of a Gemm whose weight is ``[K, N]``."""


def dense_rows(writer: NodeWriter, node: Node, target: str, type_: TensorType) -> None:
    """Adds the rows of one Dense node.

    Args:
        writer: Where they go.
        node: ``Dense(x, w[N, K], bias[N])``.
        target: The float tensor to write.
        type_: Its type.
    """
    gemm = _is_gemm(node)
    bias = node.optional(2)
    behind = bias is not None and (not gemm or _from_add(node))
    dtype = real_dtype(node)
    product = writer.free.take(f"{target}_product") if behind else target
    weight, transposed = _weight(writer, node, gemm=gemm)
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
    spelling = node.origin.spelling
    if spelling.startswith("Gemm"):
        return True  # the rank of x may be unknown, ONNX says that it is 2
    return spelling != "MatMul" and node.operand(0).rank == 2


def _from_add(node: Node) -> bool:
    """True where the bias was an Add of its own in the file."""
    return node.origin.with_add


def _weight(writer: NodeWriter, node: Node, *, gemm: bool) -> tuple[str, bool]:
    """Returns the float weight, and True where it is ``[K, N]``."""
    w, dtype = node.operand(1), real_dtype(node)
    if gemm and not _columns(node, w):
        return writer.real(w, dtype), False
    if w.constant is None:
        real = writer.real(w, dtype)
        type_ = TensorType(dtype, _swapped(w.type.shape))
        name = writer.free.take(f"{real}_transposed")
        return writer.row("Transpose", [real], name, type_, {"perm": [1, 0]}), True
    swapped = w.constant.map(np.transpose, shape=w.constant.shape[::-1])
    stored = writer.constant(swapped, writer.tensors.of(w))
    if w.quant is None:
        return stored, True
    type_ = QuantType(_swapped_params(w.quant.params), _swapped(w.type.shape))
    target = writer.free.take(f"{stored}_DequantizeLinear_Output")
    return writer.dequantize(stored, type_, target, dtype), True


def _columns(node: Node, w: Value) -> bool:
    """True where the file's weight was ``[K, N]``: it says so, or its array in memory is one."""
    if node.origin.spelling != "Gemm":
        return node.origin.spelling == COLUMNS
    if w.constant is None:
        return False
    array = w.constant.numpy()
    return array.strides == (array.itemsize, array.itemsize * array.shape[0])


def _swapped_params(params: QuantParams) -> QuantParams:
    if params.axis is None:
        return params
    if not params.blocked:
        return params.with_axis(1 - params.axis)
    return replace(
        params, scale=params.scale.T, zero_point=params.zero_point.T, axis=1 - params.axis
    )


def _swapped(shape: Shape) -> Shape:
    return None if shape is None else shape[::-1]
