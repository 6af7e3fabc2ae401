"""Products of an activation that is quantized while the model runs.

The scale and zero point of the activation are those of its own extremes, so no value has them as a
type: quantizing, the product of integers and its way back to floats are one operator, from floats
to floats. Source: ONNX DynamicQuantizeLinear-11 and MatMulInteger-10; onnxruntime
docs/ContribOperators.md, DynamicQuantizeMatMul.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node
from qdqbridge.graph.operator import Array, Attributes, Flow, Operands, Row, Types
from qdqbridge.ops.accumulator import accumulation_dtype, centered, exact_dtype, integer_params
from qdqbridge.ops.shapes import differ, known, vector_fits
from qdqbridge.ops.stored import optional, present

_LAST = 255
"""The last code of the type that activations are quantized to."""


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
    is 1, and a zero point that is no number is the last one.

    Args:
        x: float32.
        rows: One pair for every row, not for all data.
    """
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
    """Returns ``sat(rint(x / scale) + zero_point)`` as uint8; what is no number gives 0."""
    with np.errstate(all="ignore"):
        shifted = np.rint(x / scale) + zero_point.astype(np.float32)
    shifted = np.where(np.isnan(shifted), np.float32(0), shifted)
    return np.clip(shifted, 0, _LAST).astype(np.uint8)


def _dense(attributes: DynamicAttrs, operands: Operands) -> tuple[Array, ...]:
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
    x, w = present(operands, 2)
    params = integer_params(types[1])
    if params is None:
        return None
    scale, zero_point = dynamic_parameters(x, rows=attributes.rows)
    left = dynamic_codes(x, scale, zero_point).astype(np.int32) - zero_point
    right = centered(w, params)
    dtype = exact_dtype(left, right, x.shape[-1])
    total = np.matmul(left.astype(dtype), right.T.astype(dtype)).astype(np.float32)
    bias = optional(operands, 2)
    with np.errstate(all="ignore"):
        real = total * (scale * params.scale.astype(np.float32))
        return (np.asarray(real if bias is None else real + bias, np.float32),)


def _check(node: Node) -> Iterator[str]:
    x, w = node.operand(0), node.operand(1)
    if x.type.dtype is not DType.FLOAT32 or x.quant is not None:
        yield "the input is not float32"
    if node.output.type.dtype is not DType.FLOAT32 or node.output.quant is not None:
        yield "the result is not float32"
    if integer_params(w.type) is None:
        yield "the weight is not quantized to integers, per tensor or per channel"
    elif w.quant is not None and w.quant.params.axis not in (None, 0):
        yield "the scales of the weight are not along its first axis"
    if w.rank is not None and w.rank != 2:
        yield f"the weight has rank {w.rank}, not 2"
    if x.rank is not None and x.rank < 2:
        yield f"the input has rank {x.rank}"
    if differ(known(x, -1), known(w, 1)):
        yield f"the input has rows of {known(x, -1)} elements, the weight of {known(w, 1)}"
    yield from vector_fits(node.optional(2), known(w, 0), "the bias")


DYNAMIC_DENSE = Row(
    name="DynamicDense",
    flow=Flow.FLOAT,
    attributes=DynamicAttrs,
    compute=_dense,
    contract=_contract,
    data=(0,),
    check=_check,
    qnn="dynamic_dense",
    numerics="x[..., K] quantized while the model runs: s = (max(x, 0) - min(x, 0)) / 255, "
    "z = rint(-min(x, 0) / s), codes sat(rint(x / s) + z); y = f32(exact sum of (code - z)(w - zw))"
    " * f32(s * sw) + bias, with w[N, K] (scales on axis 0). s and z of the whole tensor, or of "
    "every row. Equals onnxruntime 1.32's DynamicQuantizeLinear and MatMulInteger, fused or not.",
)

OPERATORS = (DYNAMIC_DENSE,)
