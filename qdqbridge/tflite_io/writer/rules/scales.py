"""Scales as TFLite prescribes them: of results and operands, of weights and biases."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.bias import derived_params
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.ops.accumulator import centered
from qdqbridge.core.ops.build import constant, dequantized, quantized, requantized, retyped
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule, stored_behind
from qdqbridge.tflite_io.counterparts import COUNTERPARTS
from qdqbridge.tflite_io.writer.rows.kernels import activation, product

# ---- scales --------------------------------------------------------------------------------------
# Results and operands in the scales that TFLite prescribes: fixed ones, or one on both sides.


KEPT = ("AveragePool", "Resize")
"""Operators whose results have the scale and zero point of their operand."""
_FIXED = {row.onnx: row.results for row in COUNTERPARTS if row.results}

_COARSEST = 2
"""How many of a result's steps the prescribed one may span: rounded twice, it is then at most 2
off. Where it spans more, floats give the result."""


@rule("prescribed-result", *_FIXED)
def prescribed_result(node: Node, context: RuleContext) -> Proposal:
    """``Softmax(x) -> requantize(Softmax(x))``: TFLite prescribes scale and zero point.

    A result of much finer steps stays what it is, and so does a Softmax of 16 bits, whose kernel
    gives every element of a row two steps at least: floats compute them.
    """
    return None if too_coarse(node) else in_prescribed_scale(node, context)


def too_coarse(node: Node) -> bool:
    """True where TFLite's integer kernel of a node gives less than its result asks for."""
    wanted, quant = _prescribed(node), node.output.quant
    if wanted is None or quant is None or quant.params.widened() == wanted:
        return False
    wide_softmax = node.op is SOFTMAX and wanted.storage_dtype is DType.INT16
    return wide_softmax or _smallest_scale(wanted) > _COARSEST * _smallest_scale(quant.params)


def _smallest_scale(params: QuantParams) -> float:
    return float(params.scale.min(initial=np.inf))


def _prescribed(node: Node) -> QuantParams | None:
    kinds = {params.storage_dtype: params for params in _FIXED.get(node.op.name, ())}
    return kinds.get(node.operand(0).type.dtype)


def in_prescribed_scale(node: Node, context: RuleContext) -> Proposal:
    """Returns a result in the scale that TFLite prescribes, requantized into its own."""
    del context
    x, quant, wanted = node.operand(0), node.output.quant, _prescribed(node)
    if not activation(x) or quant is None or wanted is None or quant.params.widened() == wanted:
        return None
    made = retyped(node, node.inputs, QuantType(wanted, node.output.type.shape), "")
    value = requantized(made, quant.params, node.origin, node.output.name)
    reason = (
        f"TFLite's {node.op.name} gives the scale {float(wanted.scale):g} and the zero point "
        f"{int(wanted.zero_point)}; its result is rounded once more into its own"
    )
    return Replace({node.output: value}, (Note("prescribed-result", node.name, reason),))


@rule("result-as-operand", *KEPT)
def result_as_operand(node: Node, context: RuleContext) -> Proposal:
    """``AveragePool(x) -> requantize(AveragePool(x))``: TFLite's has one scale on both sides."""
    del context
    x, quant = node.operand(0), node.output.quant
    if not activation(x) or quant is None or x.quant is None:
        return None
    wanted = x.quant.params.widened()
    if quant.params.same_mapping(wanted):
        return None
    made = retyped(node, node.inputs, QuantType(wanted, node.output.type.shape), "")
    value = requantized(made, quant.params, node.origin, node.output.name)
    reason = (
        f"TFLite's {node.op.name} keeps scale and zero point; its result is rounded once more "
        "into its own"
    )
    return Replace({node.output: value}, (Note("result-as-operand", node.name, reason),))


@rule("operands-as-result", "Max", "Min", "Where", "Concat")
def operands_as_result(node: Node, context: RuleContext) -> Proposal:
    """``Max(a, b) -> Max(requantize(a), requantize(b))`` in its result's scale, exactly."""
    del context
    quant = node.output.quant
    if quant is None or not activation(node.output):
        return None
    wanted = quant.params.widened()
    operands: list[Value | None] = []
    for index, value in enumerate(node.inputs):
        if value is None or not node.op.is_data(index) or (node.op is WHERE and index == 0):
            operands.append(value)
            continue
        if value.quant is None:
            if value.constant is None or value.type.dtype is not DType.FLOAT32:
                return None
            data = value.constant.map(
                lambda array: quantize(array, wanted), dtype=wanted.storage_dtype
            )
            operands.append(constant(data, wanted, value.name))
            continue
        operands.append(_in_params(value, wanted, node))
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return None
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def _in_params(value: Value, wanted: QuantParams, node: Node) -> Value:
    assert value.quant is not None
    own = value.quant.params
    if own.same_mapping(wanted):
        return value
    if value.constant is None:
        return requantized(value, wanted, node.origin, f"{value.name}:as:{node.output.name}")
    data = value.constant.map(
        lambda array: quantize(dequantize(array, own), wanted), dtype=wanted.storage_dtype
    )
    return constant(data, wanted, value.name)


