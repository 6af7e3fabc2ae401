"""Weights of 16 bits as two digits of 8: v68 does not take them, v73 keeps 10 bits of their sums.

``w = 257 * high + low``, each from -128 to 127, so that two products with weights of 8 bits and a
sum are the product, which every Hexagon takes and v73 computes within a few steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, WeightGeometry, geometry_of
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import constant, result, retyped
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.hexagon.products import as_floats

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_BASE, _LOW, _HIGH = 257, -128, 127
"""With 256 the largest weights, of which every symmetric tensor has one, would have no digits."""
_STEPS, _MIDDLE = (1 << 16) - 1, 1 << 15


@rule("weights-in-digits", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def weights_in_digits(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w) -> Add(Conv(x, high), Conv(x, low))``: int16 weights as two of int8."""
    del context
    x, weight, quant = node.operand(0), node.operand(1), node.output.quant
    if not (_is_wide(x) and quant is not None and _is_wide(weight) and weight.constant):
        return None
    params, geometry = weight.quant.params if weight.quant else None, geometry_of(node)
    if params is None or params.blocked or geometry is None or x.is_constant:
        return None
    along = params.axis is None or params.axis == geometry.axis
    if not along or quant.params.storage_dtype not in _WIDE or not quant.params.per_tensor:
        return None
    digits = _digits(weight.constant.numpy().astype(np.int64) - _zeros(params, weight))
    value = _sum_of_two(node, digits, params, geometry)
    return Replace({node.output: value}, (Note("wide-weights", node.name, _TOLD),))


_TOLD = "its weights of 16 bits are two of 8, whose products are added; a weight of 32767 is 32766"


def _is_wide(value: Value) -> bool:
    return value.quant is not None and value.quant.params.storage_dtype in _WIDE


def _zeros(params: QuantParams, weight: Value) -> Array:
    """Returns zero points in the shape in which they are subtracted."""
    zeros = params.zero_point.astype(np.int64)
    if params.axis is None:
        return zeros.reshape(())
    shape = [1] * (weight.rank or 1)
    shape[params.axis] = -1
    return zeros.reshape(shape)


def _digits(centred: Array) -> tuple[Array, Array]:
    high = np.clip(np.rint(centred / _BASE), _LOW, _HIGH)
    low = np.clip(centred - _BASE * high, _LOW, _HIGH)
    return high.astype(np.int8), low.astype(np.int8)


def _sum_of_two(
    node: Node, digits: tuple[Array, Array], params: QuantParams, geometry: WeightGeometry
) -> Value:
    """Returns the sum of two products, in the encoding of the result."""
    x, weight, output = node.operand(0), node.operand(1), node.output
    assert x.quant is not None and output.quant is not None
    scale = params.scale.astype(np.float32)
    own = [_of_8_bits(params, scale * np.float32(f)) for f in (_BASE, 1)]
    rest = _largest_rest(x.quant.params, geometry.rows(dequantize(digits[1], own[1])))
    shape, name = output.type.shape, output.name
    types = [QuantType(p, shape) for p in _encodings(output.quant.params, rest)]
    high, low = (constant(d, p, weight.name) for d, p in zip(digits, own, strict=True))
    bias = node.optional(2)
    if bias is not None and bias.constant is not None and bias.quant is not None:
        bias = as_floats(bias, DType.FLOAT32)
    operands = [x, high, *([] if bias is None else [bias])]
    first = retyped(node, operands, types[0], f"{name}_high")
    second = retyped(node, [x, low], types[1], f"{name}_low")
    return result(ADD, NO_ATTRIBUTES, [first, second], output.type, node.origin, name)


def _of_8_bits(params: QuantParams, scale: Array) -> QuantParams:
    zeros = np.zeros(scale.shape, np.int32)
    return QuantParams(DType.INT8, scale.astype(np.float32), zeros, axis=params.axis)


def _largest_rest(x: QuantParams, rows: Array) -> float:
    """Returns what the product with the low digits can be at most."""
    scale, zero = float(x.scale.reshape(-1)[0]), int(x.zero_point.reshape(-1)[0])
    most = scale * max(zero - int(x.storage_dtype.qmin), int(x.storage_dtype.qmax) - zero)
    return most * float(np.abs(rows).sum(axis=1, dtype=np.float64).max(initial=0))


def _encodings(own: QuantParams, rest: float) -> tuple[QuantParams, QuantParams]:
    """Returns those of both products: the result's range and what is added to it, and the rest."""
    scale, zero = float(own.scale.reshape(-1)[0]), int(own.zero_point.reshape(-1)[0])
    low, high = (
        scale * (int(end) - zero) for end in (own.storage_dtype.qmin, own.storage_dtype.qmax)
    )
    step = (high - low + 2 * rest) / _STEPS
    first = per_tensor(DType.UINT16, np.float32(step), round((rest - low) / step))
    fine = max(rest / _MIDDLE, float(np.finfo(np.float32).tiny))
    return first, per_tensor(DType.UINT16, np.float32(fine * (1 + 1e-6)), _MIDDLE)
