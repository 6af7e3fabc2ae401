"""What Ethos-U requires beyond TFLite: it multiplies integers only.

A product that the model leaves float runs on the CPU. Where its image is quantized, these rules
make an integer product of it: its weight in 8 bits (exactly, where the file has only dequantized
it), and its result in 16 bits, in a scale that holds whatever it can give. Both are reported.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.bias import derived_params
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import ConvTransposeAttrs, GemmAttrs
from qdqbridge.core.ops.build import constant, dequantized, requantized, result, retyped
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.unary import RELU
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule, stored_behind
from qdqbridge.tflite_io.writer.rows.kernels import activation
from qdqbridge.tflite_io.writer.rules.scales import real_constant

_LARGEST_CODES = (127, 128)
"""What a quantizer of weights maps the largest of them to."""


@rule("weight-of-8-bits", "Conv", "ConvTranspose", "Dense", "Gemm", "MatMul")
def weight_of_8_bits(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, float w) -> Conv(x, dequantize(int8 w'))`` beside a quantized image.

    Where the float weight is what some int8 weight dequantizes to, that one is found again, bit for
    bit; otherwise it is rounded per channel.
    """
    del context
    x, weight = node.operand(0), node.operand(1)
    axis = _result_axis(node)
    if axis is None or not activation(stored_behind(x) or x) or not _is_loose(node, weight):
        return None
    real = real_constant(weight)
    if real is None or not np.isfinite(real).all() or not real.any():
        return None
    params, exact = _params_of(real, axis)
    code = constant(Constant.of(quantize(real, params)), params, weight.name)
    operands: list[Value | None] = [x, dequantized(code, DType.FLOAT32, node.origin, weight.name)]
    operands += [_loose(bias) for bias in node.inputs[2:]]
    value = retyped(node, operands, node.output.type, node.output.name)
    if exact:
        return Replace({node.output: value})
    reason = "Ethos-U has no float products; its weight is rounded to 8 bits per channel"
    return Replace({node.output: value}, (Note("weight-of-8-bits", node.name, reason),))


def _loose(bias: Value | None) -> Value | None:
    """Returns a bias as real numbers: it was in units of another weight."""
    if bias is None or bias.quant is None or (real := real_constant(bias)) is None:
        return bias
    return constant(Constant.of(real), None, bias.name)


def _is_loose(node: Node, weight: Value) -> bool:
    """True for a float weight, or one whose scales lie along what the product sums up."""
    stored = stored_behind(weight) or weight
    if stored.quant is None:
        return stored.type.dtype is DType.FLOAT32
    return node.op is CONV_TRANSPOSE and stored.quant.params.axis == 0


def _result_axis(node: Node) -> int | None:
    """Returns the axis of a weight whose indices are channels of the result."""
    if node.op in (CONV, DENSE):
        return 0
    match node.attributes:
        case ConvTransposeAttrs(group=group):
            return 1 if group == 1 else None
        case GemmAttrs(trans_b=turned):
            return 0 if turned else 1
        case _:
            return 1 if node.operand(1).rank == 2 else None


def _params_of(real: NDArray[np.float32], axis: int) -> tuple[QuantParams, bool]:
    """Returns parameters of 8 bits, whole or per channel, and whether they are exact."""
    others = tuple(a for a in range(real.ndim) if a != axis)
    found: QuantParams | None = None
    for along in (None, axis):
        largest = np.abs(real).max(axis=None if along is None else others, initial=0.0)
        largest = np.where(largest > 0, largest, np.float32(1))
        for code in _LARGEST_CODES:
            scale = np.asarray(largest / np.float32(code), np.float32)
            params = QuantParams(DType.INT8, scale, np.zeros(scale.shape, np.int32), along)
            if np.array_equal(dequantize(quantize(real, params), params), real):
                return params, True
            found = params if code == _LARGEST_CODES[0] else found
    assert found is not None
    return found, False


