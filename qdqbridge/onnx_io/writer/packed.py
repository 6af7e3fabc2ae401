"""A product with a weight in blocks as the MatMulNBits of com.microsoft that its file had."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import TensorType
from qdqbridge.onnx_io.lowering.bits import UNSIGNED, packed
from qdqbridge.onnx_io.lowering.site import MICROSOFT
from qdqbridge.onnx_io.tensors import raw_bytes
from qdqbridge.onnx_io.writer.names import stem
from qdqbridge.onnx_io.writer.rows import RowWriter, real_dtype
from qdqbridge.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.ops.packed_products import EIGHT_BITS, PackedProduct, packed_product


def packed_row(writer: RowWriter, node: Node, target: str, type_: TensorType) -> bool:
    """Adds the rows of a node that was a MatMulNBits; returns whether it can be one still.

    Args:
        writer: Where they go.
        node: ``Dense(x, w[N, K], bias[N])``, or ``DynamicBlockDense``.
        target: The float tensor to write.
        type_: Its type.
    """
    said, w = _said(node), node.operand(1)
    if said is None or w.constant is None or w.quant is None:
        return False
    params, dtype = w.quant.params, real_dtype(node)
    block, bits = params.block_size or said.block_size, params.storage_dtype.bits
    along = params.axis == 1 if params.blocked else params.axis in (None, 0)
    if not block or not along or bits not in UNSIGNED or params.scale_dtype is not dtype:
        return False
    if said.rounds(bits) != (node.op is DYNAMIC_BLOCK_DENSE):
        return False
    rows, columns = w.constant.shape
    shape = (rows, -(-columns // block))
    points = _codes(_of_blocks(params.zero_point, params, shape), params)
    if said.zero_points == "" and (points != 1 << (bits - 1)).any():
        return False
    name = stem(writer.tensors.of(w))

    def entered(array: NDArray[np.generic], what: str) -> str:
        return writer.array(array, f"{name}_{what}")

    inputs = [writer.real(node.operand(0), dtype)]
    inputs.append(writer.constant(_weight(w.constant, params, block), f"{name}_packed"))
    inputs.append(entered(_of_blocks(params.scale, params, shape), "scales"))
    inputs += ["", "", ""]
    if said.zero_points == "packed":
        each = (packed(row, bits) for row in points)
        stored = np.frombuffer(b"".join(each), np.uint8).reshape(rows, -1)
        inputs[3] = entered(stored, "zero_points")
    elif said.zero_points:
        inputs[3] = entered(points.astype(dtype.numpy), "zero_points")
    if said.order:
        inputs[4] = entered(np.arange(columns, dtype=np.int32) // block, "g_idx")
    bias = node.optional(2)
    behind = bias is not None and not said.bias
    if bias is not None and not behind:
        inputs[5] = writer.bias(bias, dtype)
    while not inputs[-1]:
        inputs.pop()
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    if said.accuracy_level is not None:
        attributes["accuracy_level"] = said.accuracy_level
    product = writer.free.take(f"{target}_product") if behind else target
    writer.row("MatMulNBits", inputs, product, type_, attributes, node, MICROSOFT)
    writer.sheet.imports.setdefault(MICROSOFT, 1)
    if bias is not None and behind:
        writer.row("Add", [product, writer.bias(bias, dtype)], target, type_)
    return True


def _said(node: Node) -> PackedProduct | None:
    """Returns how the file wrote a node, or how it has to be where no file did."""
    said, rounded = packed_product(node.origin.variant), DYNAMIC_BLOCK_DENSE.of(node)
    if said is not None or rounded is None:
        return said
    return PackedProduct(EIGHT_BITS, "packed", block_size=rounded.block_size)


def _of_blocks(
    array: NDArray[np.generic], params: QuantParams, shape: tuple[int, int]
) -> NDArray[np.generic]:
    """Returns scales or zero points with one of every block, ``[N, blocks]``."""
    return np.broadcast_to(array if params.blocked else array.reshape(-1, 1), shape)


def _codes(stored: NDArray[np.generic], params: QuantParams) -> NDArray[np.generic]:
    """Returns stored integers as unsigned codes."""
    return stored.astype(np.int16) - params.storage_dtype.qmin


def _weight(constant: Constant, params: QuantParams, block: int) -> Constant:
    """Returns the bytes ``[N, blocks, bytes of a block]``; a last short block is padded by 0."""
    rows, columns = constant.shape
    bits, blocks = params.storage_dtype.bits, -(-columns // block)
    shape = (rows, blocks, block * bits // 8)
    if columns == blocks * block:  # neighbours in a file already: only the sign bits differ
        flip = sum(1 << (i + bits - 1) for i in range(0, 8, bits))
        flip = flip if params.storage_dtype.qmin < 0 else 0
        data = np.frombuffer(raw_bytes(constant), np.uint8) ^ np.uint8(flip)
        return Constant.of(data.reshape(shape))
    codes = np.pad(_codes(constant.numpy(), params), ((0, 0), (0, blocks * block - columns)))
    return Constant.of(np.frombuffer(packed(codes, bits), np.uint8).reshape(shape))
