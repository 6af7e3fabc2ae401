"""Rules that move quantization from Q/DQ neighbours into the types of an operator's values."""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.canonical.conversions import before_cast, stored_before_cast, taken_in
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.build import dequantized, retyped
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.elementwise import POW
from qdqbridge.core.ops.table import PRODUCTS
from qdqbridge.core.rewrite import Proposal, Reject, Replace, RuleContext, rule

_WEIGHT_BITS = 16


@rule("absorb-accumulator-operands", *(row.name for row in PRODUCTS))
def absorb_accumulator_operands(node: Node, context: RuleContext) -> Proposal:
    """``Conv(dequantize(x), dequantize(w)) -> Conv(x, w)``; also a weight alone."""
    del context
    x, w = (_quantized_operand(node, index) for index in (0, 1))
    new_x, new_w = stored_before_cast(node.operand(0)), stored_before_cast(node.operand(1))
    # Both are taken in already, or neither can be: say why only in the second case.
    if new_x is None and new_w is None:
        return _float_operands(node) if x is None or w is None else None
    x, w = new_x or x, new_w or w
    if w is None:
        return Reject("its weight is float", (node.operand(1).name,))
    # A weight alone may have any granularity. Where x is quantized only later, by a rule that fires
    # then, the weight is given back.
    refusal = _storage_refusal(w) or _granularity_refusal(node, x, w)
    if refusal is not None:
        return refusal if new_w is not None else _released(node, w) or refusal
    if x is not None and x.quant is not None and not x.quant.params.per_tensor:
        return Reject("its input is quantized per channel", (x.name,))
    if x is None and w.constant is None:
        return Reject(
            "one operand is float and the other a quantized activation",
            (node.operand(0).name,),
        )
    operands = [x or node.operand(0), w, *node.inputs[2:]]
    return taken_in(node, operands, node.output)


def _released(node: Node, w: Value) -> Proposal:
    """``Conv(dequantize(x), w) -> Conv(dequantize(x), dequantize(w))``.

    The weight was taken in while x was float, in a granularity that does not go with stored x.
    """
    x = node.operand(0)
    if x.quant is not None:
        return None
    weight = dequantized(w, x.type.dtype, node.origin)
    operands = [x, weight, *node.inputs[2:]]
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def _float_operands(node: Node) -> Proposal:
    x, w = node.operand(0), node.operand(1)
    names = tuple(value.name for value in (x, w) if not value.quant)
    if w.quant:
        return Reject("its input is float, only its weight is quantized", names)
    return Reject("its weight is float" if x.quant else "its operands are float", names)


def _quantized_operand(node: Node, index: int) -> Value | None:
    value = node.operand(index)
    return value if value.quant else None


def _storage_refusal(w: Value) -> Reject | None:
    assert w.quant is not None
    params = w.quant.params
    if not params.storage_dtype.is_integer or params.storage_dtype.bits > _WEIGHT_BITS:
        return Reject(f"its weight is stored as {params.storage_dtype}", (w.name,))
    return None


def _granularity_refusal(node: Node, x: Value | None, w: Value) -> Reject | None:
    assert w.quant is not None
    params = w.quant.params
    if w.constant is not None and x is None:
        return None  # weight-only: dequantized in any granularity
    if params.blocked:
        return Reject("its weight is quantized in blocks, its input per tensor", (w.name,))
    geometry = geometry_of(node)
    axis = None if geometry is None else geometry.axis
    if params.axis is not None and params.axis != axis:
        return Reject(
            f"its weight is quantized along axis {params.axis}, its results vary along {axis}",
            (w.name,),
        )
    return None


@rule("absorb-result", QUANTIZE)
def absorb_result(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Conv(x, w)) -> Conv(x, w)`` into the quantized type, for quantized x and w."""
    source, target = before_cast(node.operand(0), context), node.output.quant
    op = source.producer
    if op is None or target is None or op.op.flow is not Flow.ACCUMULATE:
        return None
    if op.operand(0).quant is None or op.operand(1).quant is None:
        return None
    # Somebody else reads the float numbers, so that they are computed anyway; absorbing would
    # compute the product twice.
    if not _only_reader(node, source, context):
        return _about(op, _shared(source, context))
    refusal = _result_refusal(target.params)
    if refusal is not None:
        return _about(op, refusal)
    return taken_in(op, op.inputs, node.output)


@rule("absorb-both-sides", QUANTIZE)
def absorb_both_sides(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Add(dequantize(a), dequantize(b))) -> Add(a, b)`` into the quantized type."""
    source, target = before_cast(node.operand(0), context), node.output.quant
    op = source.producer
    if op is None or target is None or len(op.outputs) != 1:
        return None
    if op.op.flow not in (Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND):
        return None
    operands = _quantized_operands(op)
    if isinstance(operands, Reject):
        return _about(op, operands)
    if not _only_reader(node, source, context):
        return _about(op, _shared(source, context))
    refusal = _result_refusal(target.params) or _form_refusal(op)
    if refusal is not None:
        return _about(op, refusal)
    return taken_in(op, operands, node.output)


def _only_reader(node: Node, source: Value, context: RuleContext) -> bool:
    reader = context.sole_reader(source)
    return reader is node or (reader is not None and reader is node.operand(0).producer)


def _about(op: Node, reject: Reject) -> Reject:
    return replace(reject, about=op)


def _quantized_operands(op: Node) -> list[Value | None] | Reject:
    operands = list(op.inputs)
    quantized = 0
    for index, value in op.data_operands():
        stored = value if value.quant is not None else stored_before_cast(value)
        if stored is not None and stored.quant is not None:
            if stored.constant is None and not stored.quant.params.per_tensor:
                return Reject(f"operand {index} is quantized per channel", (stored.name,))
            if not _narrow(stored.quant.params) and stored.constant is None:
                return Reject(f"operand {index} is stored as {stored.type.dtype}", (stored.name,))
            operands[index] = stored
            quantized += 1
        elif value.constant is None and isinstance(value.type, TensorType):
            origin = "a graph input" if value.producer is None else value.producer.op.name
            return Reject(f"operand {index} is float: the result of {origin}", (value.name,))
    return operands if quantized else Reject("no operand is quantized")


def _narrow(params: QuantParams) -> bool:
    return params.storage_dtype.is_integer and params.storage_dtype.bits <= _WEIGHT_BITS


def _result_refusal(params: QuantParams) -> Reject | None:
    if not params.per_tensor:
        return Reject("its result is quantized per channel")
    if not _narrow(params):
        return Reject(f"its result is stored as {params.storage_dtype}")
    return None


def _form_refusal(op: Node) -> Reject | None:
    if op.op is POW and (op.operand(1).constant is None or op.operand(1).rank != 0):
        exponent = op.operand(1)
        if exponent.constant is None or exponent.constant.size != 1:
            return Reject("Pow has an integer form only for one constant exponent")
    attributes = op.attributes
    if isinstance(attributes, ResizeAttrs) and attributes.antialias:
        return Reject("Resize with antialias has no integer form")
    return None


def _shared(source: Value, context: RuleContext) -> Reject:
    readers = [f"{n.op.name} '{n.name}'" for n in context.readers(source)]
    if context.is_output(source):
        readers.append("the graph's output")
    return Reject(
        "its float result is read several times", (source.name, *sorted(set(readers))[:4])
    )
