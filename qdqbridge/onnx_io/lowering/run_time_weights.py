"""Packed weights with scales per block that only the run knows, unpacked by float nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qdqbridge.core.graph.types import static_shape
from qdqbridge.onnx_io.lowering.context import LoweringContext

_REAL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


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


def unpacked_weight(context: LoweringContext, blocks: Blocks) -> str:
    """Returns the real weight ``[N, K]`` of a MatMulNBits.

    Where there is a ``g_idx``, onnxruntime 1.32 takes 8 for every packed zero point of 4 bits and
    reads codes of 2 bits as those of 4, whatever order it gives. Where the weight is a constant and
    ``accuracy_level`` 4 it takes scales of run time for 0 and leaves zero points of run time out
    (rule ``scales-of-run-time`` of profile ``ort``). Here both are as its text says.

    Raises:
        InvalidModelError: An operand whose shape is known does not fit the attributes.
        UnsupportedQuantization: The weight is not a tensor of bytes.
    """
    weight, scale, zero_point, order = (context.input(i) for i in range(1, 5))
    kind = context.known.element_type(scale) or TensorProto.FLOAT
    if context.known.element_type(weight) not in (0, TensorProto.UINT8) or kind not in _REAL:
        raise context.refusal(
            "its weight is not a tensor of packed codes",
            f"'{weight}' or its scale '{scale}' has another element type",
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


def _groups(context: LoweringContext, name: str, columns: int, padded: int) -> str:
    """Returns the block of each column; a ``g_idx`` may tell those of the padding, too."""
    known = static_shape(context.known.shape(name))
    if known is None or math.prod(known) != padded:
        return _fitted(context, name, (columns,))
    begin, end = (context.enter(np.array([n], np.int64), "end") for n in (0, columns))
    return context.op("Slice", [_fitted(context, name, (padded,)), begin, end])


def _zero_points(context: LoweringContext, name: str, blocks: Blocks, kind: int) -> str:
    """Returns the zero points ``[N, blocks]`` as floats, or the one that all have."""
    if not name:
        return context.enter(_typed_scalar(1 << (blocks.bits - 1), kind), "zero_point")
    if context.known.element_type(name) in _REAL:
        fitted = _fitted(context, name, (blocks.rows, blocks.count))
        return context.op("Cast", [fitted], to=kind)
    return _unpack_bits_in_graph(context, name, blocks, blocks.count, kind)


def _unpack_bits_in_graph(
    context: LoweringContext, name: str, blocks: Blocks, count: int, kind: int
) -> str:
    """Returns the codes of packed rows as floats ``[N, count]``, the lowest bits of a byte first.

    Bytes are taken apart by floats, which have every operator that this needs everywhere.
    """
    width = blocks.width(count)
    rest = context.op("Cast", [_fitted(context, name, (blocks.rows, width))], to=kind)
    if blocks.bits == 8:
        return rest
    rest, parts = _shaped(context, rest, (blocks.rows, width, 1)), list[str]()
    base = context.enter(_typed_scalar(1 << blocks.bits, kind), "base")
    for _ in range(8 // blocks.bits - 1):
        above = context.op("Floor", [context.op("Div", [rest, base])])
        parts.append(context.op("Sub", [rest, context.op("Mul", [above, base])]))
        rest = above
    every = context.op("Concat", [*parts, rest], axis=2)
    whole = width * 8 // blocks.bits
    return _first(context, _shaped(context, every, (blocks.rows, whole)), whole, count)


def _fitted(context: LoweringContext, name: str, shape: Sequence[int]) -> str:
    """Returns an operand in a shape; those of other ranks hold the same elements in order."""
    known = static_shape(context.known.shape(name))
    if known is not None and math.prod(known) != math.prod(shape):
        raise context.fault(
            f"'{name}' does not fit N, K and block_size",
            why=f"it has the shape {known}; {math.prod(shape)} elements are needed",
            fix="correct the attributes, or quantize the weight again",
        )
    return name if known == tuple(shape) else _shaped(context, name, shape)


def _shaped(context: LoweringContext, name: str, shape: Sequence[int]) -> str:
    return context.op("Reshape", [name, context.enter(np.array(shape, np.int64), "shape")])


def _first(context: LoweringContext, name: str, count: int, wanted: int) -> str:
    """Returns the first columns of a matrix of ``count``."""
    if count == wanted:
        return name
    begin, end, axis = (
        context.enter(np.array([number], np.int64), what)
        for number, what in ((0, "begin"), (wanted, "end"), (1, "axis"))
    )
    return context.op("Slice", [name, begin, end, axis])


def _typed_scalar(value: int, kind: int) -> NDArray[Any]:
    return np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
