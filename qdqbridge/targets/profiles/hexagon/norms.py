"""Normalizations as Hexagon takes them, and computes them right: parameters in 8 and 32 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.quantization import per_tensor
from qdqbridge.core.graph.types import Shape, TensorType
from qdqbridge.core.ops.attributes import NormAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.normalization import INSTANCE_NORMALIZATION, LAYER_NORMALIZATION
from qdqbridge.targets.profiles.legalization import (
    Cost,
    put,
    replace_operand,
)

_EIGHT = 8
_FINE, _HALF_FINE = 30, 14
"""Bits that the largest number of an int32 bias has."""


def quantized_norms(graph: Graph) -> Iterator[Cost]:
    """``InstanceNormalization(x, g, b)``: the scale in 8 bits, the bias in 32."""
    for node in graph.nodes:
        quantized = node.output.quant is not None and node.operand(0).quant is not None
        if node.op is not INSTANCE_NORMALIZATION or not quantized:
            continue
        gain, bias = node.operand(1), node.operand(2)
        if gain.constant is not None and _needs_eight_bits(gain):
            rounded, off = _in_eight_bits(gain)
            replace_operand(node, 1, rounded)
            if off:
                text = f"its scale is rounded to 8 bits: {off:.2g} of its largest entry"
                yield Cost(node.name, text)
        half = node.operand(0).quant
        half_floats = half is not None and half.params.expressed_dtype is DType.FLOAT16
        if bias.constant is not None and (half_floats or not _is_int32(bias)):
            replace_operand(node, 2, _in_many_bits(bias, half_floats=half_floats))
            if half_floats:
                yield Cost(node.name, f"its bias is rounded to 1 / {1 << _HALF_FINE} of its range")


def norms_of_one_scale(graph: Graph) -> Iterator[Cost]:
    """``LayerNormalization(x, g, b)``: parameters with a scale for each channel as floats."""
    for node in graph.nodes:
        if node.op is not LAYER_NORMALIZATION:
            continue
        for index in (1, 2):
            value = node.optional(index)
            params = None if value is None or value.quant is None else value.quant.params
            if value is None or params is None or params.per_tensor or value.constant is None:
                continue
            array = value.constant.numpy()
            real = dequantize(array, params).astype(params.expressed_dtype.numpy)
            replace_operand(node, index, constant(real, None, value.name))
    yield from ()


def exact_norms(graph: Graph) -> Iterator[Cost]:
    """``LayerNormalization(x, g, b)`` of 16 bits: the scale in uint8, the bias in int32 or none.

    So it is exact; with parameters of other types some 10 of 65,536 steps off.
    """
    for node in graph.nodes:
        x, end = (node.operand(0).quant, node.output.quant) if node.inputs else (None, None)
        if node.op is not LAYER_NORMALIZATION or x is None or end is None:
            continue
        gain, bias = node.optional(1), node.optional(2)
        wide = (DType.UINT16, DType.INT16)
        if x.params.storage_dtype not in wide or end.params.storage_dtype not in wide:
            continue
        if gain is None or gain.constant is None or (bias is not None and bias.constant is None):
            continue
        unsigned = as_uint8(gain)
        if unsigned is None or unsigned.quant is None:
            continue
        replace_operand(node, 1, unsigned)
        if bias is not None:
            scale = float(x.params.scale.reshape(-1)[0]) * float(unsigned.quant.params.scale)
            replace_operand(node, 2, _in_units(bias, np.float32(scale)))
            yield Cost(node.name, "its bias is rounded to int32, in units of scale x * scale g")


def as_uint8(gain: Value) -> Value | None:
    """Returns a constant as uint8 with one scale, None where it is not exact in 8 bits."""
    if _needs_eight_bits(gain):
        gain, off = _in_eight_bits(gain)
        if off:
            return None
    params = None if gain.quant is None else gain.quant.params
    if params is None or gain.constant is None or not params.per_tensor:
        return None
    if params.storage_dtype is DType.UINT8:
        return gain
    array = gain.constant.numpy().astype(np.int16) + _HALF_BYTE
    zero = int(params.zero_point.reshape(-1)[0]) + _HALF_BYTE
    own = per_tensor(DType.UINT8, params.scale.reshape(-1)[0], zero)
    return constant(array.astype(np.uint8), own, gain.name)


_HALF_BYTE = 128


def _in_units(bias: Value, scale: np.float32) -> Value:
    """Returns a constant as int32 of a scale."""
    assert bias.constant is not None
    array = bias.constant.numpy()
    real = array if bias.quant is None else dequantize(array, bias.quant.params)
    params = per_tensor(DType.INT32, scale)
    return constant(quantize(real.astype(np.float32), params), params, bias.name)


def norms_of_channels(graph: Graph) -> Iterator[Cost]:
    """``InstanceNormalization(x, g, b)`` of floats ``-> LayerNormalization(rows of x) * g + b``."""
    for node in graph.nodes:
        attributes = INSTANCE_NORMALIZATION.of(node)
        if attributes is None or (node.operand(0).quant and node.output.quant):
            continue
        shape, gain, bias = node.output.type.shape, node.operand(1), node.operand(2)
        fixed = shape is not None and all(isinstance(dim, int) for dim in shape)
        if not fixed or shape is None or gain.constant is None or bias.constant is None:
            continue
        dims = tuple(dim for dim in shape if isinstance(dim, int))
        put(graph, node, _in_steps(node, attributes.epsilon, dims))
        yield Cost(node.name, "written as LayerNormalization, Mul and Add: rounded in other places")


def _in_steps(node: Node, epsilon: float, shape: tuple[int, ...]) -> Value:
    """Returns an InstanceNormalization as the norm of each channel, scaled and moved."""
    x, name, origin = node.operand(0), node.output.name, node.origin
    real = x if x.quant is None else dequantized(x, DType.FLOAT32, name=f"{name}_real")
    dtype = real.type.dtype
    rows = (*shape[:2], math.prod(shape[2:]))

    def made(op: Operator, attributes: Attributes, inputs: list[Value], to: Shape) -> Value:
        return result(op, attributes, inputs, TensorType(dtype, to), origin, f"{name}_{op.name}")

    def along(value: Value) -> Value:
        assert value.constant is not None
        array, params = value.constant.numpy(), None if value.quant is None else value.quant.params
        array = array if params is None else dequantize(array, params)
        column = array.astype(dtype.numpy).reshape(-1, *([1] * (len(shape) - 2)))
        return constant(column, None, value.name)

    ones = constant(np.ones(rows[2], dtype.numpy), None, f"{name}_ones")
    flat = made(RESHAPE, ReshapeAttrs(rows), [real], rows)
    norm = made(LAYER_NORMALIZATION, NormAttrs(2, epsilon), [flat, ones], rows)
    whole = made(RESHAPE, ReshapeAttrs(shape), [norm], shape)
    scaled = made(MUL, NO_ATTRIBUTES, [whole, along(node.operand(1))], shape)
    return result(
        ADD, NO_ATTRIBUTES, [scaled, along(node.operand(2))], node.output.type, origin, name
    )


def _needs_eight_bits(value: Value) -> bool:
    params = None if value.quant is None else value.quant.params
    return params is None or params.storage_dtype.bits != _EIGHT or not params.per_tensor


def _is_int32(value: Value) -> bool:
    params = None if value.quant is None else value.quant.params
    return params is not None and params.storage_dtype is DType.INT32 and params.per_tensor


def _in_eight_bits(value: Value) -> tuple[Value, float]:
    """Returns a constant in 8 bits, and the largest error relative to its range."""
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    real = array.astype(np.float64)
    top = float(np.abs(real).max(initial=0)) or 1.0
    signed = bool((real < 0).any())
    dtype = DType.INT8 if signed else DType.UINT8
    params = per_tensor(dtype, np.float32(top / dtype.qmax))
    stored = quantize(array.astype(np.float32), params)
    off = np.abs(dequantize(stored, params).astype(np.float64) - real).max(initial=0) / top
    return constant(stored, params, value.name), float(off)


def _in_many_bits(value: Value, *, half_floats: bool) -> Value:
    """Returns a constant of floats in int32: a power of 2 as scale, so that most are exact."""
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    real = array.astype(np.float64)
    top = float(np.abs(real).max(initial=0)) or 1.0
    scale = 2.0 ** (int(np.ceil(np.log2(top))) - (_HALF_FINE if half_floats else _FINE))
    stored = np.rint(real / scale).astype(np.int32)
    params = per_tensor(DType.INT32, np.float32(scale))
    if half_floats:
        params = replace(params, scale=np.float16(scale), expressed_dtype=DType.FLOAT16)
    return constant(stored, params, value.name)
