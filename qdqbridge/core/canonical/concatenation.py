"""Rules for Concat: joining moves values, so conversions pass through it operand by operand."""

from __future__ import annotations

from qdqbridge.core.canonical.clamps import intersection
from qdqbridge.core.canonical.storage import shifted_as
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.build import dequantized, quantized, requantized, result, retyped
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT, WHERE
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, rule, stored_behind


@rule("dequantize-through-concat", CONCAT)
def dequantize_through_concat(node: Node, context: RuleContext) -> Proposal:
    """``Concat(dequantize(a), dequantize(b)) -> dequantize(Concat(a, b))`` for equal parameters."""
    del context
    if not isinstance(node.output.type, TensorType):
        return None
    stored = _match_signedness([stored_behind(value) for value in node.inputs])
    types = [None if value is None else value.quant for value in stored]
    params = {None if type_ is None else type_.params for type_ in types}
    first = next(iter(params))
    if len(params) != 1 or first is None or not first.per_tensor:
        return None
    type_ = QuantType(first, node.output.type.shape)
    joined = result(node.op, node.attributes, stored, type_, node.origin)
    dtype = node.output.type.dtype
    return Replace({node.output: dequantized(joined, dtype, node.origin, node.output.name)})


def _match_signedness(stored: list[Value | None]) -> list[Value | None]:
    """Returns the operands with constants in the signedness of what runs beside them."""
    running = (v.quant.params for v in stored if v is not None and v.quant and not v.is_constant)
    first = next(running, None)
    if first is None:
        return stored
    return [v if v is None else shifted_as(v, first) or v for v in stored]


@rule("convert-after-concat", CONCAT)
def convert_after_concat(node: Node, context: RuleContext) -> Proposal:
    """``Concat(a, b)`` of equal parameters into others ``-> requantize(Concat(a, b))``."""
    del context
    target = node.output.quant
    params = {None if v is None or v.quant is None else v.quant.params for v in node.inputs}
    own = next(iter(params))
    if target is None or len(params) != 1 or own is None or not own.per_tensor:
        return None
    if own.same_mapping(target.params) or all(v is None or v.is_constant for v in node.inputs):
        return None
    joined = retyped(node, node.inputs, QuantType(own, target.shape), "")
    return Replace({node.output: requantized(joined, target.params, node.origin, node.output.name)})


@rule("concat-keeps-range", CONCAT)
def concat_keeps_range(node: Node, context: RuleContext) -> Proposal:
    """``Concat(a, b)`` of equal parameters ``->`` a result of their range, as of what is moved."""
    del context
    target = node.output.quant
    params = {None if v is None or v.quant is None else v.quant.params for v in node.inputs}
    own = next(iter(params))
    if target is None or len(params) != 1 or own is None:
        return None
    if not own.same_mapping(target.params):
        return None
    held = intersection(own, target.params)
    if held == target.params:
        return None
    type_ = QuantType(held, target.shape)
    return Replace({node.output: retyped(node, node.inputs, type_, node.output.name)})


@rule("joined-constant", CONCAT, WHERE)
def joined_constant(node: Node, context: RuleContext) -> Proposal:
    """``Concat(x, const) -> Concat(x, const')`` in the type of the result: converted once, here.

    So a float constant of a Where, which tools give a conversion of its own.
    """
    del context
    target = node.output.quant
    if target is None or not target.params.per_tensor:
        return None
    operands = list(node.inputs)
    for index, value in node.data_operands():
        if value.constant is None:
            continue
        if value.quant is None:
            if node.op is WHERE and value.type.dtype is DType.FLOAT32:
                operands[index] = quantized(value, target.params, node.origin, value.name)
        elif not value.quant.params.same_mapping(target.params):
            operands[index] = requantized(value, target.params, node.origin, value.name)
    if operands == node.inputs:
        return None
    return Replace({node.output: retyped(node, operands, target, node.output.name)})


@rule("quantize-into-concat", QUANTIZE)
def quantize_into_concat(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Concat(x, dequantize(q))) -> Concat(quantize(x), q)`` into the quantized type."""
    source, target = node.operand(0), node.output.quant
    join = source.producer
    if join is None or target is None or join.op is not CONCAT or context.is_output(source):
        return None
    if not target.params.per_tensor or len(context.readers(source)) != 1:
        return None
    operands = [None if v is None else _operand(v, node, target) for v in join.inputs]
    if any(value is None for value in operands):
        return None
    origin = join.origin.joined(node.origin)
    value = result(join.op, join.attributes, operands, node.output.type, origin, node.output.name)
    return Replace({node.output: value})


def _operand(value: Value, node: Node, target: QuantType) -> Value | None:
    """Returns the quantized operand that stands for a float one, None where there is none."""
    stored = stored_behind(value)
    if stored is not None and stored.quant is not None:
        params = stored.quant.params
        fits = params.per_tensor and params.storage_dtype.is_integer
        return stored if fits and params.storage_dtype.bits <= 16 else None
    if not isinstance(value.type, TensorType) or not value.type.dtype.is_float:
        return None
    return quantized(value, target.params, node.origin)
