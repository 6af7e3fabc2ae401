"""What OpenVINO demands of a QDQ file.

Sources: the issues named at the rules, and what OpenVINO 2026.4.1 does on the CPU: its runtime
model says in which precision a layer runs.
"""

from __future__ import annotations

from qdqbridge.graph.dtypes import DType
from qdqbridge.onnx_io.profiles.file_view import FileNode, FileView, is_quantize
from qdqbridge.onnx_io.profiles.finding import Demand, Effect, Reason
from qdqbridge.onnx_io.profiles.islands import islands_of
from qdqbridge.onnx_io.profiles.shared_rules import (
    both_or_none,
    constant_positive_scale,
    encoding_of,
    explicit_zero_point,
    has_products,
    is_parameter,
    per_tensor_activations,
    storage,
    stored_tensor,
    weight_axis,
)

_EIGHT = (DType.UINT8, DType.INT8)


def _blocked_axis(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not found.block_size:
        return None
    rank = view.rank(stored_tensor(node))
    axis = found.axis % rank if rank else found.axis
    if axis == 0:
        return None
    tensor = stored_tensor(node)
    return Reason(f"'{tensor}' is quantized in blocks along axis {axis}", (tensor,))


def _made_of_integers(view: FileView, node: FileNode) -> Reason | None:
    """A product of two activations runs on integers where nothing has to be subtracted first."""
    if node.op != "MatMul":
        return None
    pair = [view.dequantized(name) for name in node.inputs[:2]]
    if any(found is None or is_parameter(view, found.node) for found in pair):
        return None
    for index, found in enumerate(pair):
        assert found is not None
        tensor = found.node.input(0)
        if not found.symmetric:
            text = f"operand {index} '{tensor}' has zero point {found.zero()}"
            return Reason(text, (tensor,))
        if index == 1 and found.dtype is not DType.INT8:
            return Reason(f"operand 1 '{tensor}' is {found.dtype}, not int8", (tensor,))
    return None


def _shifted(view: FileView, node: FileNode) -> Reason | None:
    """Some products of an activation and a weight subtract the zero point in float, or all is."""
    x = view.dequantized(node.input(0))
    if x is None or x.symmetric or node.op not in ("ConvTranspose", "MatMul"):
        return None
    tensor = x.node.input(0)
    if node.op == "MatMul":
        rank = view.rank(tensor)
        if rank is None or rank < _BATCHED or not view.is_constant(node.input(1)):
            return None
    return Reason(f"'{tensor}' has zero point {x.zero()}", (tensor,))


_BATCHED = 4
"""The rank from which OpenVINO does not fold the zero point into a product with a weight."""


def _float_kernel(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in ("Softmax", "LayerNormalization") or node not in islands_of(view):
        return None
    return Reason(f"{node.op} has float kernels only")


def _stored_constant(view: FileView, node: FileNode) -> Reason | None:
    """Mul and Add of a constant that a Q makes are what its transformations fail at."""
    if node.op not in ("Mul", "Add") or not has_products(view):
        return None
    for name in node.inputs:
        found = view.dequantized(name)
        made = None if found is None else view.producer(found.node.input(0))
        if made is not None and is_quantize(made) and view.is_constant(made.input(0)):
            text = f"the constant '{made.input(0)}' is quantized by a node of the file"
            return Reason(text, (made.input(0),))
    return None


RULES: tuple[Demand, ...] = (
    Demand("explicit-zero-point", "Q and DQ", explicit_zero_point, "openvino#28562", Effect.REFUSED,
         "write the zero point"),
    Demand("blocks-along-axis-0", "Q and DQ in blocks", _blocked_axis,
         "openvino#32917: up to 2025.3 values are interleaved (axis 1) or refused", Effect.REFUSED,
         "transpose the weight, or use per-channel scales"),
    Demand("constant-positive-scale", "Q and DQ", constant_positive_scale,
         "openvino ONNX frontend, quantize_linear.cpp", Effect.REFUSED,
         "write scales as initializers"),
    Demand("8-bit-activations", "Q and DQ",
         storage(_EIGHT, (*_EIGHT, DType.INT4, DType.UINT4, DType.INT32)),
         "OpenVINO, Low Precision Transformations", Effect.FLOAT, "quantize to 8 bits"),
    Demand("per-tensor-activations", "Q and DQ of activations", per_tensor_activations,
         "OpenVINO, Low Precision Transformations", Effect.FLOAT, "use one scale per activation"),
    Demand("weight-axis", "per-channel weights", weight_axis({"Conv": 0, "ConvTranspose": 1}),
         "OpenVINO, Low Precision Transformations", Effect.FLOAT,
         "use the axis of the output channels"),
    Demand("stored-constants", "Mul and Add of constants", _stored_constant,
         "OpenVINO 2026.4.1: MultiplyPartialTransformation, index '0' out of range",
         Effect.REFUSED, "store the constant as integers, with a DequantizeLinear only"),
    Demand("products-of-activations", "MatMul of two activations", _made_of_integers,
         "OpenVINO 2026.4.1, runtime model", Effect.FLOAT,
         "use zero point 0 for both operands, and int8 for the second"),
    Demand("shifted-products", "ConvTranspose, and MatMul of rank 4", _shifted,
         "OpenVINO 2026.4.1, runtime model", Effect.FLOAT, "use zero point 0"),
    Demand("float-kernels", "Softmax, LayerNormalization", _float_kernel,
         "OpenVINO 2026.4.1, runtime model", Effect.NO_KERNEL, "nothing: it is the engine's"),
    Demand("both-operands-quantized", "Conv, ConvTranspose, Gemm, MatMul", both_or_none,
         "OpenVINO, Low Precision Transformations", Effect.FLOAT, "quantize both operands"),
)  # fmt: skip
