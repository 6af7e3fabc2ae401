"""Products whose weight is stored and whose activation is not: which there can be, and what of.

The activation stays a real number (weight-only quantization), or is rounded by its own extremes
while the model runs (dynamic quantization); in both cases sums leave as real numbers, biases stay
what they are, and nothing has to be known of the activation beforehand.
"""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.core.canonical.linear import transposed
from qdqbridge.core.canonical.storage import coarsest, signed_constant
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, geometry_of
from qdqbridge.core.graph.types import QuantParams, Shape
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import DYNAMIC_CONV, DYNAMIC_DENSE, DynamicAttrs
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL, PackedProduct
from qdqbridge.onnx_io.runtime.operators import is_lstm
from qdqbridge.onnx_io.writer.variants import ROWS

_MATRICES = (DENSE, GEMM, MATMUL)
RECURRENT = ("LSTM", "GRU", "RNN")
"""Operators whose operands 1 and 2 are weights with a row for each element of each gate."""
_LEAST, _LARGEST, _PACKED_BITS = 16, 256, (4, 8)
"""The blocks that onnxruntime's MatMulNBits has (1.32), and its widths."""


def refusal(node: Node, read: Unstored) -> str:
    """Returns why a product cannot read its activation so; nothing where it can.

    Args:
        node: A node that the target quantizes.
        read: How its activation shall be read.
    """
    weight = node.optional(1)
    if node.op.name in RECURRENT:
        constant = all(node.operand(i).is_constant and node.operand(i).rank == 3 for i in (1, 2))
        if not constant:
            return "its weights are computed"
        # onnxruntime has DynamicQuantizeLSTM, and nothing of that kind for GRU and RNN.
        kernel = read is Unstored.FLOAT or is_lstm(node)
        return "" if kernel else f"there is no dynamically quantized {node.op.name}"
    if geometry_of(node) is None or weight is None or not weight.is_constant:
        return "only products with constant weights read activations that nobody stores"
    if node.operand(0).is_constant:
        return "both of its operands are constants"
    if read is Unstored.FLOAT:
        return ""
    # ConvInteger takes images of any rank; the checks below are those of MatMulInteger.
    if node.op is CONV and read is Unstored.DYNAMIC:
        return ""
    if node.op not in _MATRICES or weight.rank != 2:
        return f"there is no dynamically quantized {node.op.name}, but for constant matrices"
    rank = node.operand(0).rank
    if rank is None or rank < 2:
        return "its activation has no rows"
    gemm = GEMM.of(node)
    plain = gemm is None or (not gemm.trans_a and gemm.alpha == 1.0 and gemm.beta == 1.0)
    return "" if plain else "a dynamically quantized product has no transposed rows or factors"


def weight_format(node: Node, format: Format, results: int | None) -> Format:
    """Returns a format of weights with the axis that it means for ``node``.

    Recurrent operators have a scale for every element of every gate, the same in both directions.
    Blocks lie along the terms of a sum. Where there are fewer terms than a block has, and for
    convolutions whose terms are not one axis, there are scales per channel instead.

    Args:
        node: A product.
        format: As a target has it.
        results: The axis of the weight that numbers the results; None where scales cannot vary.
    """
    if format.axis is None:
        return format
    if node.op.name in RECURRENT:
        return replace(format, axis=1, block=None)
    if format.block is None:
        return replace(format, axis=results)
    shape, geometry = node.operand(1).type.shape, geometry_of(node)
    if shape is None or geometry is None or not all(isinstance(n, int) for n in shape):
        return replace(format, axis=results, block=None)
    axis = None
    if node.op in _MATRICES and len(shape) >= 2:
        axis = 2 * len(shape) - 3 - geometry.axis  # the other one of the last two
    elif node.op is CONV and set(shape[2:]) <= {1}:
        axis = 1
    terms = None if axis is None else shape[axis]
    if not isinstance(terms, int) or terms <= format.block:
        return replace(format, axis=results, block=None)
    return replace(format, axis=axis)


def read_dynamically(
    editor: Editor, node: Node, stored: Constant, params: QuantParams, *, rows: bool
) -> None:
    """Makes a DynamicDense or DynamicConv of a product that has no factors of its own.

    Args:
        editor: Of the graph that the node is in.
        node: A Conv; or a Dense, Gemm or MatMul with a constant matrix.
        stored: The integers of its weight, as it has it.
        params: Their parameters.
        rows: Every row of the activation has parameters of its own.
    """
    data, params = signed_constant(stored, params)
    weight = constant(data, coarsest(params.widened()), node.operand(1).name)
    weight = weight if _by_rows(node) else transposed(weight)
    bias, output, window = node.optional(2), node.output, CONV.of(node)
    plain = bias is None or _is_vector(bias.type.shape, weight.type.shape)
    operands = [node.operand(0), weight, *([bias] if bias is not None and plain else [])]
    op, attributes = DYNAMIC_DENSE, DynamicAttrs(rows)
    if window is not None:
        op, attributes = DYNAMIC_CONV, window
    value = result(op, attributes, operands, output.type, node.origin, output.name)
    if bias is not None and not plain:
        value = result(ADD, NO_ATTRIBUTES, [value, bias], output.type, node.origin, output.name)
    editor.replace_value(output, value)
    editor.insert(value)


def packed_variant(node: Node, params: QuantParams) -> str:
    """Returns the variant of a product of float activations; nothing where it has to be no other.

    What onnxruntime's MatMulNBits can be is one.

    Its accuracy level is that of float32: dequantized weights in front of a MatMul are fused to one
    of level 4 by onnxruntime's optimizations (1.32), which rounds activations to 8 bits.
    A product of matrices whose activation has no known rank stays what it is: a MatMulNBits takes
    any rank, so the file would not say any more that there are only rows. Its weight is written in
    rows: dequantized columns in front of a Gemm are fused as those of a MatMul are, rows are not.

    Args:
        node: The product.
        params: Of its weight.
    """
    rows = node.operand(1).type.shape
    if node.op not in _MATRICES or rows is None or len(rows) != 2:
        return ""
    if node.op is not MATMUL and node.operand(0).rank is None:
        return ROWS
    terms = rows[1] if _by_rows(node) else rows[0]
    # One block for a whole row where it is short: MatMulNBits has blocks of a power of two only.
    whole = 1 << (int(terms) - 1).bit_length() if isinstance(terms, int) else _LEAST
    block, bits = params.block_size or min(max(whole, _LEAST), _LARGEST), params.storage_dtype.bits
    if not params.storage_dtype.is_integer:
        return ""
    if block < _LEAST or block & (block - 1) or bits not in _PACKED_BITS:
        return ""
    middle = 0 if params.storage_dtype.is_signed else 1 << (bits - 1)
    points = "packed" if (params.zero_point != middle).any() else ""
    return PackedProduct(zero_points=points, block_size=block).text()


def _by_rows(node: Node) -> bool:
    """True where the weight of a product has a row for each result."""
    geometry = geometry_of(node)
    return geometry is not None and geometry.axis == 0


def _is_vector(bias: Shape, weight: Shape | None) -> bool:
    """True for a bias with one number for each row of a weight."""
    return bias is not None and weight is not None and bias == weight[:1]
