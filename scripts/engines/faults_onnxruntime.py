"""Faults of onnxruntime with its optimizations: their models, and the list of them."""

from __future__ import annotations

import numpy as np
import onnx
from fault_models import Fault
from onnx import TensorProto, helper, numpy_helper


def scales_of_run_time() -> onnx.ModelProto:
    """Returns a MatMulNBits in 8 bits, a constant weight and scales that are an input."""
    codes = np.random.default_rng(0).integers(0, 256, (12, 1, 16)).astype(np.uint8)
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(128), "codes": codes,
        "step": np.float32(0.001), "scale_result": np.float32(0.1),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["real"]),
        helper.make_node("DequantizeLinear", ["scales", "step"], ["scales_real"]),
        helper.make_node(
            "MatMulNBits", ["real", "codes", "scales_real"], ["product"], domain="com.microsoft",
            K=32, N=12, bits=4, block_size=32, accuracy_level=4,
        ),
        helper.make_node("QuantizeLinear", ["product", "scale_result", "zero"], ["y"]),
    ]  # fmt: skip
    shapes = {"x": [8, 32], "scales": [12]}
    graph = helper.make_graph(
        nodes,
        "scales of run time",
        [helper.make_tensor_value_info(n, TensorProto.UINT8, shape) for n, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [8, 12])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


FAULTS = (
    Fault(
        "onnxruntime_scales_of_run_time.onnx", "onnxruntime-optimized", "wrong",
        "MatMulNBits with accuracy_level 4, a constant weight and scales that are none: the kernel "
        "never sees them, and the product is 0 (zero points that are none are left out)",
        scales_of_run_time,
    ),
)  # fmt: skip
