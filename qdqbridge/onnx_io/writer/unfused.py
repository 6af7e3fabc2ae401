"""What onnxruntime must not fuse: it would compute something else, or refuse the file.

Its optimizations (1.32) put operators between DequantizeLinear and QuantizeLinear into kernels of
integers without asking whether these can say the parameters. A Reshape in between, to the shape
that there is, stays, and hides the Q or DQ.
"""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.accumulator import BIAS_MOVES, leaves_int32
from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.ops.softmax import SOFTMAX
from qdqbridge.core.ops.unary import LEAKY_RELU, SIGMOID
from qdqbridge.onnx_io.writer.rows import RowWriter

_BYTE, _PAIR, _WORD = 8, 2, 32
_BIAS, _MATRIX = 2, 2
_PRODUCTS = (CONV, DENSE, GEMM, MATMUL)
_FUSED = (
    *_PRODUCTS, AVERAGE_POOL, GLOBAL_AVERAGE_POOL, REDUCE_MEAN, LEAKY_RELU, SIGMOID, SOFTMAX, WHERE,
)  # fmt: skip
"""Operators that are fused whatever their scales are along."""


def unfused(writer: RowWriter, node: Node, weight: str, type_: TensorType) -> str:
    """Returns a dequantized matrix ``[K, N]`` so that onnxruntime makes no MatMulNBits of it.

    onnxruntime's optimizations (1.32) make one of every MatMul, and of every Gemm by a matrix
    ``[K, N]``, whose weight a DequantizeLinear gives and whose activation is not of 8 bits. It
    rounds the activation to 8 bits: of 16-bit results some hundred steps are lost.

    Args:
        writer: Where rows go.
        node: What multiplies.
        weight: The dequantized matrix.
        type_: Its type.
    """
    w = node.operand(1)
    if not writer.options.packed:
        return weight
    if _multiplies_bytes(node):
        return unfused_operand(writer, node, w, weight, type_)
    return hidden(writer, weight, type_) if _few_bits(w) else weight


def _multiplies_bytes(node: Node) -> bool:
    """True for a product of an activation of 8 bits and one scale, which is fused otherwise."""
    x = _skip_dequantize(node.operand(0)).quant
    return x is not None and x.params.storage_dtype.bits == _BYTE and x.params.per_tensor


def _few_bits(value: Value) -> bool:
    stored = None if value.quant is None else value.quant.params.storage_dtype
    return stored is not None and not stored.is_float and stored.bits <= _BYTE


def unfused_operand(
    writer: RowWriter, node: Node, value: Value, real: str, type_: TensorType
) -> str:
    """Returns a dequantized operand so that no kernel gets it that cannot say its parameters.

    Args:
        writer: Where rows go.
        node: What reads it.
        value: What is stored.
        real: The dequantized tensor.
        type_: Its type.
    """
    if writer.options.packed and value.quant is not None and _unsaid(node, value, value):
        return hidden(writer, real, type_)
    return real


def hides_dequantize(writer: RowWriter, source: Value, result: Value) -> bool:
    """Returns whether a reader of what is dequantized would be fused with that, and cannot be."""
    if not writer.options.packed:
        return False
    packs = source.constant is not None and source.rank == _MATRIX and _few_bits(source)
    return any(
        _unsaid(node, result, source)
        or (
            packs
            and index == 1
            and _output_channel_axis(node, _MATRIX) == 1
            and not _multiplies_bytes(node)
        )
        for node, index in result.users
    )


def unfused_result(
    writer: RowWriter, node: Node | None, quant: QuantType | None, real: str, type_: TensorType
) -> str:
    """Returns a float result that is rounded in a way which no kernel can say.

    Args:
        writer: Where rows go.
        node: What gives it.
        quant: What it is rounded to.
        real: The float tensor.
        type_: Its type.
    """
    if not writer.options.packed or node is None or node.op not in _FUSED or quant is None:
        return real
    if quant.params.per_tensor or quant.params.storage_dtype.bits != _BYTE:
        return real
    return hidden(writer, real, type_)


