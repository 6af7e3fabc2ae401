"""What is no part of an operator between DequantizeLinear and QuantizeLinear, and is left so.

Such an operator is one unit to onnxruntime's QNN provider, with the DequantizeLinear of its
parameters. Operators on stored integers, parameters of nobody, and what has bodies are none.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileNode, FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.hexagon.bias import bias_sum
from qdqbridge.targets.profiles.shared_rules import RUNNING, encoding_of, is_parameter

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
