"""Products of an activation that is quantized while the model runs.

The scale and zero point of the activation are those of its own extremes, so no value has them as a
type: quantizing, the product of integers and its way back to floats are one operator, from floats
to floats. Source: ONNX DynamicQuantizeLinear-11 and MatMulInteger-10; onnxruntime
docs/ContribOperators.md, DynamicQuantizeMatMul, and MatMulNBits with accuracy_level 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Operator, Row, Types
from qdqbridge.core.graph.types import QuantParams, QuantType, ValueType
from qdqbridge.core.ops.accumulator import (
    accumulation_dtype,
    centered,
    exact_dtype,
    integer_params,
    lost_of_bytes,
)
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.convolution import CONV, correlate
from qdqbridge.core.ops.matmul import DENSE, rows_fit
from qdqbridge.core.ops.stored import optional, present

_LAST = 255
"""The last code of the type that activations are quantized to."""
LAST_OF_BLOCK = 127
"""The last code of the type that blocks of activations are quantized to, around 0."""
SMALLEST = 2.0**-110
"""Blocks without a larger activation count as zeros: their scale has no finite reciprocal."""


@dataclass(frozen=True, slots=True)
class DynamicAttrs(Attributes):
    """How an activation is quantized while the model runs: to uint8, by its extremes and 0.

    Attributes:
        rows: Every row (all but the last axis) has parameters of its own, not the whole tensor.
    """

    rows: bool = False


def dynamic_parameters(x: Array, *, rows: bool) -> tuple[Array, Array]:
    """Returns the scale (float32) and zero point (int32) of data, broadcastable against it.

    As onnxruntime has them: numbers that are none do not count, the scale of a range without extent
    is 1, and a zero point that is not a number is the last one.

    Args:
        x: float32.
        rows: One pair for every row, not for all data.
    """
    # 0 is part of every range, so that a NaN that counts as 0 moves neither end.
    real = np.where(np.isnan(x), np.float32(0), x)
    axes = (x.ndim - 1,) if rows else None
    low = np.minimum(real.min(axis=axes, keepdims=True, initial=0), np.float32(0))
    high = np.maximum(real.max(axis=axes, keepdims=True, initial=0), np.float32(0))
    with np.errstate(all="ignore"):
        scale = np.where(high == low, np.float32(1), (high - low) / np.float32(_LAST))
        place = np.float32(0) - low / scale
        clipped = np.minimum(np.maximum(place, np.float32(0)), np.float32(_LAST))
    shift = np.rint(np.where(np.isnan(place), np.float32(_LAST), clipped))
    return scale.astype(np.float32), shift.astype(np.int32)


def dynamic_codes(x: Array, scale: Array, zero_point: Array) -> Array:
    """Returns ``sat(rint(x / scale) + zero_point)`` as uint8; what is not a number gives 0."""
    with np.errstate(all="ignore"):
        shifted = np.rint(x / scale) + zero_point.astype(np.float32)
    shifted = np.where(np.isnan(shifted), np.float32(0), shifted)
    return np.clip(shifted, 0, _LAST).astype(np.uint8)


def _factors(
    operands: Operands, types: Types, *, rows: bool
) -> tuple[Array, Array, Array, Array] | None:
    """Returns the integers that are multiplied, in a type whose sums are exact, and both scales."""
    x, w = present(operands, 2)
    params = integer_params(types[1])
    if params is None:
        return None
    scale, zero_point = dynamic_parameters(x, rows=rows)
    left = dynamic_codes(x, scale, zero_point).astype(np.int32) - zero_point
    right = centered(w, params)
    # Sums are exact in a float type too, and NumPy multiplies matrices of floats by BLAS, those of
    # integers by a plain loop.
    dtype = exact_dtype(left, right, math.prod(w.shape[1:]))
    return left.astype(dtype), right.astype(dtype), scale, params.scale.astype(np.float32)


def _compute_dynamic_dense(attributes: DynamicAttrs, operands: Operands) -> tuple[Array, ...]:
    """The product of real numbers that is approximated."""
    del attributes
    x, w = present(operands, 2)
    dtype = accumulation_dtype(x)
    total, bias = np.matmul(x.astype(dtype), w.T.astype(dtype)), optional(operands, 2)
    return (np.asarray(total if bias is None else total + bias, x.dtype),)


def _contract(
    attributes: DynamicAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del results
    factors = _factors(operands, types, rows=attributes.rows)
    if factors is None:
        return None
    left, right, scale, weight_scale = factors
    total = np.matmul(left, right.T)
    x, w = present(operands, 2)
    # Nothing but where a processor is simulated whose sums of two products saturate at 16 bits.
    lost = lost_of_bytes(DType.UINT8, types[1].dtype) if types[1] is not None else None
    if lost is not None:
        codes = dynamic_codes(x, *dynamic_parameters(x, rows=attributes.rows))
        total = total + lost(codes, w.T)
    total, bias = total.astype(np.float32), optional(operands, 2)
    with np.errstate(all="ignore"):
        real = total * (scale * weight_scale)
        return (np.asarray(real if bias is None else real + bias, np.float32),)


def _check_types(node: Node) -> Iterator[str]:
    x, w = node.operand(0), node.operand(1)
    if x.type.dtype is not DType.FLOAT32 or x.quant is not None:
        yield "the input is not float32"
    if node.output.type.dtype is not DType.FLOAT32 or node.output.quant is not None:
        yield "the result is not float32"
    if integer_params(w.type) is None:
        yield "the weight is not quantized to integers, per tensor or per channel"
    elif w.quant is not None and w.quant.params.axis not in (None, 0):
        yield "the scales of the weight are not along its first axis"


def _check_dynamic_dense(node: Node, _: Attributes) -> Iterator[str]:
    yield from _check_types(node)
    if node.operand(0).rank == 1:
        yield "the input has rank 1"
    yield from rows_fit(node)


DYNAMIC_DENSE = Row(
    name="DynamicDense",
    flow=Flow.FLOAT,
    attributes=DynamicAttrs,
    compute=_compute_dynamic_dense,
    contract=_contract,
    data=(0,),
    check=_check_dynamic_dense,
    qnn="dynamic_dense",
    numerics="x[..., K] quantized while the model runs: s = (max(x, 0) - min(x, 0)) / 255, "
    "z = rint(-min(x, 0) / s), codes sat(rint(x / s) + z); y = f32(exact sum of (code - z)(w - zw))"
    " * f32(s * sw) + bias, with w[N, K] (scales on axis 0). s and z of the whole tensor, or of "
    "every row. Equals onnxruntime 1.32's DynamicQuantizeLinear and MatMulInteger, fused or not.",
)


# ---- convolutions -------------------------------------------------------------------------------


def _conv_contract(
    attributes: ConvAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del results
    factors = _factors(operands, types, rows=False)
    if factors is None:
        return None
    left, right, scale, weight_scale = factors
    total = correlate(attributes, left, right).astype(np.float32)
    column = (-1, *[1] * (left.ndim - 2))
    bias = optional(operands, 2)
    with np.errstate(all="ignore"):
        factor = scale.reshape(()) * weight_scale
        real = total * (factor.reshape(column) if factor.ndim else factor)
        real = real if bias is None else real + bias.reshape(column)
        return (np.asarray(real, np.float32),)


def _check_conv(node: Node, attributes: ConvAttrs) -> Iterator[str]:
    yield from _check_types(node)
    assert CONV.check is not None
    yield from CONV.check(node, attributes)


DYNAMIC_CONV = Row(
    name="DynamicConv",
    flow=Flow.FLOAT,
    attributes=ConvAttrs,
    compute=CONV.compute,
    contract=_conv_contract,
    data=(0,),
    check=_check_conv,
    qnn="dynamic_conv{rank}d",
    numerics="x[N, C, ...] quantized while the model runs as by DynamicDense, s and z of the whole "
    "tensor; y = f32(exact sum of (code - z)(w - zw)) * f32(s * sw) + bias, with w[O, C/group, "
    "...] (scales on axis 0); what is padded adds nothing. Equals onnxruntime 1.32's "
    "DynamicQuantizeLinear and ConvInteger.",
)


# ---- blocks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockAttrs(Attributes):
    """How an activation is quantized while the model runs: to int8, by the largest magnitude.

    Attributes:
        block_size: How many neighbours of a row have a scale of their own; those of the weight's
            blocks, where it has blocks.
    """

    block_size: int


def block_codes(x: Array, block_size: int) -> tuple[Array, Array]:
    """Returns codes (..., blocks, block_size) as float32, and the scale of each (..., blocks).

    The scale of a block with an infinity, or with what is not a number, is not a number.

    Args:
        x: float32; a row's last block is filled up with zeros.
        block_size: Elements of a block.
    """
    *rows, inner = x.shape
    blocks = -(-inner // block_size)
    padded = np.zeros((*rows, blocks * block_size), np.float32)
    padded[..., :inner] = x
    parts = padded.reshape(*rows, blocks, block_size)
    top = np.abs(parts).max(axis=-1, initial=0)
    # NaN compares False with everything, so that its block is not a usual one either.
    usual = (top >= SMALLEST) & (top < np.inf)
    safe = np.where(usual, top, np.float32(1))
    inverse = np.where(usual, np.float32(LAST_OF_BLOCK) / safe, np.float32(0))
    codes = np.rint(np.where(usual[..., None], parts, np.float32(0)) * inverse[..., None])
    step = np.where(usual, safe / np.float32(LAST_OF_BLOCK), np.where(top < SMALLEST, 0, np.nan))
    return codes.astype(np.float32), step.astype(np.float32)


def _block_dense(attributes: BlockAttrs, operands: Operands) -> tuple[Array, ...]:
    """The product of real numbers that is approximated."""
    return _compute_dynamic_dense(DynamicAttrs(), operands) if attributes.block_size else ()


def _block_contract(
    attributes: BlockAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del results
    x, w = present(operands, 2)
    params = _codes_of(types[1])
    if params is None:
        return None
    size = attributes.block_size
    codes, step = block_codes(x.astype(np.float32), size)
    blocks, units = codes.shape[-2], len(w)
    weight = np.zeros((units, blocks * size), np.int32)
    weight[:, : w.shape[1]] = centered(w, params)
    weight = weight.reshape(units, blocks, size)
    scale = params.scale.astype(np.float32)
    scale = np.broadcast_to(scale if params.blocked else scale.reshape(-1, 1), (units, blocks))
    dtype, total = exact_dtype(codes, weight, size), np.zeros((*x.shape[:-1], units), np.float32)
    with np.errstate(all="ignore"):
        # In this order and one float32 operation after the other, as the contract says: another
        # order rounds otherwise.
        for block in range(blocks):
            terms = np.matmul(codes[..., block, :].astype(dtype), weight[:, block].T.astype(dtype))
            total += terms.astype(np.float32) * step[..., block, None] * scale[:, block]
        bias, real = optional(operands, 2), np.asarray(total, x.dtype)
        return (real if bias is None else real + bias,)


def _codes_of(type_: ValueType | None) -> QuantParams | None:
    """Returns the parameters of a weight of at most 8 bits; None of another one."""
    if not isinstance(type_, QuantType):
        return None
    dtype = type_.params.storage_dtype
    return type_.params if dtype.is_integer and dtype.bits <= 8 else None


def _check_blocks(node: Node, attributes: BlockAttrs) -> Iterator[str]:
    x, w = node.operand(0), node.operand(1)
    if x.quant is not None or x.type.dtype not in (DType.FLOAT32, DType.FLOAT16):
        yield "the input is neither float32 nor float16"
    if node.output.type.dtype is not x.type.dtype or node.output.quant is not None:
        yield "the result is of another type than the input"
    params = _codes_of(w.type)
    if params is None:
        yield "the weight is not quantized to integers of at most 8 bits"
    elif params.blocked and (params.axis != 1 or params.block_size != attributes.block_size):
        yield "the weight has other blocks than the input"
    elif not params.blocked and params.axis not in (None, 0):
        yield "the scales of the weight are not along its first axis"
    if attributes.block_size < 1:
        yield f"its blocks have {attributes.block_size} elements"
    yield from rows_fit(node)


DYNAMIC_BLOCK_DENSE = Row(
    name="DynamicBlockDense",
    flow=Flow.FLOAT,
    attributes=BlockAttrs,
    compute=_block_dense,
    contract=_block_contract,
    data=(0,),
    check=_check_blocks,
    qnn="dynamic_block_dense",
    numerics="x[..., K] quantized while the model runs, block_size neighbours of a row at a time: "
    "m = max |x|, codes rint(x * (127 / m)), s = m / 127, in float32; y = sum over blocks, from "
    "the first on, of f32(exact sum of code * (w - zw)) * s * sw, a float32 operation after the "
    "other; rounded to x's type, then + bias (onnxruntime's float16 kernel adds a bias of its own "
    "before it rounds, an Add behind it after that: 1 LSB of float16). A block up to 2^-110 is "
    "zeros, one with an infinity or NaN makes the row NaN. What accuracy_level 4 of MatMulNBits "
    "means: onnxruntime 1.32 has the same codes and s for 4 and 8 bits with any block, for 2 bits "
    "with blocks of 32, 64 and 128; it computes the others in float32, and adds blocks and zero "
    "points in float32 in an order of its own. Scales that are not constant it takes for 0, and "
    "leaves such zero points out (rule scales-of-run-time of profile ort); scales of half floats "
    "become such where its optimizations are off and only nodes of float32 are around.",
)

OPERATORS = (DYNAMIC_DENSE, DYNAMIC_CONV, DYNAMIC_BLOCK_DENSE)
UNROUNDED: Mapping[Operator, Operator] = {
    DYNAMIC_DENSE: DENSE, DYNAMIC_CONV: CONV, DYNAMIC_BLOCK_DENSE: DENSE,
}  # fmt: skip
"""The products of real numbers that they approximate."""


def rounding_of(node: Node) -> Callable[[Array], Array] | None:
    """Returns what a product makes of its activation, as real numbers; None of other nodes."""
    dense, blocks = DYNAMIC_DENSE.of(node), DYNAMIC_BLOCK_DENSE.of(node)
    if blocks is not None:
        return partial(rounded_blocks, blocks.block_size)
    if dense is None and node.op is not DYNAMIC_CONV:
        return None
    return partial(rounded, rows=dense is not None and dense.rows)


def rounded(x: Array, *, rows: bool) -> Array:
    """Returns the real numbers that the codes of data stand for.

    Args:
        x: float32.
        rows: One scale and zero point for every row, not for all data.
    """
    scale, zero_point = dynamic_parameters(x, rows=rows)
    codes = dynamic_codes(x, scale, zero_point).astype(np.int32)
    with np.errstate(all="ignore"):
        return (codes - zero_point).astype(np.float32) * scale


def rounded_blocks(block_size: int, x: Array) -> Array:
    """Returns the real numbers that the codes of blocks stand for.

    Args:
        block_size: Elements of a block.
        x: Floats.
    """
    codes, step = block_codes(x.astype(np.float32), block_size)
    real = codes * step[..., None]
    return real.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]].astype(x.dtype)
