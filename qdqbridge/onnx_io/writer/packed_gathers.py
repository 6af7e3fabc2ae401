"""A Gather of a packed table as the GatherBlockQuantized of com.microsoft that its file had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import AxisAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.packed_products import PackedGather, packed_gather
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.onnx_io.lowering.bits import packed
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.writer.names import stem
from qdqbridge.onnx_io.writer.rows import RowWriter

_WIDTHS = (4, 8)


@dataclass(frozen=True, slots=True)
class GatheredTable:
    """What is gathered from.

    Attributes:
        said: How the file wrote it.
        table: The stored constant.
        data: Its codes.
        params: Its parameters.
        points: Zero points as unsigned codes, one of every block.
        scales: Scales of every block.
    """

    said: PackedGather
    table: Value
    data: Constant
    params: QuantParams
    points: NDArray[Any]
    scales: NDArray[Any]


def packed_gathers(nodes: Sequence[Node]) -> dict[Node, GatheredTable]:
    """Returns the nodes that can be such an operator still, and what they gather from.

    What dequantizes the table is among the nodes, too: part of a graph is written by itself.
    """
    here = set(nodes)
    found = {
        node: _packed_gather_table(node) for node in nodes
        if node.op is GATHER and node.operand(0).producer in here
    }  # fmt: skip
    return {node: table for node, table in found.items() if table is not None}


def unread(gathers: Mapping[Node, GatheredTable], outputs: set[Value]) -> set[Node]:
    """Returns the nodes that dequantize whole tables for these operators alone."""
    makers = {maker for node in gathers if (maker := node.operand(0).producer) is not None}
    return {
        maker for maker in makers
        if maker.output not in outputs and all(user in gathers for user, _ in maker.output.users)
    }  # fmt: skip


def packed_tables(nodes: Sequence[Node], outputs: Iterable[Value]) -> set[Value]:
    """Returns the tables that only these operators hold, in bytes: any opset has these."""
    in_bytes = {
        node: table for node, table in packed_gathers(nodes).items()
        if table.said.storage == DType.UINT8.label
    }  # fmt: skip
    makers = unread(in_bytes, set(outputs))
    tables = {maker.operand(0) for maker in makers}
    return {table for table in tables if all(user in makers for user, _ in table.users)}


def _packed_gather_table(node: Node) -> GatheredTable | None:
    said, made = packed_gather(node.origin.variant), node.operand(0).producer
    if said is None or made is None or made.op is not DEQUANTIZE or node.output.quant is not None:
        return None
    table = made.operand(0)
    if table.constant is None or table.quant is None:
        return None
    params, data = table.quant.params, table.constant
    bits, kind = params.storage_dtype.bits, node.output.type.dtype
    fits = params.block_size in (None, said.block_size) and said.axis < len(data.shape)
    if bits not in _WIDTHS or not fits or params.scale_dtype is not kind:
        return None
    if params.blocked and params.axis != said.axis:
        return None
    grid = list(data.shape)
    grid[said.axis] = -(-grid[said.axis] // said.block_size)
    points = _of_blocks(_unsigned_codes_uint8(params.zero_point, params), params, grid)
    centre = 1 << (bits - 1) if said.storage != DType.UINT4.label else 0
    packs = said.storage == DType.UINT8.label
    if packs and (said.axis != len(grid) - 1 or grid[-1] * said.block_size != data.shape[-1]):
        return None
    if not packs and bits != _WIDTHS[0]:
        return None
    if not said.zero_points and (points != centre).any():
        return None
    return GatheredTable(said, table, data, params, points, _of_blocks(params.scale, params, grid))


def _of_blocks(array: NDArray[Any], params: QuantParams, grid: list[int]) -> NDArray[Any]:
    """Returns scales or zero points with one of every block."""
    whole = array if params.blocked else params.aligned(array, tuple(grid))
    return np.broadcast_to(whole, grid)


def _unsigned_codes_uint8(stored: NDArray[Any], params: QuantParams) -> NDArray[np.uint8]:
    return (stored.astype(np.int16) - params.storage_dtype.qmin).astype(np.uint8)


def gather_row(writer: RowWriter, node: Node, table: GatheredTable) -> None:
    """Adds the operator."""
    said, bits = table.said, table.params.storage_dtype.bits
    name, axis = stem(writer.tensors.of(table.table)), node.record(AxisAttrs).axis
    params = table.params

    def stored(codes: NDArray[np.uint8]) -> Constant:
        """Returns unsigned codes as the file holds them."""
        if said.storage == DType.UINT8.label:
            rows = codes.reshape(-1, codes.shape[-1])
            each = b"".join(packed(row, bits) for row in rows)
            return Constant.of(np.frombuffer(each, np.uint8).reshape(*codes.shape[:-1], -1))
        kind = next(each for each in (DType.INT4, DType.UINT4) if each.label == said.storage)
        return Constant.of((codes.astype(np.int16) + kind.qmin).astype(kind.numpy))

    data = table.data.numpy()
    inputs = [writer.constant(stored(_unsigned_codes_uint8(data, params)), f"{name}_packed")]
    inputs += [writer.real(node.operand(1), DType.INT64)]
    inputs += [writer.array(table.scales, f"{name}_scales")]
    if said.zero_points:
        inputs.append(writer.constant(stored(table.points), f"{name}_zero_points"))
    attributes = {
        "bits": bits, "block_size": said.block_size, "gather_axis": axis,
        "quantize_axis": said.axis,
    }  # fmt: skip
    output = node.output
    type_ = TensorType(output.type.dtype, output.type.shape)
    target = writer.tensors.of(output)
    writer.row("GatherBlockQuantized", inputs, target, type_, attributes, node, MICROSOFT)
    writer.spec.imports.setdefault(MICROSOFT, 1)
