"""What TensorRT demands of a QDQ file.

Sources: onnx-tensorrt docs/operators.md; NVIDIA's "Working with Quantized Types" and "Explicit
Quantization"; the issues named at the rules. Not run here: there is no TensorRT on the machine.
"""

from __future__ import annotations

from qdqbridge.graph.dtypes import DType
from qdqbridge.onnx_io.profiles.file_view import FileNode, FileView, is_dequantize
from qdqbridge.onnx_io.profiles.finding import Demand, Effect, Reason
from qdqbridge.onnx_io.profiles.shared_rules import (
    WEIGHTED,
    both_or_none,
    constant_positive_scale,
    encoding_of,
    onnx_domain,
    per_tensor_activations,
    quantized_while_running,
    storage,
    stored_tensor,
    weight_axis,
)

_SMALL_FLOATS = (DType.FLOAT8_E4M3FN, DType.FLOAT4_E2M1)
_ACTIVATIONS = (DType.INT8, *_SMALL_FLOATS)
_FOUR_BITS = (DType.INT4, DType.FLOAT4_E2M1)


def _symmetric(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or found.symmetric:
        return None
    zero = "unknown" if found.zero_point is None else int(found.zero_point.reshape(-1)[0])
    tensor = stored_tensor(node)
    return Reason(f"the zero point of '{tensor}' ({found.dtype}) is {zero}, not 0", (tensor,))


def _float_bias(view: FileView, node: FileNode) -> Reason | None:
    if not is_dequantize(node):
        return None
    if view.encoding(node).dtype is not DType.INT32:
        return None
    tensor = node.input(0)
    return Reason(f"'{tensor}' is int32; a bias must be a float constant", (tensor,))


def _blocks(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not found.block_size or found.dtype in _FOUR_BITS:
        return None
    tensor = stored_tensor(node)
    return Reason(f"'{tensor}' ({found.dtype}) is quantized in blocks", (tensor,))


def _residual(view: FileView, node: FileNode) -> Reason | None:
    """A weighted result that is rounded before an Add cannot be fused with it."""
    if node.op not in WEIGHTED:
        return None
    for quantized in view.quantized(node.output):
        for dequantize, _ in view.consumers(quantized.node.output):
            if not is_dequantize(dequantize):
                continue
            for add, _ in view.consumers(dequantize.output):
                if add.op == "Add" and not any(view.is_constant(name) for name in add.inputs):
                    text = f"its result is quantized before the residual Add '{add.name}'"
                    return Reason(text, (node.output,))
    return None


_TYPES = "onnx-tensorrt operators.md; NVIDIA/TensorRT#2774, #4698"

RULES: tuple[Demand, ...] = (
    Demand("onnx-domain", "Q and DQ", onnx_domain, "onnx-tensorrt operators.md", Effect.REFUSED,
         "declare opset 21 for 16-bit and 4-bit types"),
    Demand("static-quantization", "DynamicQuantizeLinear, MatMulInteger, ConvInteger",
         quantized_while_running, "onnx-tensorrt operators.md", Effect.REFUSED,
         "give fixed parameters: export --data, then quantize symmetrically"),
    Demand("signed-8-bit", "Q and DQ",
         storage(_ACTIVATIONS, (*_ACTIVATIONS, *_FOUR_BITS, DType.INT32)),
         _TYPES, Effect.REFUSED, "quantize activations symmetrically to int8"),
    Demand("zero-point-0", "Q and DQ", _symmetric, _TYPES, Effect.REFUSED,
         "quantize symmetrically"),
    Demand("float-bias", "DQ", _float_bias, "onnx-tensorrt#850; microsoft/onnxruntime#14229",
         Effect.REFUSED, "leave the bias in float"),
    Demand("constant-positive-scale", "Q and DQ", constant_positive_scale,
         "NVIDIA, Explicit Quantization", Effect.REFUSED, "write scales as initializers"),
    Demand("per-tensor-activations", "Q and DQ of activations", per_tensor_activations,
         "NVIDIA, Working with Quantized Types", Effect.REFUSED, "use one scale per activation"),
    Demand("blocks-of-4-bits", "Q and DQ", _blocks, "NVIDIA, Working with Quantized Types",
         Effect.REFUSED, "use per-channel scales"),
    Demand("weight-axis", "per-channel weights", weight_axis({"Conv": 0, "ConvTranspose": 0}),
         "NVIDIA/TensorRT#2380, #1694, #1699", Effect.REFUSED,
         "use per-tensor weights for ConvTranspose, output channels elsewhere"),
    Demand("both-operands-quantized", "Conv, ConvTranspose, Gemm, MatMul", both_or_none,
         "NVIDIA, Explicit Quantization", Effect.FLOAT, "quantize both operands"),
    Demand("no-q-before-residual-add", "weighted operators before Add", _residual,
         "NVIDIA, Explicit Quantization: Q/DQ placement", Effect.FLOAT,
         "quantize only the skip branch of the Add"),
)  # fmt: skip
