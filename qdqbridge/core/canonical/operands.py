"""Rules for operands that may change places or stand there twice."""

from __future__ import annotations

from qdqbridge.core.canonical.order import commuting
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.ops.build import requantized, result, retyped
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_EXTREMES = ("Min", "Max")


@rule("constants-last")
def constants_last(node: Node, context: RuleContext) -> Proposal:
    """``Add(const, x) -> Add(x, const)``, so that other rules find a constant on the right.

    The order among the others is settled when no rule has anything to say any more
    (:mod:`qdqbridge.core.canonical.order`).
    """
    del context
    operands = [value for value in commuting(node) if value is not None]
    if len(operands) < 2 or len(node.outputs) != 1:
        return None
    ordered = sorted(operands, key=lambda value: value.is_constant)
    if ordered == operands or len(operands) < min(node.op.commuting, len(node.inputs)):
        return None
    ordered += node.inputs[len(operands) :]  # type: ignore[arg-type] # those that stay
    return Replace({node.output: retyped(node, ordered, node.output.type, node.output.name)})


@rule("extreme-of-extremes", *_EXTREMES)
def extreme_of_extremes(node: Node, context: RuleContext) -> Proposal:
    """``Max(Max(a, b), c) -> Max(a, b, c)``: rounding twice into one type rounds once."""
    operands: list[Value | None] = []
    inner: list[Node] = []
    for value in node.inputs:
        made = None if value is None else value.producer
        if (
            made is not None
            and value is not None
            and made.op is node.op
            and value.type.shape is not None
            and _same_type(value, node.output)
            and set(context.readers(value)) == {node}
            and not context.is_output(value)
        ):
            inner.append(made)
            operands += made.inputs
        else:
            operands.append(value)
    if not inner:
        return None
    output, origin = node.output, node.origin
    for made in inner:
        origin = origin.joined(made.origin)
    value = result(node.op, node.attributes, operands, output.type, origin, output.name)
    return Replace({output: value})


def _same_type(value: Value, other: Value) -> bool:
    if value.quant is None or other.quant is None:
        return value.quant is other.quant and value.type.dtype is other.type.dtype
    params = value.quant.params
    return params == other.quant.params and params.round_trips and params.per_tensor


@rule("extreme-of-equals", *_EXTREMES)
def extreme_of_equals(node: Node, context: RuleContext) -> Proposal:
    """``Max(x, y, x) -> Max(x, y)``, and ``Max(x) -> x``, rounded into the result's type."""
    del context
    operands = list(dict.fromkeys(node.inputs))
    output = node.output
    if len(operands) < len(node.inputs) and len(operands) > 1:
        return Replace({output: retyped(node, operands, output.type, output.name)})
    x = operands[0]
    if len(operands) > 1 or x is None or x.is_constant:
        return None
    if x.type == output.type or (x.quant is None and output.quant is None):
        return Replace({output: x})
    if x.quant is None or output.quant is None or not x.quant.params.round_trips:
        return None
    return Replace({output: requantized(x, output.quant.params, node.origin, output.name)})