INTEGERS_ONLY: Rule = rule("prescribed-result", *_FIXED)(in_prescribed_scale)
"""The same of all, whatever it costs, where floats are out of reach."""
RULES: tuple[Rule, ...] = (prescribed_result, result_as_operand, operands_as_result)


# ---- weights -------------------------------------------------------------------------------------
# Weights and biases of products as TFLite wants them: around zero, of integers, or all float.


@rule("symmetric-weight", "Conv", "ConvTranspose", "Dense")
def symmetric_weight(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w) -> Conv(x, w')`` with zero point 0: the same numbers where int8 holds them.

    Each channel has a scale of its own as soon as one of them does not fit and is widened.
    """
    del context
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    geometry = geometry_of(node)
    if weight.quant is None or weight.constant is None or weight.quant.params.symmetric:
        return None
    if not activation(x) or x.quant is None or weight.quant.params.blocked or geometry is None:
        return None
    old, stored = weight.quant.params, weight.constant.numpy()
    if old.axis not in (None, geometry.axis) or not stored.size:
        return None
    params, data, rounded = _around_zero(stored, old, geometry.axis)
    new_bias = _bias_for(node, bias, x.quant.params, params)
    operands = [x, constant(data, params, weight.name), *([new_bias] if bias is not None else [])]
    value = retyped(node, operands, node.output.type, node.output.name)
    if not rounded:
        return Replace({node.output: value})
    reason = (
        "TFLite's weights have zero point 0; its weights are rounded again around zero in "
        f"{rounded} of {stored.shape[geometry.axis]} channels"
    )
    return Replace({node.output: value}, (Note("symmetric-weight", node.name, reason),))


def _around_zero(
    stored: NDArray[Any], old: QuantParams, axis: int
) -> tuple[QuantParams, Constant, int]:
    """Returns int8 parameters with zero point 0, codes, and how many channels are rounded for it.

    Args:
        stored: Codes.
        old: Their parameters, of one scale or along ``axis``.
        axis: Numbers the channels of the result.
    """
    codes = centered(stored, old)
    others = tuple(other for other in range(codes.ndim) if other != axis)
    limits = DType.INT8.qmin, DType.INT8.qmax
    fits = (codes.min(axis=others) >= limits[0]) & (codes.max(axis=others) <= limits[1])
    if fits.all():
        zero = np.zeros_like(old.zero_point)
        params = QuantParams(DType.INT8, old.scale, zero, old.axis)
        return params, Constant.of(codes.astype(np.int8)), 0
    largest = np.abs(dequantize(stored, old)).max(axis=others, initial=0.0)
    scale = np.where(fits, old.scale, largest / np.float32(limits[1])).astype(np.float32)
    params = QuantParams(DType.INT8, scale, np.zeros(len(scale), np.int32), axis)
    rounded = quantize(dequantize(stored, old), params)
    kept = np.where(laid_along(fits, axis, codes.ndim), codes, rounded).astype(np.int8)
    return params, Constant.of(kept), int(np.count_nonzero(~fits))


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
def integer_bias(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w, float bias) -> Conv(x, w, int32 bias)``, rounded to the accumulator's units."""
    del context
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


@rule("float-bias", "Conv", "ConvTranspose", "Dense")
def float_bias(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w, int32 bias) -> Conv(x, w, float bias)`` of what is computed on floats.

    LiteRT dequantizes no int32. Where the result is rounded, the bias is int32 again when it is
    read: rounded to float32 and back.
    """
    del context
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
        limit = np.iinfo(np.int32).max
        stored = np.clip(np.rint(real.astype(np.float64) / scale), -limit, limit)
        if np.array_equal(stored, bias.constant.numpy()):
            return None
        data = Constant.of(stored.astype(np.int32))
        new = constant(data, bias.quant.params, bias.name)
    operands = [*node.inputs[:2], new]
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value})


@rule("float-weight", "ConvTranspose")
def float_weight(node: Node, context: RuleContext) -> Proposal:
    """``ConvTranspose(x, w) -> ConvTranspose(x, float w)`` of what is computed on floats.

    With a weight that the file dequantizes, XNNPACK in LiteRT 2.3 gives other numbers.
    """
    del context
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


WEIGHT_RULES: tuple[Rule, ...] = (
    symmetric_weight,
    integer_bias,
    float_bias,
    float_weight,
)
