"""Normalizations as Hexagon takes them, and computes them right: parameters in 8 and 32 bits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import QuantType, Shape, TensorType, static_shape
from qdqbridge.core.ops.attributes import NormAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.normalization import INSTANCE_NORMALIZATION, LAYER_NORMALIZATION
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_EIGHT, _POWER = 8, 0.5
_FINE, _HALF_FINE = 30, 14
"""Bits that the largest number of an int32 bias has."""


@rule("instance-norm-in-integers", INSTANCE_NORMALIZATION)
def quantized_norms(node: Node, context: RuleContext) -> Proposal:
    """``InstanceNormalization(x, g, b)``: the scale in 8 bits, the bias in 32."""
    del context
    x = node.operand(0).quant
    if node.output.quant is None or x is None:
        return None
    gain, bias = node.operand(1), node.operand(2)
    operands, costs = dict[tuple[Node, int], Value](), list[str]()
    if gain.constant is not None and _needs_eight_bits(gain):
        operands[node, 1], off = _in_eight_bits(gain)
        costs += [f"its scale is rounded to 8 bits: {off:.2g} of its largest entry"] if off else []
    half = x.params.expressed_dtype is DType.FLOAT16
    if bias.constant is not None and not _is_int32(bias, half_floats=half):
        operands[node, 2] = _in_many_bits(bias, half_floats=half)
        costs += [f"its bias is rounded to 1 / {1 << _HALF_FINE} of its range"] if half else []
    notes = tuple(Note("instance-norm-parameters", node.name, text) for text in costs)
    return Replace(notes=notes, operands=operands) if operands else None


@rule("norm-of-one-scale", LAYER_NORMALIZATION)
def norms_of_one_scale(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b)``: parameters with a scale for each channel as floats."""
    del context
    operands: dict[tuple[Node, int], Value] = {}
    for index in (1, 2):
        value = node.optional(index)
        params = None if value is None or value.quant is None else value.quant.params
        if value is None or params is None or params.per_tensor or value.constant is None:
            continue
        array = value.constant.numpy()
        real = dequantize(array, params).astype(params.expressed_dtype.numpy)
        operands[node, index] = constant(real, None, value.name)
    return Replace(operands=operands) if operands else None


@rule("norm-of-uint8-scale", LAYER_NORMALIZATION)
def exact_norms(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b)`` of 16 bits: the scale in uint8, the bias in int32 or none.

    So it is exact; with parameters of other types some 10 of 65,536 steps off.
    """
    del context
    x, end = node.operand(0).quant, node.output.quant
    gain, bias = node.optional(1), node.optional(2)
    wide = (DType.UINT16, DType.INT16)
    if x is None or end is None or gain is None or gain.constant is None:
        return None
    if x.params.storage_dtype not in wide or end.params.storage_dtype not in wide:
        return None
    unsigned = as_uint8(gain)
    if unsigned is None or unsigned.quant is None or (bias is not None and bias.constant is None):
        return None
    operands = {(node, 1): unsigned}
    if bias is None:
        return None if unsigned is gain else Replace(operands=operands)
    units = per_tensor(
        DType.INT32,
        np.float32(float(x.params.scale.reshape(-1)[0]) * float(unsigned.quant.params.scale)),
    )
    if unsigned is gain and bias.quant is not None and bias.quant.params.same_mapping(units):
        return None
    operands[node, 2] = _in_units(bias, units)
    text = "its bias is rounded to int32, in units of scale x * scale g"
    return Replace(notes=(Note("wide-arithmetic", node.name, text),), operands=operands)


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


def _in_units(bias: Value, params: QuantParams) -> Value:
    """Returns a constant in other parameters."""
    assert bias.constant is not None
    array = bias.constant.numpy()
    real = array if bias.quant is None else dequantize(array, bias.quant.params)
    return constant(quantize(real.astype(np.float32), params), params, bias.name)


@rule("instance-norm-of-rows", INSTANCE_NORMALIZATION)
def norms_of_channels(node: Node, context: RuleContext) -> Proposal:
    """``InstanceNormalization(x, g, b)`` of floats ``-> LayerNormalization(rows of x) * g + b``."""
    del context
    attributes = INSTANCE_NORMALIZATION.of(node)
    if attributes is None or (node.operand(0).quant and node.output.quant):
        return None
    dims, gain, bias = static_shape(node.output.type.shape), node.operand(1), node.operand(2)
    if dims is None or gain.constant is None or bias.constant is None:
        return None
    text = "written as LayerNormalization, Mul and Add: rounded in other places"
    value = _in_steps(node, attributes.epsilon, dims)
    return Replace({node.output: value}, (Note("instance-norm-parameters", node.name, text),))


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


def _is_int32(value: Value, *, half_floats: bool) -> bool:
    """True for int32 with one scale, of half floats a power of 2."""
    params = None if value.quant is None else value.quant.params
    if params is None or params.storage_dtype is not DType.INT32 or not params.per_tensor:
        return False
    exact = params.expressed_dtype is DType.FLOAT16 and np.frexp(params.scale.item())[0] == _POWER
    return exact or not half_floats


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


# ---- scaled and moved behind ---------------------------------------------------------------------
#
# LayerNormalization of 16 bits whose scale is not a number of 8: scaled and moved behind it.
#
# The backend is some 10 to 30 of 65,536 steps off where the scale of a norm has 16 bits, or is
# float (onnxruntime-qnn 2.7.0, host build, every architecture). With the scale 1 in uint8 it is
# exact, and so are Mul and Add of 16 bits, within a step.

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_MIDDLE = 1 << 15


@rule("norm-scaled-behind", LAYER_NORMALIZATION)
def wide_norms(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b) -> Add(Mul(LayerNormalization(x, 1), g), b)`` of 16 bits."""
    del context
    attributes, shape = LAYER_NORMALIZATION.of(node), node.output.type.shape or ()
    sides = [value.quant for value in (*node.inputs[:1], node.output) if value is not None]
    if attributes is None or not all(q and q.params.storage_dtype in _WIDE for q in sides):
        return None
    gain, bias, extent = node.optional(1), node.optional(2), shape[-1] if shape else None
    along = attributes.axis in (-1, len(shape) - 1) and isinstance(extent, int)
    if gain is None or gain.constant is None or as_uint8(gain) is not None or not along:
        return None
    if bias is not None and bias.constant is None:
        return None
    assert isinstance(extent, int)
    text = "it is scaled and moved behind it, and rounded three times"
    value = _apart(node, gain, bias, extent)
    return Replace({node.output: value}, (Note("wide-arithmetic", node.name, text),))


