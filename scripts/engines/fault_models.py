"""What a fault of an engine is, and what models that show one are built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pattern_models import Pattern, model


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


def of_pattern(*facts: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes the model of a pattern."""
    return lambda: model(Pattern(*facts))


def of_shared_parameters(*facts: str) -> Callable[[], onnx.ModelProto]:
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


def model_of(
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


class QDQChain:
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
