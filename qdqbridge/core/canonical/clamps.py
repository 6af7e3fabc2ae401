"""Rules for Relu and Clip: a clamp next to a rounding is a narrower range of the type."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Attributes, Flow
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import ClipAttrs, PadAttrs
from qdqbridge.core.ops.build import quantized, result, retyped
from qdqbridge.core.ops.conversion import QUANTIZE, REQUANTIZE, is_finite
from qdqbridge.core.ops.elementwise import MAX, MIN
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    rule,
    stored_behind,
)

_ROUNDING = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)


def bounds(node: Node) -> tuple[float, float] | None:
    """Returns the real interval of a Relu or Clip, None for any other node."""
    if node.op is RELU:
        return 0.0, math.inf
    clip = CLIP.of(node)
    if clip is not None:
        low, high = clip.low, clip.high
        return -math.inf if low is None else low, math.inf if high is None else high
    return None


def narrowed(params: QuantParams, low: float, high: float) -> QuantParams:
    """Returns ``params`` with the range that ``[low, high]`` rounds into."""
    wide = params.widened()
    qmin, qmax = params.qmin, params.qmax
    if low > -math.inf:
        # Rounding is monotone, so that the code of the bound bounds the codes; a bound beyond the
        # other end leaves the one code there.
        qmin = max(qmin, min(int(quantize(np.array([low], np.float32), wide)[0]), qmax))
    if high < math.inf:
        qmax = min(qmax, max(int(quantize(np.array([high], np.float32), wide)[0]), qmin))
    return params.with_range(qmin, qmax)


@rule("clip-of-an-extreme", MAX, MIN)
def clip_of_an_extreme(node: Node, context: RuleContext) -> Proposal:
    """``Max(x, …, number) -> Clip(Max(x, …), low=number)``; ``Min`` gives the upper bound.

    The number may be stored quantized. Of a rounded result it is a narrower range, as any clamp.
    """
    del context
    values = [value for value in node.inputs if value is not None]
    bounds = [value for value in values if _scalar_constant(value) is not None]
    others = [value for value in values if value not in bounds]
    if len(bounds) != 1 or all(value.is_constant for value in others):
        return None
    (bound,) = bounds
    number = _scalar_constant(bound)
    assert number is not None
    rank = max((value.rank or 0 for value in others), default=0)
    # A bound of a higher rank broadcasts the result, and Max with NaN is NaN, which no Clip gives.
    if (bound.rank or 0) > rank or math.isnan(number):
        return None
    low = node.op is MAX
    interval = (number, math.inf) if low else (-math.inf, number)
    if node.output.quant is not None:
        return _narrow_extreme(node, others, node.output.quant.params, interval)
    if any(value.quant is not None or not value.type.dtype.is_float for value in others):
        return None
    x = others[0]
    if len(others) > 1:
        x = retyped(node, others, node.output.type, "")
    return _clipped(node, x, ClipAttrs(number, None) if low else ClipAttrs(None, number))


def _narrow_extreme(
    node: Node, others: list[Value], params: QuantParams, interval: tuple[float, float]
) -> Proposal:
    if not params.per_tensor or not params.storage_dtype.is_integer:
        return None
    type_ = QuantType(narrowed(params, *interval), node.output.type.shape)
    return Replace({node.output: retyped(node, others, type_, node.output.name)})


def _scalar_constant(value: Value) -> float | None:
    """Returns a real constant of one element."""
    stored = stored_behind(value) or value
    data = stored.constant
    if data is None or data.size != 1 or (stored is value and value.quant is not None):
        return None
    real = data.numpy() if stored.quant is None else dequantize(data.numpy(), stored.quant.params)
    return float(real.reshape(()).astype(np.float64))


@rule("clip-twice", CLIP)
def clip_twice(node: Node, context: RuleContext) -> Proposal:
    """``Clip(Clip(x)) -> Clip(x)``, within the bounds of both."""
    del context
    inner, own = node.operand(0).producer, node.attributes
    if inner is None or not isinstance(own, ClipAttrs) or node.output.quant is not None:
        return None
    first = inner.attributes
    if not isinstance(first, ClipAttrs) or inner.operand(0).quant is not None:
        return None
    ends = _both(first, own)
    return None if ends is None else _clipped(node, inner.operand(0), ends)


@rule("clip-of-finite", CLIP)
def clip_of_finite(node: Node, context: RuleContext) -> Proposal:
    """``Clip(dequantize(q), low=lowest) -> Clip(dequantize(q))``: no infinity is there to clip.

    ONNX's left-out bounds are the lowest and the largest finite number.
    """
    del context
    own, x = node.record(ClipAttrs), node.operand(0)
    if not is_finite(x):
        return None
    dtype = x.quant.params.expressed_dtype if x.quant is not None else x.type.dtype
    if dtype not in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        return None
    limits = np.finfo(dtype.numpy)
    low = None if own.low is None or own.low <= limits.min else own.low
    high = None if own.high is None or own.high >= limits.max else own.high
    return None if (low, high) == (own.low, own.high) else _clipped(node, x, ClipAttrs(low, high))


@rule("clip-nothing", CLIP)
def clip_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Clip(x) -> x`` without bounds."""
    del context
    x, own = node.operand(0), node.attributes
    if not isinstance(own, ClipAttrs) or x.type != node.output.type:
        return None
    nothing = own == ClipAttrs(None, None)
    # A bound of infinity clips nothing of a float; an integer type's largest number is a bound.
    if x.type.dtype.is_float:
        nothing = own.low in (None, -math.inf) and own.high in (None, math.inf)
    return Replace({node.output: x}) if nothing else None


