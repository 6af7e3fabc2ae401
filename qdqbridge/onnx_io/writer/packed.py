"""A product with a weight in blocks as the MatMulNBits of com.microsoft that its file had."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.build import permuted_constant
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.packed_products import (
    EIGHT_BITS,
    OWN_ORDER,
    PERMUTED,
    PackedProduct,
    packed_product,
)
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.onnx_io.lowering.context import MICROSOFT, UNSIGNED, packed
from qdqbridge.onnx_io.tensors import raw_bytes
from qdqbridge.onnx_io.writer.names import stem
from qdqbridge.onnx_io.writer.rows import RowWriter, real_dtype

_NO_ORDER = np.zeros(0, np.int64)
_SWAPPED = (1, 0)


@dataclass(frozen=True, slots=True)
class _PackedWeight:
    """What a node multiplies by, as a MatMulNBits has it.

    Attributes:
        said: How the file wrote it.
        codes: The stored weight.
        params: Its parameters.
        block: Columns of a block.
        points: Zero points as unsigned codes, ``[N, blocks]``.
    """

    said: PackedProduct
    codes: Constant
    params: QuantParams
    block: int
    points: NDArray[np.generic]


def unread_orders(nodes: Sequence[Node], outputs: Collection[Value]) -> set[Node]:
    """Returns the Gathers that put activations in order for packed products alone."""
    here = set(nodes)
    ordered = {
        node for node in nodes
        if (said := _said(node)) is not None and said.order == PERMUTED
        and _in_file(node, here)[1].size and _packed_weight(node) is not None
    }  # fmt: skip
    makers = {maker for node in ordered if (maker := node.operand(0).producer) is not None}
    return {
        maker for maker in makers
        if maker.output not in outputs and all(user in ordered for user, _ in maker.output.users)
    }  # fmt: skip


def packed_weights(values: Iterable[Value]) -> set[Value]:
    """Returns the weights that only MatMulNBits hold, in bytes: any opset has these."""
    return {
        value for value in values
        if value.is_constant and value.quant is not None and value.users
        and all(index == 1 and _packed_weight(user) is not None for user, index in value.users)
    }  # fmt: skip


def is_packed_matmul(node: Node) -> bool:
    """True for a MatMul that a MatMulNBits can say: of a vector, or of nobody knows what rank.

    The others are Dense.
    """
    return node.op is MATMUL and _packed_weight(node) is not None


def packed_row(writer: RowWriter, node: Node, target: str, type_: TensorType) -> bool:
    """Adds the rows of a node that was a MatMulNBits; returns whether it can be one still.

    Args:
        writer: Where they go.
        node: ``Dense(x, w[N, K], bias[N])``, ``DynamicBlockDense``, or what ``is_packed_matmul``.
        target: The float tensor to write.
        type_: Its type.
    """
    found, dtype = _packed_weight(node), real_dtype(node)
    if found is None:
        return False
    said, params, block, points = found.said, found.params, found.block, found.points
    data, order = _in_file(node, writer.here)
    rows, columns = found.codes.shape
    bits, name = params.storage_dtype.bits, stem(writer.tensors.of(node.operand(1)))

    def entered(array: NDArray[np.generic], what: str) -> str:
        return writer.array(array, f"{name}_{what}")

    codes = found.codes
    if order.size:
        sorted_codes = codes.numpy()
        in_file = np.empty_like(sorted_codes)
        in_file[:, order] = sorted_codes
        codes = Constant.of(in_file)
    inputs = [writer.real(data, dtype)]
    inputs.append(writer.constant(_pack_weight_blocks(codes, params, block), f"{name}_packed"))
    inputs.append(entered(_of_blocks(params.scale, params, points.shape), "scales"))
    inputs += ["", "", ""]
    if said.zero_points == "packed":
        each = (packed(row, bits) for row in points)
        stored = np.frombuffer(b"".join(each), np.uint8).reshape(rows, -1)
        inputs[3] = entered(stored, "zero_points")
    elif said.zero_points:
        inputs[3] = entered(points.astype(dtype.numpy), "zero_points")
    if said.order == OWN_ORDER or order.size:
        groups = np.arange(columns, dtype=np.int32) // block
        if order.size:
            groups[order] = groups.copy()
        inputs[4] = entered(groups, "g_idx")
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
    writer.spec.imports.setdefault(MICROSOFT, 1)
    if bias is not None and behind:
        writer.row("Add", [product, writer.bias(bias, dtype)], target, type_)
    return True


def _packed_weight(node: Node) -> _PackedWeight | None:
    """Returns what a node multiplies by; None where no MatMulNBits can say it."""
    said = _said(node)
    if said is None:
        return None
    w = _by_results(node)
    if w is None or w.constant is None or w.quant is None:
        return None
    params = w.quant.params
    block, bits = params.block_size or said.block_size, params.storage_dtype.bits
    along = params.axis == 1 if params.blocked else params.axis in (None, 0)
    plain = params.scale_dtype is real_dtype(node)
    if not block or not along or bits not in UNSIGNED or not plain:
        return None
    if said.rounds(bits) != (node.op is DYNAMIC_BLOCK_DENSE):
        return None
    rows, columns = w.constant.shape
    shape = (rows, -(-columns // block))
    points = _unsigned_codes_int16(_of_blocks(params.zero_point, params, shape), params)
    if said.zero_points == "" and (points != 1 << (bits - 1)).any():
        return None
    return _PackedWeight(said, w.constant, params, block, points)


def _by_results(node: Node) -> Value | None:
    """Returns the weight of a node as ``[N, K]``, a row for each result; None where it has none."""
    w = node.operand(1)
    if node.op in (DENSE, DYNAMIC_BLOCK_DENSE):
        return w
    stored = node.op is MATMUL and w.is_constant and w.rank == len(_SWAPPED)
    return permuted_constant(w, _SWAPPED) if stored else None


def _in_file(node: Node, here: Collection[Node]) -> tuple[Value, NDArray[np.int64]]:
    """Returns a product's activations as its file has them, and the order of their columns.

    A Gather that puts them in the order of the blocks is the product's own only if it is among the
    nodes that are written: part of a graph may begin behind it.
    """
    x, said = node.operand(0), _said(node)
    made = x.producer
    if said is None or said.order != PERMUTED or made is None or made not in here:
        return x, _NO_ORDER
    gather, indices = GATHER.of(made), made.optional(1)
    if gather is None or indices is None or indices.constant is None:
        return x, _NO_ORDER
    if gather.axis != (x.rank or 0) - 1 or x.quant is not None:
        return x, _NO_ORDER
    order = indices.constant.numpy().astype(np.int64)
    data = made.operand(0)
    if data.type.shape is None or data.type.shape[-1] != order.size:
        return x, _NO_ORDER
    if not np.array_equal(np.sort(order), np.arange(order.size)):
        return x, _NO_ORDER
    return data, order


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


def _unsigned_codes_int16(stored: NDArray[np.generic], params: QuantParams) -> NDArray[np.generic]:
    """Returns stored integers as unsigned codes."""
    return stored.astype(np.int16) - params.storage_dtype.qmin


def _pack_weight_blocks(constant: Constant, params: QuantParams, block: int) -> Constant:
    """Returns the bytes ``[N, blocks, bytes of a block]``; a last short block is padded by 0."""
    rows, columns = constant.shape
    bits, blocks = params.storage_dtype.bits, -(-columns // block)
    shape = (rows, blocks, block * bits // 8)
    if columns == blocks * block:  # neighbours in a file already: only the sign bits differ
        flip = sum(1 << (i + bits - 1) for i in range(0, 8, bits))
        flip = flip if params.storage_dtype.qmin < 0 else 0
        data = np.frombuffer(raw_bytes(constant), np.uint8) ^ np.uint8(flip)
        return Constant.of(data.reshape(shape))
    codes = np.pad(
        _unsigned_codes_int16(constant.numpy(), params), ((0, 0), (0, blocks * block - columns))
    )
    return Constant.of(np.frombuffer(packed(codes, bits), np.uint8).reshape(shape))