def _apart(node: Node, gain: Value, bias: Value | None, extent: int) -> Value:
    shape, name, output = node.output.type.shape, node.output.name, node.output
    assert output.quant is not None
    factors, terms = (
        _flat_norm_constant(gain),
        np.zeros(1) if bias is None else _flat_norm_constant(bias),
    )
    most = _most(output.quant.params, factors, terms, extent)
    one = constant(np.ones(extent, np.uint8), per_tensor(DType.UINT8, np.float32(1)), f"{name}_one")
    types = [QuantType(_around_zero(top), shape) for top in (most, most * np.abs(factors).max())]
    norm = result(
        LAYER_NORMALIZATION, node.attributes, [node.operand(0), one], types[0], node.origin,
        f"{name}_norm",
    )  # fmt: skip
    if bias is None:
        return result(
            MUL, NO_ATTRIBUTES, [norm, _as_16bit_constant(gain)], output.type, node.origin, name
        )
    scaled = result(
        MUL,
        NO_ATTRIBUTES,
        [norm, _as_16bit_constant(gain)],
        types[1],
        node.origin,
        f"{name}_scaled",
    )
    return result(
        ADD, NO_ATTRIBUTES, [scaled, _as_16bit_constant(bias)], output.type, node.origin, name
    )


def _flat_norm_constant(value: Value) -> Array:
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    return array.astype(np.float64).reshape(-1)


def _most(own: QuantParams, factors: Array, terms: Array, extent: int) -> float:
    """Returns the largest normalized number that a result can tell from larger ones."""
    scale, zero = float(own.scale.reshape(-1)[0]), int(own.zero_point.reshape(-1)[0])
    ends = [scale * (int(end) - zero) for end in (own.storage_dtype.qmin, own.storage_dtype.qmax)]
    reach = np.maximum(np.abs(ends[0] - terms), np.abs(ends[1] - terms))
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(factors == 0, 0, reach / np.abs(factors)).max(initial=0)
    # no number of a row is further from its mean than this many deviations
    return float(min(needed, np.sqrt(extent))) or 1.0


def _around_zero(top: float) -> QuantParams:
    step = max(top / (_MIDDLE - 1), float(np.finfo(np.float32).tiny))
    return per_tensor(DType.UINT16, np.float32(step), _MIDDLE)


def _as_16bit_constant(value: Value) -> Value:
    """Returns a constant in 16 bits: as it is, or around zero."""
    params = None if value.quant is None else value.quant.params
    if params is not None and params.per_tensor and params.storage_dtype in _WIDE:
        return value
    real = _flat_norm_constant(value)
    own = _around_zero(float(np.abs(real).max(initial=0)) or 1.0)
    return constant(quantize(real.astype(np.float32), own), own, value.name)
