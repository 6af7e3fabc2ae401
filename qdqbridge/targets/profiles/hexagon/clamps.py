"""Saturation that Hexagon loses: of results that are stored once more, in a wider range.

The backend computes an operator in the encoding of what reads its result: of a Concat always, of a
QuantizeLinear where no product stands before. What the first, narrower encoding had clamped comes
out again (onnxruntime-qnn 2.7.0, host build). A Max in between that changes nothing keeps it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT, MAX
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.float_regions import COPIES
from qdqbridge.targets.profiles.hexagon.bias import bias_sum
from qdqbridge.targets.profiles.shared_rules import RUNNING, WEIGHTED, encoding_of, is_parameter

_HALF = 0.5
_KEEPERS = frozenset({"Max", "Min", "Relu", "Clip", "MaxPool"})
"""Operators whose result stays clamped where it has the encoding of the operand."""


@rule("clamp-kept", CONCAT, REQUANTIZE)
def kept_clamps(node: Node, context: RuleContext) -> Proposal:
    """``Concat(x, y) -> Concat(Max(x, lowest), y)`` where the result is wider than ``x``."""
    target = node.output.quant
    if target is None or not target.params.per_tensor:
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.quant is None or not value.quant.params.per_tensor:
            continue
        if _is_made(value, node) and _outside(value.quant.params, target.params):
            operands[node, index] = context.once(kept, value)
    return Replace(operands=operands) if operands else None


def _is_made(value: Value, reader: Node) -> bool:
    made = value.producer
    while made is not None and made.op.flow is Flow.MOVE:
        made = made.operand(0).producer
    if made is None or made.op.name in _KEEPERS:
        return False
    return reader.op is CONCAT or made.op.flow is not Flow.ACCUMULATE


def kept(value: Value) -> Value:
    """Returns a stored value behind a Max that changes nothing, as the backend rounds it then."""
    assert value.quant is not None
    params = value.quant.params
    lowest = np.asarray(params.qmin, params.storage_dtype.numpy)
    operands = [value, constant(lowest, params, f"{value.name}_lowest")]
    return result(MAX, NO_ATTRIBUTES, operands, value.type, name=f"{value.name}_kept")


def _outside(own: QuantParams, wider: QuantParams) -> bool:
    return _reaches_out(_range_of(own), _range_of(wider))


def _range_of(params: QuantParams) -> StoredRange:
    return StoredRange(*params.real_range, float(params.scale.reshape(())))


class StoredRange(NamedTuple):
    """The real numbers that can be stored.

    Attributes:
        low: The smallest.
        high: The largest.
        step: Between neighbours.
    """

    low: float
    high: float
    step: float


def _reaches_out(own: StoredRange, wider: StoredRange) -> bool:
    """True where a range goes on behind an end of another, by more than its step."""
    step = max(own.step, _HALF * wider.step)
    return wider.low < own.low - step or wider.high > own.high + step


def lost_clamp(view: FileView, node: FileNode) -> Reason | None:
    """Returns whether a Concat or a QuantizeLinear stores a result in a wider range."""
    if is_quantize(node):
        target = view.encoding(node)
    elif node.op == "Concat" and view.quantized(node.output):
        target = view.quantized(node.output)[0]
    else:
        return None
    joined = node.inputs if node.op == "Concat" else node.inputs[:1]
    if any(view.dequantized(name) is None for name in joined):
        return None  # floats are joined as they are
    for name in joined:
        own = view.dequantized(name)
        steps = 0 if own is None or view.is_constant(name) else _let_through(own, target)
        if own is not None and steps and _computed(view, own, node):
            tensor = own.node.input(0)
            text = f"'{tensor}' has a narrower range than the result, by {steps} of its steps"
            bounded = target.dtype is not None and target.dtype.bits <= _BOUNDED_BITS
            return Reason(text, (tensor,), _at_most(view, node, steps, target) if bounded else 0)
    return None


def _let_through(own: FileEncoding, target: FileEncoding) -> int:
    """Returns by how many steps of the result what is clamped may be off; 0 for two and less."""
    inner, outer = _stored_range(own), _stored_range(target)
    if inner is None or outer is None or not _reaches_out(inner, outer):
        return 0
    steps = max(inner.low - outer.low, outer.high - inner.high) / outer.step
    return math.ceil(steps) if steps > _STEPS else 0


def _at_most(view: FileView, node: FileNode, steps: int, target: FileEncoding) -> int:
    """Returns a bound for a result and for products behind it, which may make more of it."""
    found, top = steps + 1, (1 << _BOUNDED_BITS) - 1
    stored = view.quantized(node.output) if node.op == "Concat" else [target]
    for own in stored:
        for reader, _ in view.consumers(own.node.output):
            products = view.consumers(reader.output) if is_dequantize(reader) else []
            gains = [_gain(view, product, target) for product, index in products if index == 0]
            found = max([found, *(math.ceil(gain * found) for gain in gains)])
    return min(found, top)


def _gain(view: FileView, product: FileNode, x: FileEncoding) -> float:
    """Returns how many steps of its result one step of each operand is at most."""
    weight, results = view.dequantized(product.input(1)), view.quantized(product.output)
    if product.op not in WEIGHTED or weight is None or not results or weight.scale is None:
        return 0.0
    stored, result = view.constant(weight.node.input(0)), results[0]
    if stored is None or result.scale is None or x.scale is None:
        return 0.0
    largest = float(weight.scale.max()) * float(np.abs(stored.astype(np.int64)).max(initial=0))
    terms = stored.size / max(stored.shape[0 if product.op == "Conv" else -1], 1)
    return largest * terms * float(x.scale.max()) / float(result.scale.min())


_STEPS = 2
_BOUNDED_BITS = 8
"""Bits of results up to which no more than the lost clamp was ever seen; of 16 it was more."""


def _stored_range(found: FileEncoding) -> StoredRange | None:
    if found.dtype is None or found.scale is None or not found.per_tensor:
        return None
    scale, zero = float(found.scale.reshape(-1)[0]), found.zero()
    low, high = (int(end) - zero for end in (found.dtype.qmin, found.dtype.qmax))
    return StoredRange(low * scale, high * scale, scale)


def _computed(view: FileView, own: FileEncoding, reader: FileNode) -> bool:
    """True where an operator has made what is stored, in another encoding than its operand."""
    made, tensor, source = None, own.node.input(0), None
    while stored := view.producer(tensor):
        made = view.producer(stored.input(0)) if is_quantize(stored) else None
        if made is not None and is_dequantize(made):  # a conversion, which clamps or does not
            source = view.encoding(made)
            if _let_through(own, source):
                return True
            made, tensor = None, made.input(0)
            continue
        source = None if made is None else view.dequantized(made.input(0))
        if made is None or source is None or made.op not in COPIES:
            break
        tensor = source.node.input(0)
    if made is None:
        return False
    if made.op in _KEEPERS and source is not None and source.same_mapping(own):
        return False
    if made.op in (_CLAMPED_FOR_CONCAT if reader.op == "Concat" else _CLAMPED):
        return False
    return reader.op == "Concat" or made.op not in WEIGHTED


def nothing_left(view: FileView, node: FileNode) -> bool:
    """True where a Relu follows, and a Q that can store numbers up to 0 only: all of them are."""
    positive, readers = False, view.consumers(node.output)
    while len(readers) == 1:
        node = readers[0][0]
        if positive and is_quantize(node):
            found = view.encoding(node)
            if found.dtype is not None and found.zero() == found.dtype.qmax:
                return True
        keeps = is_quantize(node) or is_dequantize(node) or node.op in _STAYS_POSITIVE
        positive = node.op == "Relu" or (positive and keeps)
        readers = view.consumers(node.output)
    return False


_STAYS_POSITIVE = COPIES | {"ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "MaxPool"}


_CLAMPED_FOR_CONCAT = frozenset(
    {"ReduceMax", "ReduceMin", "ReduceMean", "GlobalAveragePool", "Sigmoid"}
)
"""Operators whose results are rounded to their own range before a Concat joins them."""
_CLAMPED = _CLAMPED_FOR_CONCAT | {
    "AveragePool", "Gelu", "GlobalMaxPool", "LayerNormalization", "LeakyRelu", "MaxPool", "Mul",
    "ReduceSum", "Relu", "Resize", "Softmax", "Tanh",
}  # fmt: skip
"""Operators whose results are so before another QuantizeLinear; sums and what is moved are not."""


# ---- What is no part of an operator between DequantizeLinear and QuantizeLinear, and is left so
#
# Such an operator is one unit to onnxruntime's QNN provider, with the DequantizeLinear of its
# parameters. Operators on stored integers, parameters of nobody, and what has bodies are none.

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"
_STORED = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)
_ANY_TYPE = RUNNING | {"Cast", "Shape", "Size", "If", "Loop", "Scan"}
"""Operators that other rules speak of, or that read no values."""
_NO_UNITS = frozenset({"Add", "Div", "Flatten", "Gather", "Mul", "Reshape", "Squeeze", "Sub"})
"""Readers of parameters that have a scale for each channel, which are left."""
_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
_BODIES = frozenset({"If", "Loop", "Scan"})


def _on_stored(view: FileView, node: FileNode) -> Reason | None:
    """An operator of ONNX on stored integers; a Transpose between Q and DQ is moved behind."""
    if is_quantize(node) or is_dequantize(node) or node.op in _ANY_TYPE or "::" in node.op:
        return None
    if node.op.startswith("QLinear") or not node.outputs or view.is_constant(node.output):
        return None
    for name in node.inputs:
        if not name or view.is_constant(name) or view.dtype(name) not in _STORED:
            continue
        made, readers = view.producer(name), view.consumers(node.output)
        moved = made is not None and is_quantize(made)
        moved = moved and bool(readers) and all(is_dequantize(reader) for reader, _ in readers)
        if node.op == "Transpose" and moved:
            return None
        return Reason(f"it reads stored integers: '{name}' is {view.dtype(name)}", (name,))
    return None


def _lone_channels(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not is_parameter(view, node) or found.scale is None:
        return None
    if found.per_tensor or found.block_size:
        return None
    for reader, _ in view.consumers(node.output):
        if reader.op in _NO_UNITS and not _is_bias_sum(view, reader):
            text = f"{reader.op} '{reader.name}' reads it, which is not a product"
            return Reason(text, (node.input(0),))
    return None


def _is_bias_sum(view: FileView, node: FileNode) -> bool:
    """True for an Add that is the bias of a MatMul, with whatever clamp behind."""
    made = [view.producer(name) for name in node.inputs if node.op == "Add"]
    return any(m is not None and bias_sum(view, m) is node for m in made)


def _lone_bias(view: FileView, node: FileNode) -> Reason | None:
    """A stored bias beside a weight that is not dequantized: the product is one of floats."""
    name, weight = node.input(2), node.input(1)
    x = view.dequantized(node.input(0)) if node.op in _BIASED and name else None
    if x is None or x.dtype not in (DType.UINT8, DType.INT8) or not view.quantized(node.output):
        return None
    if not view.is_constant(weight) or view.dequantized(weight) is not None:
        return None
    if view.dequantized(name) is None:
        return None  # floats are quantized by the provider
    made = view.producer(weight)
    if (made is not None and made.op == "Transpose") or view.dtype(weight) is not DType.FLOAT32:
        return None
    return Reason(f"its weight '{weight}' is float, its bias is stored", (name,))


def _body(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in _BODIES or all(map(view.is_constant, node.outputs)):
        return None
    if node.op == "If" and view.is_constant(node.input(0)):
        return None  # onnxruntime puts the branch in its place
    return Reason("it has bodies, which read what is made elsewhere", (node.output,))


UNIT_RULES: tuple[TargetRule, ...] = (
    TargetRule("stored-operands", "operators on stored integers", _on_stored,
           f"{_HOST}: 'fails the backend's validation, code 3110', or 'inserted using the NHWC "
           "format'", Effect.ELSEWHERE, "dequantize in front, and quantize behind"),
    TargetRule("lone-channels", "DQ of per-channel constants", _lone_channels,
           f"{_HOST}: 'does not support a standalone DQ op with per-channel quantization'",
           Effect.ELSEWHERE, "store it in the shape in which a product reads it"),
    TargetRule("lone-bias", "products of 8 bits with a stored bias and a float weight", _lone_bias,
           f"{_HOST}: 'Dequantize fails the backend's validation, code 3110'", Effect.ELSEWHERE,
           "quantize the weight, or write both in floats"),
    TargetRule("bodies", "If, Loop and Scan", _body,
           f"{_HOST}: 'produced outside the QNN partition (cross-partition unsupported)'",
           Effect.ELSEWHERE, "write the branch that runs in its place"),
)  # fmt: skip