@rule("result-of-16-bits", "Conv", "ConvTranspose", "Dense")
def result_of_16_bits(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w): float -> dequantize(Conv(requantize(x: int16), w): int16)``.

    The image is the same in 16 bits; the scale of the result is the largest number that weight and
    bias can give, divided by 32767.
    """
    del context
    x, weight, output = node.operand(0), node.operand(1), node.output
    quant, data = weight.quant, weight.constant
    if x.quant is None or not _other_result(x, output):
        return None
    if not activation(x) or quant is None or data is None or not quant.params.symmetric:
        return None
    if quant.params.storage_dtype is not DType.INT8 or quant.params.blocked:
        return None
    bias = node.optional(2)
    shift = None if bias is None else real_constant(bias)
    if bias is not None and shift is None:
        return None
    wide = _of_16_bits(x.quant.params)
    if wide is None:
        return None
    sums = derived_params(node, wide, quant.params)
    bounds = _bounds(node, x.quant.params, quant.params, data.numpy(), shift)
    scale = np.asarray(bounds / DType.INT16.qmax, np.float32)
    if not np.isfinite(scale) or not scale > 0 or not (sums.scale.astype(np.float64) > 0).all():
        return None
    params = QuantParams(DType.INT16, scale, np.asarray(0, np.int32))
    operands: list[Value | None] = [requantized(x, wide, node.origin, x.name), weight]
    if shift is not None and bias is not None:
        units = np.rint(shift.astype(np.float64) / sums.scale.astype(np.float64))
        # The finer units of a 16-bit image can make a bias too large for its type: then it stays on
        # the CPU.
        if np.abs(units).max(initial=0) > DType.INT32.qmax:
            return None
        operands.append(constant(Constant.of(units.astype(np.int32)), sums, bias.name))
    type_ = QuantType(params, output.type.shape)
    rounded = result(node.op, node.attributes, operands, type_, node.origin, "")
    reason = (
        "Ethos-U has no float results of products; its result is rounded to 16 bits in steps of "
        f"{float(scale):.3g}, which hold whatever it can give"
    )
    if output.quant is None:
        value = dequantized(rounded, DType.FLOAT32, node.origin, output.name)
    else:
        value = requantized(rounded, output.quant.params, node.origin, output.name)
    return Replace({output: value}, (Note("result-of-16-bits", node.name, reason),))


def _other_result(x: Value, output: Value) -> bool:
    """True for a float result, and one of 8 bits of an image of 16: no kernel gives it."""
    if output.quant is None:
        return output.type.dtype is DType.FLOAT32
    kinds = x.type.dtype, output.quant.params.storage_dtype
    return kinds == (DType.INT16, DType.INT8)


def _of_16_bits(params: QuantParams) -> QuantParams | None:
    """Returns parameters of 16 bits around zero that hold the same real numbers.

    Half the scale: Vela 5.2 dies of a QUANTIZE to 16 bits that keeps it (for Ethos-U85).
    """
    if params.storage_dtype is DType.INT16:
        return params.widened() if params.symmetric else None
    half = params.scale.astype(np.float32) / np.float32(2)
    return QuantParams(DType.INT16, half, np.asarray(0, np.int32))


def _bounds(
    node: Node,
    x: QuantParams,
    weight: QuantParams,
    codes: NDArray[np.generic],
    shift: NDArray[np.float32] | None,
) -> float:
    """Returns the largest magnitude that a product with these weights can have."""
    with np.errstate(over="ignore"):  # refused by its scale
        real = dequantize(codes, weight).astype(np.float64)
    low, high = ((q - int(x.zero_point)) * float(x.scale) for q in (x.qmin, x.qmax))
    low, high = min(low, 0.0), max(high, 0.0)  # padding is zero
    axis = 1 if node.op is CONV_TRANSPOSE else 0
    others = tuple(a for a in range(real.ndim) if a != axis)
    most = np.maximum(real * low, real * high).sum(axis=others)
    least = np.minimum(real * low, real * high).sum(axis=others)
    added = np.zeros(1) if shift is None else shift.reshape(-1).astype(np.float64)
    if added.size not in (1, most.size):  # of a transposed convolution with groups
        added = np.asarray([np.abs(added).max()])
        return float(np.maximum(np.abs(most), np.abs(least)).max() + added[0])
    return float(np.maximum(np.abs(most + added), np.abs(least + added)).max())


@rule("movement-of-16-bits", "Relu", "Slice")
def movement_of_16_bits(node: Node, context: RuleContext) -> Proposal:
    """``Relu(dequantize(x: int16)) -> dequantize(Relu(x))``, so that a product behind it is one."""
    del context
    x, output = stored_behind(node.operand(0)), node.output
    if x is None or not activation(x, (DType.INT16,)) or x.quant is None:
        return None
    params = x.quant.params
    if node.op is RELU:
        type_ = QuantType(replace(params, qmin=max(params.qmin, 0)), output.type.shape)
        moved = result(REQUANTIZE, NO_ATTRIBUTES, [x], type_, node.origin)
    else:
        type_ = QuantType(params, output.type.shape)
        moved = result(node.op, node.attributes, [x, *node.inputs[1:]], type_, node.origin)
    return Replace({output: dequantized(moved, DType.FLOAT32, node.origin, output.name)})


@rule("concat-of-16-bits", "Concat")
def concat_of_16_bits(node: Node, context: RuleContext) -> Proposal:
    """``Concat(dequantize(x) …) -> dequantize(Concat(requantize(x) …))`` in 16 bits."""
    del context
    stored = [stored_behind(value) for value in node.inputs]
    if node.output.quant is not None or not any(activation(x, (DType.INT16,)) for x in stored):
        return None
    found: list[Value] = []
    largest = 0.0
    for x in stored:
        if x is None or not activation(x) or x.quant is None:
            return None
        params = x.quant.params
        ends = (abs(q - int(params.zero_point)) for q in (params.qmin, params.qmax))
        largest = max(largest, max(ends) * float(params.scale))
        found.append(x)
    scale = np.asarray(largest / DType.INT16.qmax, np.float32)
    if not scale > 0:
        return None
    params = QuantParams(DType.INT16, scale, np.asarray(0, np.int32))
    parts = [requantized(x, params, node.origin, x.name) for x in found]
    type_ = QuantType(params, node.output.type.shape)
    joined = result(node.op, node.attributes, parts, type_, node.origin)
    reason = f"its parts are rounded to 16 bits in steps of {float(scale):.3g}, which hold them all"
    value = dequantized(joined, DType.FLOAT32, node.origin, node.output.name)
    return Replace({node.output: value}, (Note("concat-of-16-bits", node.name, reason),))


WEIGHTS: tuple[Rule, ...] = (weight_of_8_bits,)
"""What comes before the canonical form, which makes integer products of quantized weights."""
RULES: tuple[Rule, ...] = (result_of_16_bits, movement_of_16_bits, concat_of_16_bits)
NOTES = frozenset(rule.name for rule in (*WEIGHTS, *RULES))