def _both(first: ClipAttrs, then: ClipAttrs) -> ClipAttrs | None:
    """Returns the bounds of two clips, None where the second lies outside of the first."""
    lows = [end.low for end in (first, then) if end.low is not None]
    highs = [end.high for end in (first, then) if end.high is not None]
    low, high = max(lows, default=None), min(highs, default=None)
    # Clips whose intervals do not meet give one number, which the bounds of both together do not
    # say.
    if low is not None and high is not None and low > high:
        return None
    return ClipAttrs(low, high)


def _clipped(node: Node, x: Value, attributes: ClipAttrs) -> Replace:
    output = node.output
    value = result(CLIP, attributes, [x], output.type, node.origin, output.name)
    return Replace({output: value})


@rule("clamp-before-quantize", QUANTIZE)
def clamp_before_quantize(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Relu(x)) -> quantize(x)`` into a narrower range; rounding is monotone."""
    clamp, target = node.operand(0).producer, node.output.quant
    if clamp is None or target is None:
        return None
    interval = bounds(clamp)
    if interval is None:
        return None
    if not target.params.per_tensor or not target.params.storage_dtype.is_integer:
        return Reject(f"the range of a clamp ({clamp.op.name}) cannot be per channel")
    # Somebody needs the clamped floats, so that the clamp stays where it is.
    if context.is_output(clamp.output) or any(
        reader.op is not QUANTIZE for reader in context.readers(clamp.output)
    ):
        return Reject(f"the result of {clamp.op.name} is also read as float", (clamp.output.name,))
    if interval[0] > interval[1]:
        return Reject(f"the bounds of {clamp.op.name} are empty: {interval}")
    params = narrowed(target.params, *interval)
    origin = clamp.origin.joined(node.origin)
    return Replace({node.output: quantized(clamp.operand(0), params, origin, node.output.name)})


@rule("clamp-into-producer", REQUANTIZE)
def clamp_into_producer(node: Node, context: RuleContext) -> Proposal:
    """``requantize(op(x))`` that only narrows the range ``-> op(x)`` into the narrow range."""
    source, target = node.operand(0), node.output.quant
    producer = source.producer
    if source.quant is None or target is None or producer is None:
        return None
    if not source.quant.params.same_mapping(target.params):
        return None
    if context.sole_reader(source) is not node or len(producer.outputs) != 1:
        return None
    params = intersection(source.quant.params, target.params)
    if producer.op.flow in _ROUNDING or producer.op in (QUANTIZE, REQUANTIZE):
        type_ = QuantType(params, node.output.type.shape)
        return Replace({node.output: retyped(producer, producer.inputs, type_, node.output.name)})
    if producer.op.flow is Flow.MOVE:
        return Replace({node.output: _clamp_first(node, producer, params)})
    return None


def intersection(source: QuantParams, target: QuantParams) -> QuantParams:
    """Returns the range of a value clipped to ``source`` first and to ``target`` then."""
    qmin = min(max(source.qmin, target.qmin), target.qmax)
    return target.with_range(qmin, max(min(source.qmax, target.qmax), target.qmin))


def _clamp_first(node: Node, movement: Node, params: QuantParams) -> Value:
    first = movement.operand(0)
    clamped = result(
        node.op, node.attributes, [first], QuantType(params, first.type.shape), node.origin
    )
    type_ = QuantType(params, node.output.type.shape)
    attributes = clamped_pad(movement.attributes, params)
    operands = [clamped, *movement.inputs[1:]]
    return result(movement.op, attributes, operands, type_, movement.origin, node.output.name)


def clamped_pad(attributes: Attributes, params: QuantParams) -> Attributes:
    """Returns the attributes of what moves a clamped operand: a pad value is clamped too."""
    if not isinstance(attributes, PadAttrs) or attributes.mode != "constant":
        return attributes
    value = np.array([attributes.value], np.float32)
    return replace(attributes, value=float(dequantize(quantize(value, params), params)[0]))
