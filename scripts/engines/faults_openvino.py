"""Faults of OpenVINO: their models, and the list of them."""

from __future__ import annotations

import numpy as np
import onnx
from fault_models import Fault, model_of, of_pattern, of_shared_parameters
from onnx import TensorProto, helper, numpy_helper


def dynamic_product() -> onnx.ModelProto:
    """Returns a DynamicQuantizeMatMul of numbers that its 255 steps do not hold exactly."""
    weight = np.random.default_rng(0).integers(-127, 128, (32, 12)).astype(np.int8)
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(121), "weight": weight,
        "scale_weight": np.float32(0.01), "scale_result": np.float32(0.01),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["real"]),
        helper.make_node("Mul", ["real", "real"], ["square"]),
        helper.make_node(
            "DynamicQuantizeMatMul", ["square", "weight", "scale_weight"], ["product"],
            domain="com.microsoft",
        ),
        helper.make_node("QuantizeLinear", ["product", "scale_result", "zero"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "dynamic product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [8, 32])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [8, 12])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def scaled_product() -> onnx.ModelProto:
    """Returns a MatMul whose result is scaled by a constant that a QuantizeLinear stores."""
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(121), "scale_product": np.float32(0.2),
        "factor": np.float32(0.31), "scale_factor": np.float32(0.00124),
        "zero_factor": np.uint8(0), "scale_result": np.float32(0.06),
    }  # fmt: skip
    quantize, dequantize = "QuantizeLinear", "DequantizeLinear"
    nodes = [
        helper.make_node(dequantize, ["x", "scale", "zero"], ["x_real"]),
        helper.make_node(dequantize, ["y", "scale", "zero"], ["y_real"]),
        helper.make_node("MatMul", ["x_real", "y_real"], ["product"]),
        helper.make_node(quantize, ["product", "scale_product", "zero"], ["stored"]),
        helper.make_node(dequantize, ["stored", "scale_product", "zero"], ["product_real"]),
        helper.make_node(quantize, ["factor", "scale_factor", "zero_factor"], ["factor_stored"]),
        helper.make_node(
            dequantize, ["factor_stored", "scale_factor", "zero_factor"], ["factor_real"]
        ),
        helper.make_node("Mul", ["product_real", "factor_real"], ["scaled"]),
        helper.make_node(quantize, ["scaled", "scale_result", "zero"], ["result"]),
    ]
    shapes = {"x": (1, 4, 8, 16), "y": (1, 4, 16, 8)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("result", TensorProto.UINT8, (1, 4, 8, 8))
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    graph = helper.make_graph(nodes, "scaled_product", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def signed_concat() -> onnx.ModelProto:
    """Returns a Conv of a Concat of int8, all zero points 0."""
    chance = np.random.default_rng(0)
    numbers = {
        "scale": np.float32(0.05), "zero": np.int8(0), "scale_result": np.float32(0.1),
        "weight": chance.integers(-127, 128, (4, 8, 1, 1)).astype(np.int8),
        "weight_scale": np.float32(0.01),
    }  # fmt: skip
    quantize, dequantize = "QuantizeLinear", "DequantizeLinear"
    nodes = [
        helper.make_node(dequantize, ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("Concat", ["x_real", "x_real"], ["pair"], axis=1),
        helper.make_node(quantize, ["pair", "scale", "zero"], ["pair_stored"]),
        helper.make_node(dequantize, ["pair_stored", "scale", "zero"], ["pair_real"]),
        helper.make_node(dequantize, ["weight", "weight_scale", "zero"], ["weight_real"]),
        helper.make_node("Conv", ["pair_real", "weight_real"], ["product"]),
        helper.make_node(quantize, ["product", "scale_result", "zero"], ["result"]),
    ]
    return model_of("signed_concat", nodes, numbers, TensorProto.INT8, (1, 4, 6, 6), (1, 4, 6, 6))


def scales_along_terms() -> onnx.ModelProto:
    """Returns a MatMul whose weight has scales along the axis that is summed over."""
    chance = np.random.default_rng(0)
    numbers = {
        "scale": np.float32(0.05), "zero": np.uint8(0), "scale_result": np.float32(0.4),
        "zero_result": np.uint8(128), "weight_scale": np.linspace(0.01, 0.05, 16, dtype=np.float32),
        "weight": chance.integers(-127, 128, (16, 12)).astype(np.int8),
        "weight_zero": np.zeros(16, np.int8),
    }  # fmt: skip
    weight = ["weight", "weight_scale", "weight_zero"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", weight, ["weight_real"], axis=0),
        helper.make_node("MatMul", ["x_real", "weight_real"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "scale_result", "zero_result"], ["result"]),
    ]
    return model_of("scales_along_terms", nodes, numbers, TensorProto.UINT8, (4, 16), (4, 12))


def blocks_of_results() -> onnx.ModelProto:
    """Returns a MatMul whose weight has blocks of columns, with a scale for each row of them."""
    chance = np.random.default_rng(0)
    numbers = {
        "scale": np.float32(0.05), "zero": np.uint8(0), "scale_result": np.float32(0.4),
        "zero_result": np.uint8(128), "weight_zero": np.zeros((16, 4), np.int8),
        "weight_scale": chance.uniform(0.01, 0.05, (16, 4)).astype(np.float32),
        "weight": chance.integers(-127, 128, (16, 32)).astype(np.int8),
    }  # fmt: skip
    weight = ["weight", "weight_scale", "weight_zero"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", weight, ["weight_real"], axis=1, block_size=8),
        helper.make_node("MatMul", ["x_real", "weight_real"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "scale_result", "zero_result"], ["result"]),
    ]
    shapes = (4, 16), (4, 32)
    return model_of("blocks_of_results", nodes, numbers, TensorProto.UINT8, *shapes, opset=21)


def clip_between_steps() -> onnx.ModelProto:
    """Returns a Clip between two encodings that ends between two steps of the first."""
    numbers = {
        "scale": np.float32(0.25), "zero": np.uint8(55), "low": np.float32(0.0),
        "high": np.float32(5.85), "scale_result": np.float32(0.03), "zero_result": np.uint8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("Clip", ["x_real", "low", "high"], ["clipped"]),
        helper.make_node("QuantizeLinear", ["clipped", "scale_result", "zero_result"], ["result"]),
    ]
    shapes = (1, 4, 8, 8), (1, 4, 8, 8)
    return model_of("clip_between_steps", nodes, numbers, TensorProto.UINT8, *shapes)


def stored_term() -> onnx.ModelProto:
    """Returns a sum of stored numbers and a stored vector that a Reshape cuts up."""
    chance = np.random.default_rng(0)
    numbers = {
        "scale": np.float32(0.05), "zero": np.uint8(0), "scale_own": np.float32(0.04),
        "term": chance.integers(-127, 128, 16).astype(np.int8), "term_scale": np.float32(0.01),
        "term_zero": np.int8(0), "shape": np.array([0, 0, 4, 4]),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("QuantizeLinear", ["x_real", "scale_own", "zero"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "scale_own", "zero"], ["real"]),
        helper.make_node("DequantizeLinear", ["term", "term_scale", "term_zero"], ["term_real"]),
        helper.make_node("Add", ["real", "term_real"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["heads"]),
        helper.make_node("Relu", ["heads"], ["positive"]),
        helper.make_node("QuantizeLinear", ["positive", "scale", "zero"], ["result"]),
    ]
    shapes = (1, 8, 16), (1, 8, 4, 4)
    return model_of("stored_term", nodes, numbers, TensorProto.UINT8, *shapes)


def range_as_clamp() -> onnx.ModelProto:
    """Returns an Add of a pair of uint16 with zero point 0, whose range is a Relu."""
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(128),
        "scale_wide": np.float32(0.0001), "zero_wide": np.uint16(0), "one": np.float32(0.5),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("Add", ["x_real", "one"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "scale_wide", "zero_wide"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "scale_wide", "zero_wide"], ["real"]),
        helper.make_node("QuantizeLinear", ["real", "scale", "zero"], ["result"]),
    ]
    shape = (1, 64)
    return model_of("range_as_clamp", nodes, numbers, TensorProto.UINT8, shape, shape, opset=21)


FAULTS = (
    Fault(
        "openvino_flatten_of_concat.onnx", "openvino", "crash",
        "Concat of matrices, Q, DQ, Flatten, Q: compiling ends in a segmentation fault",
        of_pattern("Concat", "u8", "odd", "-", "-", "none", "reshape", "17", "2"),
    ),
    Fault(
        "openvino_pad_before_add.onnx", "openvino", "wrong",
        "Pad of uint8, zero point 128 one initializer for all, Add: padded with another number",
        of_shared_parameters("Pad", "u8", "middle", "-", "-", "none", "add", "17", "3"),
    ),
    Fault(
        "openvino_average_before_flatten.onnx", "openvino", "left",
        "AveragePool of uint8, one zero point for all, Flatten: its result is rounded in float32",
        of_shared_parameters("AveragePool", "u8", "middle", "-", "-", "none", "reshape", "17", "4"),
    ),
    Fault(
        "openvino_max_min_behind_product.onnx", "openvino", "left",
        "Conv, Q, DQ, Max, Q, DQ, Min, Q with zero point 0: float32; with Clip it is integers",
        of_pattern("Conv", "s8", "middle", "tensor", "int32", "q-max-min", "end", "17", "4"),
    ),
    Fault(
        "openvino_conv_of_concat_int8.onnx", "openvino", "wrong",
        "Concat of int8, Q, DQ, Conv: computed from uint8 that nobody has shifted (without AMX)",
        signed_concat,
    ),
    Fault(
        "openvino_range_of_uint16.onnx", "openvino", "wrong",
        "a Q/DQ pair of uint16 with zero point 0: left out, and with it the Relu that its range is",
        range_as_clamp,
    ),
    Fault(
        "openvino_scales_along_terms.onnx", "openvino", "wrong",
        "MatMul of a weight with a scale for each of its rows: the scales go to the columns",
        scales_along_terms,
    ),
    Fault(
        "openvino_blocks_of_results.onnx", "openvino", "refused",
        "MatMul of a weight in blocks of columns: ConvertFullyConnectedToFullyConnectedCompressed "
        "takes them for blocks of rows, and does not compile",
        blocks_of_results,
    ),
    Fault(
        "openvino_clip_between_steps.onnx", "openvino", "wrong",
        "DQ, Clip, Q: the Clip is computed on stored numbers, so that its end of 23.4 steps is 23",
        clip_between_steps,
    ),
    Fault(
        "openvino_reduce_max_of_conv.onnx", "openvino", "wrong",
        "Conv, ReduceMax, Q: what is found is kept in the 8 bits of the result, not scaled yet",
        of_pattern("ConvMax", "u8", "middle", "tensor", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "openvino_reduce_mean_of_matmul.onnx", "openvino", "wrong",
        "MatMul of rank 3 with zero point 128, ReduceMean without keepdims, Q: the zero point, "
        "moved behind the mean, has the shape that it had in front of it",
        of_pattern("MatMulMean", "u8", "middle", "tensor", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "openvino_dynamic_product.onnx", "openvino", "wrong",
        "DynamicQuantizeMatMul: the activation is not quantized, a product of floats is made of it",
        dynamic_product,
    ),
    Fault(
        "openvino_stored_term.onnx", "openvino", "crash",
        "Q, DQ, Add of an int8 vector behind its DQ, Reshape to a higher rank: compiling divides "
        "by zero (SIGFPE)",
        stored_term,
    ),
    Fault(
        "openvino_scaled_product.onnx", "openvino", "refused",
        "a constant that a QuantizeLinear stores, multiplied with a product: "
        "MultiplyPartialTransformation fails",
        scaled_product,
    ),
)  # fmt: skip
