"""Weights and biases of products as TFLite wants them: around zero, of integers, or all float."""

import numpy as np
from numpy.typing import NDArray

from qdqbridge.canonical.bias import derived_params
from qdqbridge.canonical.rule import Proposal, Replace, Rule, Scope, rule, stored_behind
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Note, Value
from qdqbridge.graph.numerics import dequantize, quantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.build import (
    constant,
    dequantized,
    quantized,
    retyped,
)
from qdqbridge.tflite_io.writer.rows.kernels import activation, product


@rule("symmetric-weight", "Conv", "ConvTranspose", "Dense")
def symmetric_weight(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w) -> Conv(x, w')`` with zero point 0, its scale widened to hold every weight."""
    del scope
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    if weight.quant is None or weight.constant is None or weight.quant.params.symmetric:
        return None
    if not activation(x) or x.quant is None or weight.quant.params.blocked:
        return None
    old = weight.quant.params
    real = dequantize(weight.constant.numpy(), old)
    axes = tuple(a for a in range(real.ndim) if a != old.axis)
    largest = np.abs(real).max(axis=axes, initial=0.0)
    scale = np.where(largest > 0, largest / np.float32(127), old.scale).astype(np.float32)
    params = QuantParams(DType.INT8, scale, np.zeros_like(scale, np.int32), old.axis)
    data = Constant.of(quantize(real, params))
    new_bias = _bias_for(node, bias, x.quant.params, params)
    operands = [x, constant(data, params, weight.name), *([new_bias] if bias is not None else [])]
    reason = "TFLite's weights have zero point 0; its weights are rounded again around zero"
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value}, (Note("symmetric-weight", node.name, reason),))


def _bias_for(node: Node, bias: Value | None, x: QuantParams, w: QuantParams) -> Value | None:
    """Returns a bias in units of a weight's new scale."""
    if bias is None or bias.quant is None or bias.constant is None:
        return bias
    params = derived_params(node, x, w)
    real = bias.constant.numpy().astype(np.float64) * bias.quant.params.scale.astype(np.float64)
    stored = np.rint(real / params.scale.astype(np.float64))
    info = np.iinfo(np.int32)
    data = Constant.of(np.clip(stored, info.min, info.max).astype(np.int32))
    return constant(data, params, bias.name)


@rule("integer-bias", "Conv", "ConvTranspose", "Dense")
def integer_bias(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w, float bias) -> Conv(x, w, int32 bias)``, rounded to the accumulator's units."""
    del scope
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    if bias is None or bias.quant is not None:
        return None
    real = real_constant(bias)
    if real is None or not activation(x) or x.quant is None or weight.quant is None:
        return None
    if node.output.quant is None:
        return None
    params = derived_params(node, x.quant.params, weight.quant.params)
    if not np.all(params.scale.astype(np.float64) > 0):
        return None
    stored = np.rint(real.astype(np.float64) / params.scale.astype(np.float64))
    if not np.all(np.abs(stored) <= np.iinfo(np.int32).max):
        return None
    new = constant(Constant.of(stored.astype(np.int32)), params, bias.name)
    value = retyped(node, [x, weight, new], node.output.type, node.output.name)
    reason = "TFLite's biases are integers; its float bias is rounded to scale_x * scale_w"
    return Replace({node.output: value}, (Note("integer-bias", node.name, reason),))


@rule("bias-of-zeros", "Conv")
def bias_of_zeros(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w) -> Conv(x, w, 0)``: LiteRT 2.3 refuses one without a bias, or crashes."""
    del scope
    x, weight = node.operand(0), node.operand(1)
    shape = weight.type.shape
    if node.optional(2) is not None or shape is None or isinstance(shape[0], str):
        return None
    if product(node) and x.quant is not None and weight.quant is not None:
        params = derived_params(node, x.quant.params, weight.quant.params)
        bias = constant(Constant.of(np.zeros(shape[0], np.int32)), params, "")
    else:
        bias = constant(Constant.of(np.zeros(shape[0], np.float32)), None, "")
    value = retyped(node, [x, weight, bias], node.output.type, node.output.name)
    return Replace({node.output: value})


@rule("float-bias", "Conv", "ConvTranspose", "Dense")
def float_bias(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w, int32 bias) -> Conv(x, w, float bias)`` of what is computed on floats.

    LiteRT dequantizes no int32. Where the result is rounded, the bias is int32 again when it is
    read: rounded to float32 and back.
    """
    del scope
    bias = node.optional(2)
    if bias is None or product(node):
        return None
    real = real_constant(bias)
    if real is None or (bias.constant is not None and bias.quant is None):
        return None
    new = constant(Constant.of(real), None, bias.name)
    if node.output.quant is not None:
        if bias.quant is None or bias.constant is None:
            return None
        scale = bias.quant.params.scale.astype(np.float64)
        stored = np.rint(real.astype(np.float64) / scale)
        if np.array_equal(stored, bias.constant.numpy()):
            return None
        limit = np.iinfo(np.int32).max
        data = Constant.of(np.clip(stored, -limit, limit).astype(np.int32))
        new = constant(data, bias.quant.params, bias.name)
    operands = [*node.inputs[:2], new]
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value})


@rule("float-weight", "ConvTranspose")
def float_weight(node: Node, scope: Scope) -> Proposal:
    """``ConvTranspose(x, w) -> ConvTranspose(x, float w)`` of what is computed on floats.

    With a weight that the file dequantizes, XNNPACK in LiteRT 2.3 gives other numbers.
    """
    del scope
    weight = node.operand(1)
    stored = stored_behind(weight) or weight
    if product(node) or stored.quant is None:
        return None
    real = real_constant(weight)
    x = node.operand(0)
    if real is None:
        return None
    image = x if x.quant is None else dequantized(x, DType.FLOAT32, node.origin)
    rest = [
        bias if bias is None or (number := real_constant(bias)) is None
        else constant(Constant.of(number), None, bias.name)
        for bias in node.inputs[2:]
    ]  # fmt: skip
    operands = [image, constant(Constant.of(real), None, weight.name), *rest]
    output = node.output
    if output.quant is None:
        return Replace({output: retyped(node, operands, output.type, output.name)})
    made = retyped(node, operands, TensorType(DType.FLOAT32, output.type.shape), "")
    reason = "TFLite has no integer kernel for this ConvTranspose; it computes on floats"
    result = quantized(made, output.quant.params, node.origin, output.name)
    return Replace({output: result}, (Note("float-weight", node.name, reason),))


def real_constant(value: Value) -> NDArray[np.float32] | None:
    """Returns the real numbers of a constant, also of one that is dequantized."""
    stored = stored_behind(value) or value
    if stored.constant is None:
        return None
    if stored.quant is None:
        return stored.constant.numpy().astype(np.float32)
    return np.asarray(dequantize(stored.constant.numpy(), stored.quant.params), np.float32)


RULES: tuple[Rule, ...] = (symmetric_weight, integer_bias, bias_of_zeros, float_bias, float_weight)
