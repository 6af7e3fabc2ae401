"""Writes minimal files of faults that engines have, with a table of them: ``docs/upstream/``.

Run as ``python scripts/upstream_files.py``. ``tests/engines/test_real_upstream.py`` runs each file
on its engine, at the versions of the ``engines`` extra, and says when a fault is gone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pattern_models import Pattern, model

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "upstream"
COLUMNS = ("file", "engine", "fault", "what")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an engine.

    Attributes:
        file: The file that shows it.
        engine: The engine.
        fault: ``wrong`` numbers, ``left`` to the CPU, ``refused``, or a ``crash``.
        what: In one sentence.
        build: Makes the model.
    """

    file: str
    engine: str
    fault: str
    what: str
    build: Callable[[], onnx.ModelProto]


def spelled(*facts: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes the model of a pattern."""
    return lambda: model(Pattern(*facts))


def shared(*facts: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes the model of a pattern with one initializer for all equal parameters."""

    def build() -> onnx.ModelProto:
        made = model(Pattern(*facts))
        tensors = {tensor.name: tensor for tensor in made.graph.initializer}
        first: dict[tuple[int, bytes], str] = {}
        for node in made.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                for index in (1, 2):
                    tensor = tensors[node.input[index]]
                    key = (tensor.data_type, tensor.raw_data)
                    node.input[index] = first.setdefault(key, tensor.name)
        read = {name for node in made.graph.node for name in node.input}
        del made.graph.initializer[:]
        made.graph.initializer.extend(t for name, t in tensors.items() if name in read)
        return made

    return build


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


def instance_norm() -> onnx.ModelProto:
    """Returns an InstanceNormalization with float parameters between uint8 activations."""
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(128),
        "gain": np.linspace(0.5, 1.2, 4, dtype=np.float32), "bias": np.zeros(4, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("InstanceNormalization", ["x_real", "gain", "bias"], ["normal"]),
        helper.make_node("QuantizeLinear", ["normal", "scale", "zero"], ["result"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, (1, 4, 6, 6))
        for name in ("x", "result")
    ]
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    graph = helper.make_graph(nodes, "instance_norm", ports[:1], ports[1:], constants)
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
    return _model("signed_concat", nodes, numbers, TensorProto.INT8, (1, 4, 6, 6), (1, 4, 6, 6))


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
    return _model("scales_along_terms", nodes, numbers, TensorProto.UINT8, (4, 16), (4, 12))


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
    return _model("blocks_of_results", nodes, numbers, TensorProto.UINT8, *shapes, opset=21)


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
    return _model("clip_between_steps", nodes, numbers, TensorProto.UINT8, *shapes)


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
    return _model("stored_term", nodes, numbers, TensorProto.UINT8, *shapes)


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
    return _model("range_as_clamp", nodes, numbers, TensorProto.UINT8, shape, shape, opset=21)


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    numbers: Mapping[str, object],
    element: int,
    shape: tuple[int, ...],
    result: tuple[int, ...],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, name, [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("result", element, result)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in numbers.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


class _Chain:
    """A model node by node, each with one result; integers in, integers or floats out.

    Attributes:
        nodes: The nodes.
        numbers: The initializers, by name.
        chance: Makes weights.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.numbers: dict[str, object] = {}
        self.chance = np.random.default_rng(7)

    def number(self, value: object) -> str:
        self.numbers[f"n{len(self.numbers)}"] = value
        return f"n{len(self.numbers) - 1}"

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        result = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [result], result, **attributes))
        return result

    def real(self, x: str, scale: float, zero: object) -> str:
        return self.add("DequantizeLinear", x, self.number(np.float32(scale)), self.number(zero))

    def stored(self, x: str, scale: float, zero: object) -> str:
        return self.add("QuantizeLinear", x, self.number(np.float32(scale)), self.number(zero))

    def pair(self, x: str, scale: float, zero: object) -> str:
        return self.real(self.stored(x, scale, zero), scale, zero)

    def weight(self, *shape: int) -> str:
        stored = self.chance.integers(-127, 128, shape).astype(np.int8)
        return self.real(self.number(stored), 0.01, np.int8(0))

    def model(
        self, shape: tuple[int, ...], opset: int = 21, inputs: int = TensorProto.UINT8
    ) -> onnx.ModelProto:
        """Returns the model; the result of the last node is its output."""
        last, element = self.nodes[-1], int(TensorProto.FLOAT)
        if last.op_type == "QuantizeLinear":
            dtype = np.asarray(self.numbers[last.input[2]]).dtype
            element = helper.np_dtype_to_tensor_dtype(dtype)
        graph = helper.make_graph(
            self.nodes, "fault", [helper.make_tensor_value_info("x", inputs, shape)],
            [helper.make_tensor_value_info(last.output[0], element, None)],
            [numpy_helper.from_array(np.asarray(v), name) for name, v in self.numbers.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", opset)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


def _floats(*steps: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a model of operators of floats, one behind the other."""

    def build() -> onnx.ModelProto:
        chain = _Chain()
        x = chain.real("x", 0.05, np.uint8(128))
        for step in steps:
            operands = [x]
            if step in ("Div", "Mul", "Sub"):
                operands.append(chain.number(np.float32(1.41)))
            if step == "Where":
                mask = np.tril(np.ones((8, 8), bool))
                operands = [chain.number(mask), x, chain.number(np.float32(-1e4))]
            x = chain.add(step, *operands)
        return chain.model((2, 8, 8))

    return build


def float_padding() -> onnx.ModelProto:
    """Returns a padded Conv of a zero point, whose result stays float."""
    chain = _Chain()
    x = chain.real("x", 0.03, np.uint8(100))
    made = chain.add("Conv", x, chain.weight(4, 3, 3, 3), pads=[1] * 4)
    chain.stored(chain.add("Sigmoid", made), 1 / 256, np.uint8(0))
    return chain.model((1, 3, 5, 5))


def divided_scores() -> onnx.ModelProto:
    """Returns attention whose scores are divided by a float."""
    chain, zero = _Chain(), np.uint8(120)
    x = chain.real("x", 0.1, zero)
    scores = chain.pair(chain.add("Div", x, chain.number(np.float32(2.828427))), 0.04, zero)
    shares = chain.pair(chain.add("Softmax", scores, axis=-1), 1 / 256, np.uint8(0))
    chain.stored(chain.add("MatMul", shares, x), 0.1, zero)
    return chain.model((1, 4, 8, 8))


def lost_rounding() -> onnx.ModelProto:
    """Returns a Conv, its pair, and floats computed of it."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(128))
    bias = chain.real(chain.number(np.arange(-6, 6, dtype=np.int32) * 600), 2e-4, np.int32(0))
    conv = chain.add("Conv", x, chain.weight(12, 8, 3, 3), bias, pads=[1] * 4)
    real = chain.pair(conv, 0.047, np.uint8(120))
    gate = chain.add("Mul", chain.add("Tanh", real), chain.add("Sigmoid", real))
    chain.stored(gate, 1.3 / 255, np.uint8(60))
    return chain.model((1, 8, 6, 6))


def _narrow_first(*readers: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a sum that is stored in half of the range of what reads it."""

    def build() -> onnx.ModelProto:
        chain = _Chain()
        x = chain.real("x", 0.05, np.uint8(100))
        sum_ = chain.pair(chain.add("Add", x, x), 0.035, np.uint8(100))
        for reader in readers:
            sum_ = chain.add(reader, sum_, chain.pair(x, 0.07, np.uint8(100)), axis=1)
        chain.stored(sum_, 0.07, np.uint8(100))
        return chain.model((1, 8, 6, 6), 17)

    return build


def one_channel() -> onnx.ModelProto:
    """Returns a Concat of an input of one channel and what a Conv makes of it, and a MaxPool."""
    chain = _Chain()
    x = chain.real("x", 0.0039, np.uint8(0))
    conv = chain.pair(
        chain.add("Conv", x, chain.weight(12, 1, 3, 3), pads=[1] * 4), 0.027, np.uint8(0)
    )
    joined = chain.pair(chain.add("Concat", x, conv, axis=1), 0.027, np.uint8(0))
    chain.stored(chain.add("MaxPool", joined, kernel_shape=[2, 2]), 0.027, np.uint8(0))
    return chain.model((1, 1, 8, 8), 17)


def two_widths() -> onnx.ModelProto:
    """Returns an Add of a result of 8 bits and one of 16."""
    chain = _Chain()
    x = chain.real("x", 0.05, np.uint8(100))
    wide = chain.pair(x, 0.05 / 256, np.uint16(25600))
    narrow = chain.pair(chain.add("MatMul", x, chain.weight(16, 16)), 0.23, np.uint8(100))
    chain.stored(chain.add("Add", wide, narrow), 0.3 / 256, np.uint16(25600))
    return chain.model((8, 16), 21)


def activations() -> onnx.ModelProto:
    """Returns a MatMul of two activations around 118, whose result covers a part of the sums."""
    chain = _Chain()
    x = chain.real("x", 0.04, np.uint8(123))
    turned = chain.pair(chain.add("Transpose", x, perm=[0, 2, 1]), 0.04, np.uint8(118))
    chain.stored(chain.add("MatMul", x, turned), 0.01, np.uint8(128))
    return chain.model((3, 8, 64), 17)


def half_bias() -> onnx.ModelProto:
    """Returns a Conv of half floats with a float bias."""
    chain, half = _Chain(), np.float16
    stored = chain.number(chain.chance.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8))
    x = chain.add("DequantizeLinear", "x", chain.number(half(0.02)), chain.number(np.uint8(100)))
    zero = chain.number(np.int8(0))
    weight = chain.add("DequantizeLinear", stored, chain.number(half(0.01)), zero)
    conv = chain.add("Conv", x, weight, chain.number(np.ones(4, half)))
    chain.add("QuantizeLinear", conv, chain.number(half(0.05)), chain.number(np.uint8(128)))
    return chain.model((1, 3, 5, 5))


def tan_of_five_axes() -> onnx.ModelProto:
    """Returns a Tan between DQ and Q, of five axes."""
    chain = _Chain()
    x = chain.real("x", 0.004, np.uint8(128))
    chain.stored(chain.add("Tan", x), 0.01, np.uint8(128))
    return chain.model((1, 2, 3, 4, 5), 17)


def reflection_of_five_axes() -> onnx.ModelProto:
    """Returns a Pad by reflection between DQ and Q, of five axes."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(100))
    pads = chain.number(np.array([0, 0, 0, 1, 1, 0, 0, 0, 1, 1]))
    chain.stored(chain.add("Pad", x, pads, mode="reflect"), 0.02, np.uint8(100))
    return chain.model((1, 2, 3, 4, 5), 18)


def group_norm() -> onnx.ModelProto:
    """Returns a GroupNormalization between DQ and Q."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(100))
    gain, bias = (chain.number(np.full(4, number, np.float32)) for number in (1, 0))
    chain.stored(chain.add("GroupNormalization", x, gain, bias, num_groups=2), 0.03, np.uint8(128))
    return chain.model((1, 4, 6, 6), 21)


def response_norm_of_int8() -> onnx.ModelProto:
    """Returns an LRN between DQ and Q, of int8."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.int8(0))
    chain.stored(chain.add("LRN", x, size=3), 0.02, np.int8(0))
    return chain.model((1, 4, 6, 6), 17, TensorProto.INT8)


def gather_of_another_scale() -> onnx.ModelProto:
    """Returns a Gather whose result has twice the scale of its operand."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(100))
    rows = chain.add("Gather", x, chain.number(np.array([0, 2])), axis=1)
    chain.stored(rows, 0.04, np.uint8(100))
    return chain.model((1, 4, 16), 17)


def running_sum() -> onnx.ModelProto:
    """Returns a CumSum whose sums leave the range of the result on the way."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(128))
    chain.stored(chain.add("CumSum", x, chain.number(np.array(1))), 0.03, np.uint8(128))
    return chain.model((4, 64), 17)


def _matrix(bias_scale: object) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a MatMul of channels with a stored bias of these scales."""

    def build() -> onnx.ModelProto:
        chain = _Chain()
        x, scale = chain.real("x", 0.02, np.uint8(120)), np.linspace(0.002, 0.01, 8)
        stored = chain.number(chain.chance.integers(-127, 128, (16, 8)).astype(np.int8))
        channels = [chain.number(scale.astype(np.float32)), chain.number(np.zeros(8, np.int8))]
        weight = chain.add("DequantizeLinear", stored, *channels, axis=1)
        own = np.asarray(bias_scale, np.float32)
        codes = np.rint(np.linspace(-3, 3, 8) / own).astype(np.int32)
        zero = chain.number(np.zeros(own.shape, np.int32))
        numbers = [chain.number(codes), chain.number(own), zero]
        bias = chain.add("DequantizeLinear", *numbers, axis=0)
        chain.stored(chain.add("Gemm", x, weight, bias), 0.1, np.uint8(128))
        return chain.model((4, 16), 17)

    return build


def floats_of_five_axes() -> onnx.ModelProto:
    """Returns a Reshape of a dequantized input of int8 and five axes."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.int8(5))
    rows = chain.add("Reshape", x, chain.number(np.array([6, 20])))
    chain.stored(chain.add("Neg", chain.add("Neg", rows)), 0.02, np.int8(5))
    return chain.model((1, 2, 3, 4, 5), 17, TensorProto.INT8)


def norm_of_16_bits() -> onnx.ModelProto:
    """Returns a LayerNormalization of uint16 with float parameters."""
    chain = _Chain()
    x = chain.pair(chain.real("x", 0.02, np.uint8(120)), 8e-5, np.uint16(32000))
    gain, bias = (chain.number(np.linspace(a, b, 32, dtype=np.float32)) for a, b in _PARAMETERS)
    norm = chain.add("LayerNormalization", x, gain, bias)
    chain.stored(norm, 1e-4, np.uint16(32768))
    return chain.model((1, 8, 32), 21)


_PARAMETERS = ((0.5, 1.2), (-0.2, 0.3))


def pool_of_stored() -> onnx.ModelProto:
    """Returns a MaxPool of the integers themselves."""
    chain = _Chain()
    pool = chain.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    chain.stored(chain.real(pool, 0.02, np.uint8(100)), 0.03, np.uint8(100))
    return chain.model((1, 4, 6, 6), 17)


def added_factor() -> onnx.ModelProto:
    """Returns a MatMul whose second operand is a sum around 118, with numbers up to its ends."""
    chain = _Chain()
    x = chain.real("x", 0.02, np.uint8(128))
    chain.stored(
        chain.add("MatMul", x, chain.pair(chain.add("Add", x, x), 0.02, np.uint8(118))),
        0.05,
        np.uint8(128),
    )
    return chain.model((1, 16, 16), 17)


def wide_convolution(dtype: type[np.signedinteger[Any]]) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a Conv of uint16 with weights per channel, of int16 with a float bias."""

    def build() -> onnx.ModelProto:
        chain, top = _Chain(), int(np.iinfo(dtype).max)
        x = chain.real("x", 2.0**-15, np.uint16(30000))
        codes = chain.number(chain.chance.integers(-top, top + 1, (12, 8, 3, 3)).astype(dtype))
        scales = chain.number((np.linspace(0.35, 0.7, 12) / top).astype(np.float32))
        zeros = chain.number(np.zeros(12, dtype))
        weight = chain.add("DequantizeLinear", codes, scales, zeros, axis=0)
        bias = [chain.number(chain.chance.normal(size=12).astype(np.float32))]
        conv = chain.add("Conv", x, weight, *(bias if dtype is np.int16 else []))
        chain.stored(conv, 2.0**-11, np.uint16(32000))
        return chain.model((1, 8, 6, 6), inputs=TensorProto.UINT16)

    return build


FAULTS = (
    Fault(
        "hexagon_conv_relu_before_quantize.onnx", "qnn-htp", "wrong",
        "Conv, Relu, QuantizeLinear with zero point 128: negative results come out",
        spelled("Conv", "u8", "middle", "tensor", "none", "relu", "end", "17", "4"),
    ),
    Fault(
        "hexagon_clip_of_one_end_behind_pair.onnx", "qnn-htp", "wrong",
        "Conv, Q, DQ, Clip to an upper bound, Q: the bound is lost",
        spelled("Conv", "u8", "low", "tensor", "int32", "q-clip-high", "end", "21", "4"),
    ),
    Fault(
        "hexagon_softmax_int8_zero_0.onnx", "qnn-htp", "wrong",
        "Softmax to int8 with zero point 0: computed as if it were -128",
        spelled("Softmax", "s8", "middle", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_pad_int8_zero_-128.onnx", "qnn-htp", "wrong",
        "Pad with 0.0 of int8 with zero point -128: padded with another number",
        spelled("Pad", "s8", "low", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_sigmoid_uint16_zero_32768.onnx", "qnn-htp", "wrong",
        "Sigmoid to uint16 with zero point 32768 at the end of a graph: as if that were 0",
        spelled("Sigmoid", "u16", "middle", "-", "-", "none", "end", "21", "2"),
    ),
    Fault(
        "hexagon_leaky_relu_int8.onnx", "qnn-htp", "left",
        "LeakyRelu of int8 is left to the CPU; of uint8 it is taken",
        spelled("LeakyRelu", "s8", "middle", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_transpose_alone.onnx", "qnn-htp", "left",
        "Transpose by 0, 2, 1 alone is left to the CPU; beside another operator it is taken",
        spelled("Transpose", "u8", "middle", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_depthwise_conv_int16.onnx", "qnn-htp", "refused",
        "a depthwise Conv of int16 is claimed and then not made: the session fails",
        spelled("ConvDepthwise", "s16", "middle", "tensor", "none", "none", "end", "21", "4"),
    ),
    Fault(
        "hexagon_hard_swish_int16.onnx", "qnn-htp", "refused",
        "HardSwish of int16: the graph cannot be finalized, and the session fails",
        spelled("HardSwish", "s16", "middle", "-", "-", "none", "end", "21", "4"),
    ),
    Fault(
        "hexagon_instance_norm_float_bias.onnx", "qnn-htp", "refused",
        "InstanceNormalization with a float bias: no memory to finalize; with int32 it is right",
        instance_norm,
    ),
    Fault(
        "hexagon_padding_of_float_conv.onnx", "qnn-htp", "wrong",
        "DQ with zero point 100, padded Conv, Sigmoid, Q: padded with another number than 0.0",
        float_padding,
    ),
    Fault(
        "hexagon_lost_rounding.onnx", "qnn-htp", "wrong",
        "Conv, Q, DQ, Tanh * Sigmoid of floats, Q: not of the rounded result; of uint16 it is",
        lost_rounding,
    ),
    Fault(
        "hexagon_divided_scores.onnx", "qnn-htp", "refused",
        "Div by a float in front of Softmax and MatMul: no memory to finalize",
        divided_scores,
    ),
    Fault(
        "hexagon_float_div_mul.onnx", "qnn-htp", "refused",
        "Div, Mul of floats: no memory to finalize; Mul, Mul is right",
        _floats("Div", "Mul"),
    ),
    Fault(
        "hexagon_float_sub_mul.onnx", "qnn-htp", "refused",
        "Sub, Mul of floats: no memory to finalize; Add, Mul is right",
        _floats("Sub", "Mul"),
    ),
    Fault(
        "hexagon_float_gelu.onnx", "qnn-htp", "refused",
        "Gelu of floats: no memory to finalize",
        _floats("Gelu"),
    ),
    Fault(
        "hexagon_float_where.onnx", "qnn-htp", "refused",
        "Where of floats: no memory to finalize",
        _floats("Where", "Softmax"),
    ),
    Fault(
        "hexagon_float_round.onnx", "qnn-htp", "refused",
        "Round of floats: no memory to finalize",
        _floats("Round"),
    ),
    Fault(
        "hexagon_float_elu.onnx", "qnn-htp", "refused",
        "Elu of floats: no memory to finalize",
        _floats("Abs", "Elu"),
    ),
    Fault(
        "hexagon_half_float_bias.onnx", "qnn-htp", "refused",
        "Conv with half-float scales and bias: the layout is asked for and then not taken",
        half_bias,
    ),
    Fault(
        "hexagon_float_exp_mul.onnx", "qnn-htp", "refused",
        "Exp, Mul of floats: no memory to finalize; behind another float Mul it is right",
        _floats("Exp", "Mul"),
    ),
    Fault(
        "hexagon_div_before_matmul.onnx", "qnn-htp", "refused",
        "Div by a float, Q, DQ, MatMul of integers: no memory to finalize",
        spelled("DivNumber", "u8", "odd", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_concat_wider_than_operand.onnx", "qnn-htp", "wrong",
        "Add, Q, DQ, Concat, Q of twice the range: what the first Q has clamped comes out",
        _narrow_first("Concat"),
    ),
    Fault(
        "hexagon_concat_of_one_channel.onnx", "qnn-htp", "wrong",
        "Concat of an input of one channel with another scale, MaxPool: other numbers",
        one_channel,
    ),
    Fault(
        "hexagon_wider_behind_pair.onnx", "qnn-htp", "wrong",
        "Add, Q, DQ, Q of twice the range: what the first Q has clamped comes out",
        _narrow_first(),
    ),
    Fault(
        "hexagon_shared_initializer.onnx", "qnn-htp", "wrong",
        "one initializer behind two DequantizeLinear of other scales: computed with one of them",
        spelled("SharedConstant", "u8", "odd", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_converted_rows.onnx", "qnn-htp", "wrong",
        "Transpose, Reshape, Q of another scale, MatMul: other rows; right with Q before Reshape",
        spelled("RowsConverted", "u8", "odd", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_sum_of_two_widths.onnx", "qnn-htp", "wrong",
        "Add of a result of 8 bits and one of 16: steps of the 8 bits off",
        two_widths,
    ),
    Fault(
        "hexagon_matmul_of_activations.onnx", "qnn-htp", "wrong",
        "MatMul of two of uint8 around 118: many steps off where the result has a small scale",
        activations,
    ),
    Fault(
        "hexagon_tan_of_five_axes.onnx", "qnn-htp", "crash",
        "Tan of five axes: running it ends in an abort (SIGABRT)",
        tan_of_five_axes,
    ),
    Fault(
        "hexagon_reflection_of_five_axes.onnx", "qnn-htp", "crash",
        "Pad by reflection of five axes: running it ends in a segmentation fault",
        reflection_of_five_axes,
    ),
    Fault(
        "hexagon_group_norm.onnx", "qnn-htp", "refused",
        "GroupNormalization is claimed and then not made: the session fails",
        group_norm,
    ),
    Fault(
        "hexagon_lrn_int8.onnx", "qnn-htp", "refused",
        "LRN of int8 is claimed and then not made: the session fails; of uint8 it is right",
        response_norm_of_int8,
    ),
    Fault(
        "hexagon_gather_of_another_scale.onnx", "qnn-htp", "refused",
        "Gather whose result has another scale: no memory to finalize; of one scale it is right",
        gather_of_another_scale,
    ),
    Fault(
        "hexagon_cumulative_sum.onnx", "qnn-htp", "wrong",
        "CumSum: the running sum is kept within the ends of the result",
        running_sum,
    ),
    Fault(
        "hexagon_bias_of_one_scale.onnx", "qnn-htp", "wrong",
        "Gemm with weights per channel and a bias of one scale: the bias is added wrongly",
        _matrix(1e-4),
    ),
    Fault(
        "hexagon_bias_of_other_scales.onnx", "qnn-htp", "wrong",
        "Gemm with weights per channel and a bias of half of scale x * scale w; in a Conv it is "
        "converted rightly",
        _matrix(0.5 * 0.02 * np.linspace(0.002, 0.01, 8)),
    ),
    Fault(
        "hexagon_reshape_of_five_axes_int8.onnx", "qnn-htp", "wrong",
        "DQ of an input of int8 and five axes, Reshape of the floats: half of the range off",
        floats_of_five_axes,
    ),
    Fault(
        "hexagon_layer_norm_uint16.onnx", "qnn-htp", "wrong",
        "LayerNormalization of uint16 with float parameters: some 10 steps off; with a scale of "
        "uint8 and a bias of int32 it is right",
        norm_of_16_bits,
    ),
    Fault(
        "hexagon_max_pool_of_integers.onnx", "qnn-htp", "refused",
        "MaxPool of uint8 without DQ and Q: the layout is asked for and then not taken",
        pool_of_stored,
    ),
    Fault(
        "hexagon_added_factor.onnx", "qnn-htp", "wrong",
        "MatMul whose second operand an Add makes around 118: computed around 128, where what is "
        "more than 127 steps above the zero point saturates",
        added_factor,
    ),
    Fault(
        "hexagon_conv_uint16.onnx", "qnn-htp", "wrong",
        "Conv of uint16 with int8 weights per channel, before v73: some 15 steps off; where scale "
        "x * scale w / scale y is a power of two for every channel it is exact",
        wide_convolution(np.int8),
    ),
    Fault(
        "hexagon_conv_int16_weights.onnx", "qnn-htp-v73", "wrong",
        "Conv of uint16 with int16 weights per channel and a float bias (htp_arch 73): thousands "
        "of steps off; with one scale, or without the bias, 5 to 40",
        wide_convolution(np.int16),
    ),
    Fault(
        "openvino_flatten_of_concat.onnx", "openvino", "crash",
        "Concat of matrices, Q, DQ, Flatten, Q: compiling ends in a segmentation fault",
        spelled("Concat", "u8", "odd", "-", "-", "none", "reshape", "17", "2"),
    ),
    Fault(
        "openvino_pad_before_add.onnx", "openvino", "wrong",
        "Pad of uint8, zero point 128 one initializer for all, Add: padded with another number",
        shared("Pad", "u8", "middle", "-", "-", "none", "add", "17", "3"),
    ),
    Fault(
        "openvino_average_before_flatten.onnx", "openvino", "left",
        "AveragePool of uint8, one zero point for all, Flatten: its result is rounded in float32",
        shared("AveragePool", "u8", "middle", "-", "-", "none", "reshape", "17", "4"),
    ),
    Fault(
        "openvino_max_min_behind_product.onnx", "openvino", "left",
        "Conv, Q, DQ, Max, Q, DQ, Min, Q with zero point 0: float32; with Clip it is integers",
        spelled("Conv", "s8", "middle", "tensor", "int32", "q-max-min", "end", "17", "4"),
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
        spelled("ConvMax", "u8", "middle", "tensor", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "openvino_reduce_mean_of_matmul.onnx", "openvino", "wrong",
        "MatMul of rank 3 with zero point 128, ReduceMean without keepdims, Q: the zero point, "
        "moved behind the mean, has the shape that it had in front of it",
        spelled("MatMulMean", "u8", "middle", "tensor", "-", "none", "end", "17", "3"),
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
    Fault(
        "onnxruntime_scales_of_run_time.onnx", "onnxruntime-optimized", "wrong",
        "MatMulNBits with accuracy_level 4, a constant weight and scales that are none: the kernel "
        "never sees them, and the product is 0 (zero points that are none are left out)",
        scales_of_run_time,
    ),
)  # fmt: skip


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "faults.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for fault in FAULTS:
            onnx.save(fault.build(), FOLDER / fault.file)
            table.writerow([fault.file, fault.engine, fault.fault, fault.what])


if __name__ == "__main__":
    main()
