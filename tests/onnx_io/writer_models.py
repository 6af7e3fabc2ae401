"""Small QDQ networks for the tests of the writer, and running them in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.exact_sessions import exact_session

Array = NDArray[Any]
U8, S8, S32 = np.uint8, np.int8, np.int32


class Net:
    """Collects nodes; every method returns the name of what it adds."""

    def __init__(self, opset: int = 17, ir_version: int = 8) -> None:
        self.opset, self.ir_version = opset, ir_version
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, op_type: str, *inputs: str, results: int = 1, **attributes: Any) -> str:
        names = [f"{op_type}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(results)]
        self.nodes.append(
            helper.make_node(op_type, list(inputs), names, f"n{len(self.nodes)}", **attributes)
        )
        return names[0]

    def q(self, x: str, scale: float, zero_point: int = 0, dtype: Any = U8, **axis: Any) -> str:
        pair = self.constant(np.float32(scale)), self.constant(np.array(zero_point, dtype))
        return self.op("QuantizeLinear", x, *pair, **axis)

    def dq(self, x: str, scale: Any, zero_point: Any = 0, dtype: Any = U8, **axis: Any) -> str:
        scale = np.asarray(scale, np.float32)
        zero = np.broadcast_to(np.array(zero_point, dtype), scale.shape)
        return self.op("DequantizeLinear", x, self.constant(scale), self.constant(zero), **axis)

    def fake(self, x: str, scale: float, zero_point: int = 0, dtype: Any = U8) -> str:
        return self.dq(self.q(x, scale, zero_point, dtype), scale, zero_point, dtype)

    def weight(self, *shape: int, axis: int | None = None) -> str:
        integers = self.random.integers(-127, 128, shape).astype(S8)
        if axis is None:
            return self.dq(self.constant(integers), 0.0078125 * 0.9, 0, S8)
        scale = self.random.uniform(0.002, 0.01, shape[axis])
        return self.dq(self.constant(integers), scale, 0, S8, axis=axis)

    def floats(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape).astype(np.float32))

    def model(
        self,
        outputs: list[str],
        shape: list[int | str],
        *,
        dtype: int = onnx.TensorProto.FLOAT,
        output_dtype: int = onnx.TensorProto.FLOAT,
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info(name, output_dtype, None) for name in outputs],
            self.tensors,
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=self.ir_version)


X = (0.02, 120)
Y = (0.05, 128)
CNN: list[int | str] = ["batch", 4, 6, 6]
ROWS: list[int | str] = [5, 24]


def _conv(net: Net, *, bias: str | None = None, axis: int | None = 0, op: str = "Conv") -> str:
    x = net.fake("x", *X)
    weight = net.weight(4, 4, 3, 3, axis=axis)
    return net.op(op, x, weight, *([] if bias is None else [bias]), pads=[1, 1, 1, 1])


def _then(op: str, **attributes: Any) -> Callable[[Net], str]:
    return lambda net: net.fake(net.op(op, net.fake("x", *X), **attributes), *Y)


def _clipped(net: Net, low: float, high: float) -> str:
    bounds = (net.constant(np.float32(low)), net.constant(np.float32(high)))
    return net.fake(net.op("Clip", _conv(net), *bounds), *Y)


def _derived_bias(net: Net) -> str:
    scale = np.float32(0.02) * np.float32(0.0078125 * 0.9)
    integers = net.constant(net.random.integers(-5000, 5000, 4).astype(S32))
    bias = net.dq(integers, scale, 0, S32)
    return net.fake(_conv(net, bias=bias, axis=None), *Y)


def _gemm(net: Net, rows: int, *, bias: bool = True) -> str:
    shape = (7, 24) if rows else (24, 7)
    operands = [net.fake("x", *X), net.weight(*shape, axis=0 if rows else 1)]
    operands += [net.floats(7)] if bias else []
    return net.op("Gemm", *operands, transB=rows)


def _matmul(net: Net) -> str:
    return net.op("MatMul", net.fake("x", *X), net.weight(24, 7, axis=1))


def _residual(net: Net, op: str, **attributes: Any) -> str:
    x = net.fake("x", *X)
    other = net.fake(net.op("Sigmoid", x), 1 / 256, 0)
    return net.fake(net.op(op, x, other, **attributes), *Y)


def _split(net: Net) -> str:
    sizes = net.constant(np.array([1, 3], np.int64))
    first = net.op("Split", net.fake("x", *X), sizes, results=2, axis=1)
    parts = [net.fake(name, *X) for name in (f"{first}_1", first)]
    return net.fake(net.op("Concat", *parts, axis=1), *X)


def _gather(net: Net) -> str:
    table = net.dq(net.constant(np.arange(-6, 6, dtype=S32).reshape(3, 4)), 0.25, 0, S32)
    index = net.op("Cast", net.op("ReduceMax", "x", keepdims=0), to=onnx.TensorProto.INT64)
    three = net.constant(np.array(3, np.int64))
    return net.op("Gather", table, net.op("Mod", index, three))


def _two_roundings(net: Net) -> str:
    return net.fake(net.fake(_conv(net), *Y), 0.07, 3)


def _shared(net: Net) -> str:
    y = net.fake(_conv(net), *Y)
    return net.fake(net.op("Mul", y, y), 0.09, 1)


IMAGES: dict[str, Callable[[Net], str]] = {
    "conv": lambda net: net.fake(_conv(net), *Y),
    "conv_per_tensor": lambda net: net.fake(_conv(net, axis=None), *Y),
    "conv_float_bias": lambda net: net.fake(_conv(net, bias=net.floats(4)), *Y),
    "conv_derived_bias": _derived_bias,
    "conv_relu": lambda net: net.fake(net.op("Relu", _conv(net)), *Y),
    "conv_relu_signed": lambda net: net.fake(net.op("Relu", _conv(net)), 0.05, 0, S8),
    "conv_relu_redundant": lambda net: net.fake(net.op("Relu", _conv(net)), 0.05, 0),
    "conv_clip_both": lambda net: _clipped(net, -1.0, 1.5),
    "conv_clip_high": lambda net: _clipped(net, -99.0, 1.0),
    "conv_then_relu": lambda net: net.fake(net.op("Relu", net.fake(_conv(net), *Y)), *Y),
    "conv_float_result": _conv,
    "conv_transpose": lambda net: net.fake(_conv(net, axis=1, op="ConvTranspose"), *Y),
    "conv_add_bias": lambda net: net.fake(net.op("Add", _conv(net), net.floats(1, 4, 1, 1)), *Y),
    "two_roundings": _two_roundings,
    "shared": _shared,
    "add": lambda net: _residual(net, "Add"),
    "concat": lambda net: _residual(net, "Concat", axis=1),
    "relu": _then("Relu"),
    "sigmoid": _then("Sigmoid"),
    "leaky_relu": _then("LeakyRelu", alpha=0.1),
    "softmax": _then("Softmax", axis=1),
    "average_pool": _then("AveragePool", kernel_shape=[2, 2]),
    "global_average_pool": _then("GlobalAveragePool"),
    "max_pool": lambda net: net.fake(
        net.op("MaxPool", net.fake("x", *X), kernel_shape=[2, 2], strides=[2, 2]), *X
    ),
    "transpose": lambda net: net.fake(
        net.op("Transpose", net.fake("x", *X), perm=[0, 2, 3, 1]), *X
    ),
    "split": _split,
    "gather_int32": _gather,
    "quantized_output": lambda net: net.q(_conv(net), *Y),
}
MATRICES: dict[str, Callable[[Net], str]] = {
    "gemm_rows": lambda net: net.fake(_gemm(net, 1), *Y),
    "gemm_columns": lambda net: net.fake(_gemm(net, 0), *Y),
    "gemm_float_result": lambda net: _gemm(net, 0),
    "gemm_no_bias": lambda net: net.fake(_gemm(net, 1, bias=False), *Y),
    "gemm_add": lambda net: net.fake(net.op("Add", _gemm(net, 1, bias=False), net.floats(7)), *Y),
    "matmul": lambda net: net.fake(_matmul(net), *Y),
    "matmul_add": lambda net: net.fake(net.op("Add", _matmul(net), net.floats(7)), *Y),
    "matmul_float_result": _matmul,
    "float_gemm": lambda net: net.op("Gemm", "x", net.floats(7, 24), net.floats(7), transB=1),
}


def network(name: str, opset: int = 17) -> onnx.ModelProto:
    """Returns one of the networks above as a model."""
    net = Net(opset)
    images = name in IMAGES
    output = (IMAGES if images else MATRICES)[name](net)
    stored = name == "quantized_output"
    return net.model(
        [output],
        CNN if images else ROWS,
        output_dtype=onnx.TensorProto.UINT8 if stored else onnx.TensorProto.FLOAT,
    )


def run(model: Path, feeds: dict[str, Array], optimized: Path | None = None) -> list[Array]:
    """Returns what onnxruntime computes: optimizations off, or all on where a dump is wanted.

    Products of bytes do not saturate on any processor.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if optimized is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    session = exact_session(model, options)
    return [np.asarray(array) for array in session.run(None, feeds)]


def samples(model: onnx.ModelProto, seed: int = 3) -> dict[str, Array]:
    """Returns random data for every input of a model; symbolic extents are 2."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        type_ = value.type.tensor_type
        shape = [dim.dim_value or 2 for dim in type_.shape.dim]
        if type_.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = random.normal(size=shape).astype(np.float32)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(type_.elem_type)
            feeds[value.name] = random.integers(0, 100, shape).astype(dtype)
    return feeds
