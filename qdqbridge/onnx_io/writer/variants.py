"""Operators written otherwise: as their file had them, or so that nothing fuses them."""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.accumulator import BIAS_MOVES, leaves_int32
from qdqbridge.core.ops.attributes import GemmAttrs, ReduceAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import permuted_params, permuted_shape
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.ops.unary import LEAKY_RELU, SIGMOID
from qdqbridge.onnx_io.writer.fused import packed_row
from qdqbridge.onnx_io.writer.spec import RowWriter, is_quantized, real_dtype

# ---- What onnxruntime must not fuse: it would compute something else, or refuse the file ---------
# Its optimizations (1.32) put operators between DequantizeLinear and QuantizeLinear into kernels of
# integers without asking whether these can say the parameters. A Reshape in between, to the shape
# that there is, stays, and hides the Q or DQ.


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
        target: The tensor to write, if there is a name for it.
    """
    shape = type_.shape
    if shape is None:
        return writer.row("Identity", [real], target, type_) if target else real
    known = all(isinstance(extent, int) and extent for extent in shape)
    extents = np.array(shape if known else [0] * len(shape), np.int64)  # 0 keeps what is there
    name = target or writer.free.take(f"{real}_kept")
    return writer.row("Reshape", [real, writer.array(extents, f"{real}_shape")], name, type_)


# ---- Operators as their file wrote them, where onnxruntime's float kernels round differently -----
# They do for Gemm and MatMul + Add, for a bias inside and behind Gemm, and for the two layouts of a
# Gemm's weight (measured on 1.31).


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
    variant, rank = node.origin.variant, node.operand(0).rank
    if variant.startswith("Gemm"):
        return rank in (2, None)  # ONNX says 2; of another rank it was one between Reshapes
    return (rank == 2 or node.op is GEMM) and not variant.startswith("MatMul")


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
