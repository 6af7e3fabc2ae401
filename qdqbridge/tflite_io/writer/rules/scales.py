"""Results and operands in the scales that TFLite prescribes: fixed ones, or one on both sides."""

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import (
    constant,
    requantized,
    retyped,
)
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.softmax import SOFTMAX
from qdqbridge.core.rewrite.rule import Proposal, Replace, Rule, RuleContext, rule
from qdqbridge.tflite_io.counterparts import COUNTERPARTS
from qdqbridge.tflite_io.writer.rows.kernels import activation

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
