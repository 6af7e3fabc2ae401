"""Products of uint8 and int8 that onnxruntime's CPU kernels get wrong on some x86 processors.

Without VNNI, onnxruntime (1.32) multiplies uint8 by int8 with an instruction that adds two products
in 16 bits and saturates (``vpmaddubsw``): 64 products of 255 and 127 come to 1,048,544 instead of
2,072,640. Products of uint8 and uint8 are exact. Its option ``session.x64quantprecision`` makes
those of the former, but is an optimization (``keep_fused_products``): where these are off, it does
nothing, and the model itself has to be changed (``keep_byte_products``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.onnx_io.control_flow.subgraph_names import bodies

_HALF = 1 << 7
"""What makes uint8 of int8, of a weight and of its zero point."""


@dataclass(frozen=True, slots=True)
class _Factors:
    """Where an operator has its weights, and the zero points of both factors.

    Attributes:
        weights: Indices of each weight and of its zero point.
        other: Index of the zero point of the activation, which has its type; None if it has none.
    """

    weights: tuple[tuple[int, int], ...]
    other: int | None


_FACTORS = {
    "QLinearConv": _Factors(((3, 5),), 2),
    "QLinearMatMul": _Factors(((3, 5),), 2),
    "QGemm": _Factors(((3, 5),), 2),
    "ConvInteger": _Factors(((1, 3),), 2),
    "MatMulInteger": _Factors(((1, 3),), 2),
    "MatMulIntegerToFloat": _Factors(((1, 5),), 4),
    "DynamicQuantizeMatMul": _Factors(((1, 3),), None),
    "DynamicQuantizeLSTM": _Factors(((1, 9), (2, 11)), None),
    "QAttention": _Factors(((1, 7),), 6),
}


@cache
def saturates() -> bool:
    """Returns whether products of uint8 and int8 saturate in onnxruntime on this processor."""
    import onnxruntime as ort

    size = 64
    weight = np.full((size, size), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "pairs",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, size])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, size), 255, np.uint8)})
    return bool(np.asarray(found)[0, 0] != size * 255 * 127)


def keep_fused_products(options: Any) -> None:
    """Asks onnxruntime's optimizations for products that do not saturate, where theirs would.

    Args:
        options: ``SessionOptions``.
    """
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")


def keep_byte_products(
    graph: onnx.GraphProto, outer: Mapping[str, TensorProto] | None = None
) -> None:
    """Makes weights of int8 ones of uint8, where the activation is not int8 itself.

    A weight and its zero point become larger by 128, which changes no product: constants here,
    inputs of the graph while it runs. What nodes compute, and constants that lie outside of the
    file, stay.

    Args:
        graph: A model's graph, or a body; it is changed.
        outer: Constants of the graphs around a body.
    """
    own = {tensor.name: tensor for tensor in graph.initializer}
    fed = {
        value.name: value.type.tensor_type.elem_type
        for value in graph.input
        if value.name not in own
    }
    known = {name: t for name, t in (outer or {}).items() if name not in fed} | own
    changed = _Changed(known, fed)
    for node in graph.node:
        for attribute in node.attribute:
            for body in bodies(attribute):
                keep_byte_products(body, known)
        places = _FACTORS.get(node.op_type)
        if places is not None:
            changed.make_unsigned(node, places)
    nodes = [*changed.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


class _Changed:
    """What becomes uint8 of a graph.

    Attributes:
        nodes: What computes it.
    """

    def __init__(self, known: Mapping[str, TensorProto], fed: Mapping[str, int]) -> None:
        self._known, self._fed = known, fed
        self._names: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []

    def make_unsigned(self, node: onnx.NodeProto, places: _Factors) -> None:
        """Gives a node another weight and zero point, if it has these of int8."""
        needed = 1 + max(zero for _, zero in places.weights)
        names = [*node.input, *[""] * (needed - len(node.input))]
        beside = [names[0], *([] if places.other is None else [names[places.other]])]
        factors = [names[index] for pair in places.weights for index in pair]
        weights = {names[weight] for weight, _ in places.weights}
        if any(map(self._is_int8, beside)):
            return
        if not all(self._is_int8(name) for name in factors if name or name in weights):
            return
        for pair in places.weights:
            for index in pair:
                names[index] = self._unsigned(names[index])
        del node.input[:]
        node.input.extend(names)

    def _is_int8(self, name: str) -> bool:
        tensor = self._known.get(name)
        if tensor is None:
            return self._fed.get(name) == TensorProto.INT8
        return tensor.data_type == TensorProto.INT8 and (
            tensor.data_location != TensorProto.EXTERNAL
        )

    def _unsigned(self, name: str) -> str:
        """Returns the name of a tensor as uint8; where there is none, of a zero point of 0."""
        if name not in self._names:
            self._names[name] = f"{name}:unsigned"
            if name in self._fed:
                self._compute(name)
            else:
                tensor = self._known.get(name)
                codes = np.zeros((), np.int8) if tensor is None else numpy_helper.to_array(tensor)
                self._put(f"{name}:unsigned", (codes.astype(np.int16) + _HALF).astype(np.uint8))
        return self._names[name]

    def _compute(self, name: str) -> None:
        wide, moved, result = f"{name}:wide", f"{name}:moved", f"{name}:unsigned"
        self._put(f"{name}:half", np.asarray(_HALF, np.int32))
        self.nodes += [
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, f"{name}:half"], [moved]),
            helper.make_node("Cast", [moved], [result], to=TensorProto.UINT8),
        ]

    def _put(self, name: str, array: np.ndarray[Any, Any]) -> None:
        tensor = numpy_helper.from_array(array)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
