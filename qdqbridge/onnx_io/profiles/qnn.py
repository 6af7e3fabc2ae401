"""What onnxruntime's QNN provider demands of a QDQ file.

Sources: the provider's documentation and the issues named at the rules; for clamps, what the host
build of Hexagon's backend computes (onnxruntime-qnn 2.7.0 on onnxruntime 1.32, x86: no phone).
"""

from __future__ import annotations

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.onnx_io.profiles.file_view import FileNode, FileView, is_dequantize
from qdqbridge.onnx_io.profiles.finding import Demand, Effect, Reason
from qdqbridge.onnx_io.profiles.islands import islands_of
from qdqbridge.onnx_io.profiles.shared_rules import (
    active_ends,
    bias_ratio,
    constant_positive_scale,
    encoding_of,
    is_parameter,
    per_tensor_activations,
    storage,
    stored_tensor,
    weight_axis,
)

_WIDE = (DType.INT16, DType.UINT16)
_NARROW = (DType.INT4, DType.UINT4)
_ACTIVATIONS = (DType.UINT8, DType.INT8, *_WIDE)
_CONTRIB_BELOW = 21
_NEAR = 0.01


def _domain(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or view.opset >= _CONTRIB_BELOW or "::" in node.op:
        return None
    if found.dtype not in (*_WIDE, *_NARROW):
        return None
    tensor = stored_tensor(node)
    text = f"'{tensor}' is {found.dtype}, which opset {view.opset} does not have"
    return Reason(text, (tensor,))


def _symmetric_channels(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not is_parameter(view, node) or found.scale is None or found.per_tensor:
        return None
    signed = found.dtype is not None and found.dtype.is_signed
    if signed and found.symmetric:
        return None
    tensor = stored_tensor(node)
    zero = 0 if found.zero_point is None else int(np.abs(found.zero_point.astype(np.int64)).max())
    text = f"the per-channel constant '{tensor}' is {found.dtype} with zero points up to {zero}"
    return Reason(text, (tensor,))


def _bias(view: FileView, node: FileNode) -> Reason | None:
    name = node.input(2)
    x = view.dequantized(node.input(0))
    if node.op not in ("Conv", "ConvTranspose", "Gemm") or not name or x is None:
        return None
    found = view.dequantized(name)
    if found is None:
        return Reason(f"the bias '{name}' is not quantized", (name,))
    if found.dtype is not DType.INT32:
        return Reason(f"the bias '{found.node.input(0)}' is {found.dtype}, not int32", (name,))
    w = view.dequantized(node.input(1))
    worst = None if w is None else bias_ratio(x, w, found)
    if worst is None or abs(worst - 1) < _NEAR:
        return None
    return Reason(f"the scale of the bias is {worst:.6g} times scale x * scale w", (name,))


def _no_blocks(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not found.block_size:
        return None
    tensor = stored_tensor(node)
    return Reason(f"'{tensor}' is quantized in blocks of {found.block_size}", (tensor,))


def _node_unit(view: FileView, node: FileNode) -> Reason | None:
    if node not in islands_of(view) or _implied(view, node):
        return None
    for index, name in enumerate(node.inputs):
        if name and not view.is_constant(name) and view.dequantized(name) is None:
            if view.dtype(name) is DType.BOOL:
                continue
            return Reason(f"operand {index} '{name}' is not dequantized", (name,))
    if view.quantized(node.output) or _clamped(view, node):
        return None
    return Reason(f"its result '{node.output}' is not quantized", (node.output,))


def _clamped(view: FileView, node: FileNode) -> bool:
    readers = view.consumers(node.output)
    clamp = readers[0][0] if len(readers) == 1 else None
    return clamp is not None and clamp.op in ("Relu", "Clip") and bool(view.quantized(clamp.output))


def _implied(view: FileView, node: FileNode) -> bool:
    """True for a Relu whose Q has its smallest value as zero point: it is part of the operator."""
    found = view.quantized(node.output)
    return node.op == "Relu" and bool(found) and active_ends(view, node, found[0]) == (False, False)


def _clamp_before(view: FileView, node: FileNode) -> Reason | None:
    made, found = view.producer(node.input(0)), view.quantized(node.output)
    if node.op not in ("Relu", "Clip") or made is None or is_dequantize(made) or not found:
        return None
    if len(view.consumers(node.input(0))) > 1 or node not in islands_of(view):
        return None
    if _implied(view, node):
        return None
    text = f"{node.op} stands between {made.op} '{made.name}' and its QuantizeLinear"
    return Reason(text, (node.output,))


def _clip_behind(view: FileView, node: FileNode) -> Reason | None:
    found = view.quantized(node.output)
    if node.op != "Clip" or view.dequantized(node.input(0)) is None or not found:
        return None
    active = active_ends(view, node, found[0])
    if active is None or not any(active):
        return None
    if not all(active):
        end = "lower" if active[0] else "upper"
        return Reason(f"only its {end} end lies inside the range of the result", (node.output,))
    wide = found[0].dtype in _WIDE
    return Reason(f"it clips {found[0].dtype}", (node.output,)) if wide else None


_DOCS = "onnxruntime, QNN Execution Provider"
_HEXAGON = "onnxruntime-qnn 2.7.0, host build of Hexagon: not taken, or up to 254 LSB wrong"

RULES: tuple[Demand, ...] = (
    Demand("contrib-domain", "Q and DQ of 16 and 4 bits", _domain, "ONNX: QuantizeLinear-21",
         Effect.REFUSED, "use com.microsoft, or declare opset 21"),
    Demand("storage", "Q and DQ", storage(_ACTIVATIONS, (*_ACTIVATIONS, *_NARROW, DType.INT32)),
         _DOCS, Effect.REFUSED, "use 8 or 16 bits for activations"),
    Demand("constant-positive-scale", "Q and DQ", constant_positive_scale, _DOCS, Effect.REFUSED,
         "write scales as initializers"),
    Demand("per-tensor-activations", "Q and DQ of activations", per_tensor_activations, _DOCS,
         Effect.REFUSED, "use one scale per activation"),
    Demand("symmetric-per-channel", "DQ of per-channel constants", _symmetric_channels,
         "microsoft/onnxruntime#20154", Effect.REFUSED, "use int8 with zero point 0"),
    Demand("weight-axis", "per-channel weights", weight_axis({"Conv": 0, "ConvTranspose": 1}),
         "microsoft/onnxruntime#20154", Effect.REFUSED, "use the axis of the output channels"),
    Demand("bias-int32", "Conv, ConvTranspose, Gemm", _bias, "microsoft/onnxruntime#26709",
         Effect.FLOAT, "quantize the bias to int32, scale x * scale w"),
    Demand("no-blocks", "DQ of weights", _no_blocks, "onnxruntime-qnn#650", Effect.FLOAT,
         "use per-channel scales"),
    Demand("whole-node-unit", "float compute between DQ and Q", _node_unit, _DOCS, Effect.FLOAT,
         "quantize every operand and the result"),
    Demand("clamp-behind-pair", "Relu and Clip behind an operator", _clamp_before, _HEXAGON,
         Effect.REFUSED, "quantize the result, dequantize it, clamp, and quantize again"),
    Demand("clip-of-two-ends", "Clip between DQ and Q", _clip_behind, _HEXAGON,
         Effect.REFUSED, "use Relu, or Max and Min with dequantized numbers"),
)  # fmt: skip
