"""com.microsoft's MatMulNBits and GatherBlockQuantized: packed weights with scales per block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.matmul import OWN_ORDER, PERMUTED, PackedGather, PackedProduct
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import UNSIGNED, LoweringContext, reading_rule, unpacked
from qdqbridge.onnx_io.tensors import dtype_to_onnx

_ATTRIBUTES = frozenset(("N", "K", "bits", "block_size", "accuracy_level", "weight_prepacked"))
_BYTES = {1: "weight", 2: "scales"}
_STORED = (DType.INT4, DType.UINT4)


@reading_rule(
    "matmul-nbits",
    ("com.microsoft::MatMulNBits", "a", "w", "scales", "zeros?", "g_idx?", "bias?"),
)
def matmul_nbits(context: LoweringContext) -> Value:
    """``MatMulNBits(a, w) -> MatMul(a, Transpose(DQ(w[N, K], blocks of K)))``.

    A missing zero point is 8 (128, 2). Columns in an order of their own (``g_idx`` of act-order)
    are put into that of their blocks, and activations by a Gather. What only the run knows, and
    blocks of other sizes than the block size, are unpacked and dequantized by float nodes:
    ``(code - zero point) * scale``, which is exact but for the product.
    Float arithmetic: onnxruntime's kernels add in another order, so results differ in their last
    bits. With ``accuracy_level`` 4 it is a product of blocks that are quantized on the way
    (``block-product``).
    Source: onnxruntime docs/ContribOperators.md.
    """
    bits, block = _width(context), context.int_("block_size", 0)
    rows, columns = context.int_("N", 0), context.int_("K", 0)
    if min(rows, columns, block) < 1:
        raise context.fault(
            "N, K or block_size is missing", why=f"N={rows}, K={columns}, block_size={block}"
        )
    if context.int_("weight_prepacked", 0):
        raise context.refusal(
            "its weight lies as a GPU multiplies it",
            f"weight_prepacked is {context.int_('weight_prepacked', 0)}",
            "export the weight as it is",
        )
    blocks = -(-columns // block)
    constant = context.are_constant(context.operands[1:5])
    order = _order(context, columns, block) if constant else None
    if order is None or (order.size and context.operand(0).rank is None):
        real = unpacked_weight(context, Blocks(bits, block, rows, columns))
        return _lower_unpacked_matmul(context, real)
    weight = _reordered_weight_codes(context, bits, rows, columns, block * blocks, order)
    scale = _enter_block_scales(context, (rows, blocks))
    zero_point = _zero_point(context, bits, (rows, blocks))
    real = context.dequantize(weight, scale, zero_point, axis=1, block_size=block)
    variant = _variant(context, block, PERMUTED if order.size else OWN_ORDER)
    return _lower_unpacked_matmul(context, real, variant, order)


def _variant(context: LoweringContext, block: int, order: str) -> str:
    """Returns what a writer needs to write the same node; empty where it cannot."""
    given = {attribute.name for attribute in context.proto.attribute}
    if not given <= _ATTRIBUTES:
        return ""
    level = context.int_("accuracy_level", 0) if "accuracy_level" in given else None
    points = ""
    if context.optional(3):
        points = "packed" if context.array(3, "its zero point").dtype.kind in "iu" else "float"
    order = order if context.optional(4) else ""
    return PackedProduct(level, points, order, bool(context.optional(5)), block).text()


def _lower_unpacked_matmul(
    context: LoweringContext, real: Value, variant: str = "", order: NDArray[Any] | None = None
) -> Value:
    """Makes ``MatMul(a, Transpose(real)) + bias``; the product is of that variant.

    Args:
        context: The node.
        real: The weight.
        variant: What a writer is told.
        order: Which columns of ``a`` to take, one after the other; empty or None: all as they are.
    """
    bias, output, x = context.optional(5), context.output, context.operand(0)
    rank = x.rank
    alone = bias is not None and rank == 1  # only of rows are a product and a bias one operator
    if alone:
        x, rank = context.op("Reshape", [x, context.enter(np.array([1, -1]), "row")]), 2
    if order is not None and order.size:
        chosen = context.enter(order.astype(np.int64), "order")
        x = context.op("Gather", [x, chosen], axis=(rank or 1) - 1)
    permuted = context.op("Transpose", [real], perm=[1, 0])
    y = context.op("MatMul", [x, permuted], "" if bias else output, variant=variant)
    if bias:
        y = context.op("Add", [y, bias], "" if alone else output)
    if alone:
        y = context.op("Reshape", [y, context.enter(np.array([-1]), "vector")], output)
    return y


def _width(context: LoweringContext) -> int:
    bits = context.int_("bits", 4)
    if bits not in UNSIGNED:
        raise context.refusal(
            f"weights of {bits} bits",
            "their codes do not divide a byte",
            "quantize to 2, 4 or 8 bits",
        )
    return bits


def _misfit(context: LoweringContext, what: str, array: NDArray[Any], wanted: int) -> Exception:
    return context.fault(
        f"{what} does not fit N, K and block_size",
        why=f"it has {array.size} elements of shape {array.shape}; {wanted} are needed",
        fix="correct the attributes, or quantize the weight again",
    )


def _order(context: LoweringContext, columns: int, block: int) -> NDArray[np.intp] | None:
    """Returns the columns in the order of their blocks; empty where they are in it.

    None where ``g_idx`` fills blocks with other than a block's columns.
    """
    if context.optional(4) is None:
        return np.zeros(0, np.intp)
    groups = context.array(4, "g_idx").reshape(-1)[:columns]
    plain = np.arange(columns) // block
    # Stable, so that columns of a block stay in the order that the file has them in.
    order = np.argsort(groups, kind="stable")
    if groups.size != columns or not np.array_equal(groups[order], plain):
        return None
    return np.zeros(0, np.intp) if np.array_equal(groups, plain) else order


def _reordered_weight_codes(
    context: LoweringContext,
    bits: int,
    rows: int,
    columns: int,
    padded: int,
    order: NDArray[np.intp],
) -> Value:
    """Returns the weight as ``[N, K]`` codes, their columns in an order.

    Without padding and order its bytes are taken as they are.
    """
    size = rows * padded * bits // 8
    if columns == padded and not order.size:
        same = _same_bytes(context, 1, (rows, columns), size, DType.UINT8, UNSIGNED[bits])
        if same is not None:
            return same
    data = context.packed(1, "its weight")
    if data.size != size:
        raise _misfit(context, "B", data, size)
    bytes_ = data.reshape(rows, padded * bits // 8)
    codes = unpacked(bytes_, bits, columns)
    return context.enter_codes(codes[:, order] if order.size else codes, bits, "weight")


def _enter_block_scales(context: LoweringContext, shape: tuple[int, int]) -> Value:
    count = shape[0] * shape[1]
    same = _same_bytes(context, 2, shape, count, DType.FLOAT32, DType.FLOAT32)
    if same is not None:
        return same
    scales = context.array(2, "its scale")
    if scales.size != count:
        raise _misfit(context, "scales", scales, count)
    return context.enter(scales.reshape(shape), "scales")


def _same_bytes(
    context: LoweringContext,
    index: int,
    shape: tuple[int, int],
    count: int,
    stored: DType,
    dtype: DType,
) -> Value | None:
    """Returns a constant of the same bytes in another shape; None where they are no such bytes.

    Args:
        context: The node.
        index: The operand.
        count: Elements that there have to be as it is stored.
        stored: The element type that it has to have.
        dtype: The one that it gets.
    """
    source = context.operand(index).constant
    if source is None or source.size != count or source.dtype is not stored:
        return None
    same = source.reinterpreted(dtype, shape)
    return None if same is None else context.enter_constant(same, _BYTES[index])


def _zero_point(context: LoweringContext, bits: int, shape: tuple[int, int]) -> Value:
    if context.optional(3) is None:
        return context.enter_codes(np.array(1 << (bits - 1)), bits, "zero_point")
    given = context.array(3, "its zero point")
    rows, blocks = shape
    if given.dtype.kind in "iu":
        width = -(-blocks * bits // 8)
        if given.size != rows * width:
            raise _misfit(context, "zero_points", given, rows * width)
        given = context.packed(3, "its zero point")
        codes = unpacked(given.reshape(rows, width), bits, blocks)
        return context.enter_codes(codes, bits, "zero_point")
    real = given.astype(np.float64)
    if given.size != rows * blocks or (real != np.clip(np.rint(real), 0, (1 << bits) - 1)).any():
        raise context.refusal(
            "its zero points are no codes",
            f"float zero points of shape {given.shape}, from {real.min():g} to {real.max():g}",
            f"give whole zero points from 0 to {(1 << bits) - 1}",
        )
    return context.enter_codes(real.reshape(shape), bits, "zero_point")


@reading_rule(
    "gather-block-quantized",
    ("com.microsoft::GatherBlockQuantized", "data", "indices", "scale", "zero?"),
)
def gather_block_quantized(context: LoweringContext) -> Value:
    """``GatherBlockQuantized(w, indices) -> Gather(DQ(w, blocks), indices)``.

    Bytes hold packed codes with a missing zero point of 8 (4 bits) or 128 (8 bits); int4 and uint4
    data have 0. Against onnxruntime 1.31: equal.
    Source: onnxruntime docs/ContribOperators.md.
    """
    data, indices, scale, zero_point = context.inputs(4)
    block, width, storage = context.int_("block_size", 128), 4, data.type.dtype
    if storage not in _STORED:
        width = _width(context)
        codes = context.packed(0, "its weight")
        plain = unpacked(codes, width, codes.shape[-1] * 8 // width)
        data = context.enter_codes(plain, width, "weight")
        zero_point = _gathered_zero_point(context, width)
    rank = data.rank
    if rank is None:
        raise context.refusal(
            "its weight is not constant", "its rank is unknown", "make it constant"
        )
    axis = context.int_("quantize_axis", 1)
    real = context.dequantize(data, scale, zero_point, axis=axis, block_size=block)
    named = storage.label if storage in _STORED else "uint8"
    said = PackedGather(named, bool(context.optional(3)), axis % rank, block)
    return context.op(
        "Gather", [real, indices], context.output,
        variant=said.text(), axis=context.int_("gather_axis", 0),
    )  # fmt: skip


def _gathered_zero_point(context: LoweringContext, bits: int) -> Value:
    """Returns the zero points; where nobody states them one, or as many as there are scales.

    onnxruntime wants the latter of a DequantizeLinear, which scales of run time stay.
    """
    if context.optional(3) is None:
        scale = context.operand(2)
        shape = None if context.are_constant([scale]) else static_shape(scale.type.shape)
        return context.enter_codes(np.full(shape or (), 1 << (bits - 1)), bits, "zero_point")
    blocks = context.array(2, "its scale").shape[-1]
    codes = unpacked(context.packed(3, "its zero point"), bits, blocks)
    return context.enter_codes(codes, bits, "zero_point")


# ---- Packed weights with scales per block that only the run knows, unpacked by float nodes

_REAL = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a MatMulNBits packs its weight ``[N, K]``.

    Attributes:
        bits: Bits of a code.
        size: Codes of a block, which are neighbours in a row.
        rows: N.
        columns: K; the last block of a row may be padded.
    """

    bits: int
    size: int
    rows: int
    columns: int

    @property
    def count(self) -> int:
        """Blocks of a row."""
        return -(-self.columns // self.size)

    def width(self, codes: int) -> int:
        """Returns the bytes that so many codes take."""
        return -(-codes * self.bits // 8)


def unpacked_weight(context: LoweringContext, blocks: Blocks) -> Value:
    """Returns the real weight ``[N, K]`` of a MatMulNBits.

    Where there is a ``g_idx``, onnxruntime 1.32 takes 8 for every packed zero point of 4 bits and
    reads codes of 2 bits as those of 4, whatever order it gives. Where the weight is a constant and
    ``accuracy_level`` 4 it takes scales of run time for 0 and leaves zero points of run time out
    (rule ``scales-of-run-time`` of profile ``ort``). Here both are as its text says.

    Raises:
        InvalidModelError: An operand whose shape is known does not fit the attributes.
        NoNewForm: The weight is not a tensor of bytes.
    """
    _, weight, scale, zero_point, order = context.inputs(5)
    kind = scale.type.dtype
    if weight.type.dtype is not DType.UINT8 or kind not in _REAL:
        raise context.refusal(
            "its weight is not a tensor of packed codes",
            f"'{weight.name}' or its scale '{scale.name}' has another element type",
            "store the weight as uint8 and its scales as floats",
        )
    rows, padded = blocks.rows, blocks.count * blocks.size
    codes = _unpack_bits_in_graph(context, weight, blocks, padded, kind)
    scales = _fitted(context, scale, (rows, blocks.count))
    zeros = _zero_points(context, zero_point, blocks, kind)
    if order:  # the block of each column
        every = _groups(context, order, blocks.columns, padded)
        scales = context.op("Gather", [scales, every], axis=1)
        zeros = context.op("Gather", [zeros, every], axis=1) if zero_point else zeros
        codes = _first(context, codes, padded, blocks.columns)
        return context.op("Mul", [context.op("Sub", [codes, zeros]), scales])
    inner = (rows, blocks.count, 1)
    codes = _shaped(context, codes, (rows, blocks.count, blocks.size))
    zeros = _shaped(context, zeros, inner) if zero_point else zeros
    real = context.op("Mul", [context.op("Sub", [codes, zeros]), _shaped(context, scales, inner)])
    return _first(context, _shaped(context, real, (rows, padded)), padded, blocks.columns)


def _groups(context: LoweringContext, value: Value, columns: int, padded: int) -> Value:
    """Returns the block of each column; a ``g_idx`` may tell those of the padding, too."""
    known = static_shape(value.type.shape)
    if known is None or math.prod(known) != padded:
        return _fitted(context, value, (columns,))
    begin, end = (context.enter(np.array([n], np.int64), "end") for n in (0, columns))
    return context.op("Slice", [_fitted(context, value, (padded,)), begin, end])


def _zero_points(
    context: LoweringContext, value: Value | None, blocks: Blocks, kind: DType
) -> Value:
    """Returns the zero points ``[N, blocks]`` as floats, or the one that all have."""
    if value is None:
        return context.enter(_typed_scalar(1 << (blocks.bits - 1), kind), "zero_point")
    if value.type.dtype in _REAL:
        fitted = _fitted(context, value, (blocks.rows, blocks.count))
        return context.op("Cast", [fitted], to=dtype_to_onnx(kind))
    return _unpack_bits_in_graph(context, value, blocks, blocks.count, kind)


def _unpack_bits_in_graph(
    context: LoweringContext, value: Value, blocks: Blocks, count: int, kind: DType
) -> Value:
    """Returns the codes of packed rows as floats ``[N, count]``, the lowest bits of a byte first.

    Bytes are taken apart by floats, which have every operator that this needs everywhere.
    """
    width = blocks.width(count)
    rows = _fitted(context, value, (blocks.rows, width))
    rest = context.op("Cast", [rows], to=dtype_to_onnx(kind))
    if blocks.bits == 8:
        return rest
    rest, parts = _shaped(context, rest, (blocks.rows, width, 1)), list[Value]()
    base = context.enter(_typed_scalar(1 << blocks.bits, kind), "base")
    for _ in range(8 // blocks.bits - 1):
        # Powers of two and bytes: division and difference are exact in every float type.
        above = context.op("Floor", [context.op("Div", [rest, base])])
        parts.append(context.op("Sub", [rest, context.op("Mul", [above, base])]))
        rest = above
    every = context.op("Concat", [*parts, rest], axis=2)
    whole = width * 8 // blocks.bits
    return _first(context, _shaped(context, every, (blocks.rows, whole)), whole, count)


def _fitted(context: LoweringContext, value: Value, shape: Sequence[int]) -> Value:
    """Returns an operand in a shape; those of other ranks hold the same elements in order."""
    known = static_shape(value.type.shape)
    if known is not None and math.prod(known) != math.prod(shape):
        raise context.fault(
            f"'{value.name}' does not fit N, K and block_size",
            why=f"it has the shape {known}; {math.prod(shape)} elements are needed",
            fix="correct the attributes, or quantize the weight again",
        )
    return value if known == tuple(shape) else _shaped(context, value, shape)


def _shaped(context: LoweringContext, value: Value, shape: Sequence[int]) -> Value:
    return context.op("Reshape", [value, context.enter(np.array(shape, np.int64), "shape")])


def _first(context: LoweringContext, value: Value, count: int, wanted: int) -> Value:
    """Returns the first columns of a matrix of ``count``."""
    if count == wanted:
        return value
    begin, end, axis = (
        context.enter(np.array([number], np.int64), what)
        for number, what in ((0, "begin"), (wanted, "end"), (1, "axis"))
    )
    return context.op("Slice", [value, begin, end, axis])


def _typed_scalar(value: int, kind: DType) -> NDArray[Any]:
    return np.asarray(value, kind.numpy)


RULES: tuple[Rule, ...] = (matmul_nbits, gather_block_quantized)