def _unsaid(node: Node, operand: Value, stored: Value) -> bool:
    """True where the kernel that would be fused has no place for parameters.

    Args:
        node: What reads.
        operand: What it reads.
        stored: The same as it is stored, with parameters.
    """
    assert stored.quant is not None
    params = stored.quant.params
    bits, second = params.storage_dtype.bits, len(node.inputs) > 1 and node.inputs[1] is operand
    if node.op is GEMM and node.optional(_BIAS) is operand:
        return params.storage_dtype is DType.INT32 and _other_units(node, stored)
    # QLinearConv, QLinearMatMul and QGemm get weights of 2 and of 32 bits, which none of them takes
    if stored.constant is not None and bits in (_PAIR, _WORD):
        beside = any(
            _skip_dequantize(v).quant is not None
            for _, v in node.data_operands()
            if not v.is_constant
        )
        return beside and (bits == _PAIR or (second and node.op in _PRODUCTS))
    if second and node.op in _PRODUCTS and leaves_int32(node):
        return True  # the kernel would wrap
    if node.op not in _FUSED or bits != _BYTE or params.per_tensor or not _reads(node, operand):
        return False
    if params.blocked and second and node.op is not CONV:
        # Only a MatMul whose result stays float is fused, into MatMulIntegerToFloat.
        return node.op in (DENSE, MATMUL) and node.output.quant is None
    return params.blocked or not second or params.axis != _output_channel_axis(node, stored.rank)


def _other_units(node: Node, bias: Value) -> bool:
    """True where QGemm, which adds an int32 bias as it is, adds something else.

    That is one of another scale than ``scale x * scale w``: a product of two activations has them.
    """
    x, w = node.operand(0).quant, node.operand(1).quant
    if bias.quant is None or bias.constant is None or x is None or w is None:
        return False
    sx, sw, own = (np.asarray(q.params.scale, np.float64).reshape(-1) for q in (x, w, bias.quant))
    units, y = sx[:1] * sw, node.output.quant
    step = units if y is None else np.asarray(y.params.scale, np.float64).reshape(-1)[:1]
    largest = np.abs(bias.constant.numpy().astype(np.float64)).max(initial=0.0)
    return bool((np.abs(own - units) * largest / step).max(initial=0.0) > BIAS_MOVES)


def _reads(node: Node, operand: Value) -> bool:
    """True where something is among the numbers that an operator computes with."""
    return any(value is operand for _, value in node.data_operands())


def _skip_dequantize(value: Value) -> Value:
    """Returns a value as it is stored, also where it is dequantized in the graph."""
    made = value.producer
    return made.operand(0) if made is not None and made.op is DEQUANTIZE else value


def _output_channel_axis(node: Node, rank: int | None) -> int | None:
    """Returns the axis of a product's second operand along which its results are."""
    if node.op in (CONV, DENSE):
        return 0
    if node.op not in _PRODUCTS:
        return None
    transposed = isinstance(node.attributes, GemmAttrs) and node.attributes.trans_b
    if rank is None or rank > _MATRIX:  # of a batch of matrices no kernel takes them
        return None
    return rank - (2 if transposed else 1)


def hidden(writer: RowWriter, real: str, type_: TensorType, target: str = "") -> str:
    """Adds a Reshape that changes nothing, behind which no DequantizeLinear is found.

    Args:
        writer: Where it goes.
        real: What is hidden.
        type_: Its type.
        target: The tensor to write, if there is a name for it.
    """
    shape = type_.shape
    if shape is None:
        return writer.row("Identity", [real], target, type_) if target else real
    known = all(isinstance(extent, int) and extent for extent in shape)
    extents = np.array(shape if known else [0] * len(shape), np.int64)  # 0 keeps what is there
    name = target or writer.free.take(f"{real}_kept")
    return writer.row("Reshape", [real, writer.array(extents, f"{real}_shape")], name, type_)
