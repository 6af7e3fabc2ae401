"""Operators as their file spelled them, where onnxruntime's float kernels round differently."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.graph.types import TensorType
from qdqbridge.onnx_io.write_real import is_quantized, real_dtype
from qdqbridge.ops.attributes import GemmAttrs, ReduceAttrs, ReshapeAttrs

if TYPE_CHECKING:
    from qdqbridge.onnx_io.write_nodes import NodeWriter

_SEQUENCE = ReduceAttrs((2,))
_ROWS = GemmAttrs(trans_b=True)


def respelled(node: Node) -> tuple[str, Attributes]:
    """Returns the operator to write for a node, and its attributes.

    A mean over space is a GlobalAveragePool, and one of a sequence a ReduceMean, but for files that
    had it the other way round; of stored integers onnxruntime has a kernel for the pool alone.
    """
    name, spelling = node.op.name, node.origin.spelling
    rank = node.operand(0).rank if node.inputs else None
    if name == "GlobalAveragePool" and spelling == "ReduceMean" and rank is not None:
        return spelling, ReduceAttrs(tuple(range(2, rank)))
    pool = spelling == "GlobalAveragePool" or (not spelling and is_quantized(node))
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
    if node.op.name != "Gemm" or node.attributes != _ROWS or is_quantized(node):
        return False
    return node.operand(1).constant is not None


def adds_behind(node: Node) -> bool:
    """True for a float convolution whose bias was an Add of its own."""
    if node.op.name not in ("Conv", "ConvTranspose") or not node.origin.with_add:
        return False
    bias = node.optional(2)
    return bias is not None and bias.constant is not None and not is_quantized(node)


def add_behind(writer: NodeWriter, node: Node, product: str, target: str) -> None:
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
