"""What OpenVINO demands of a QDQ file. Sources: the issues named at the rules. Not run here."""

from __future__ import annotations

from qdqbridge.graph.dtypes import DType
from qdqbridge.onnx_io.profiles.file_view import FileNode, FileView
from qdqbridge.onnx_io.profiles.finding import Demand, Effect, Reason
from qdqbridge.onnx_io.profiles.shared_rules import (
    both_or_none,
    constant_positive_scale,
    encoding_of,
    explicit_zero_point,
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
    Demand("both-operands-quantized", "Conv, ConvTranspose, Gemm, MatMul", both_or_none,
         "OpenVINO, Low Precision Transformations", Effect.FLOAT, "quantize both operands"),
)  # fmt: skip
