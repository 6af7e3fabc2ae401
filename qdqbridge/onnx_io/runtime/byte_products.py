"""Products of uint8 and int8 that onnxruntime's CPU kernels get wrong on some x86 processors.

Without VNNI, onnxruntime (1.32) multiplies uint8 by int8 with an instruction that adds two products
in 16 bits and saturates (``vpmaddubsw``): 64 products of 255 and 127 come to 1,048,544 instead of
2,072,640. Products of uint8 and uint8 are exact. Its option ``session.x64quantprecision`` makes
those of the former, but is an optimization: where these are off, it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.onnx_io.control_flow.subgraph_names import bodies

_HALF = 1 << 7
"""What makes uint8 of int8, of a weight and of its zero point."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an operator has a weight, and the zero points of both factors.

    Attributes:
        weight: Index of the weight.
        zero: Index of its zero point.
        other: Index of the zero point of the activation, which has its type; None if it has none.
    """

    weight: int
    zero: int
    other: int | None


_PLACES = {
    "QLinearConv": _Places(3, 5, 2),
    "QLinearMatMul": _Places(3, 5, 2),
    "QGemm": _Places(3, 5, 2),
    "ConvInteger": _Places(1, 3, 2),
    "MatMulInteger": _Places(1, 3, 2),
    "MatMulIntegerToFloat": _Places(1, 5, 4),
    "DynamicQuantizeMatMul": _Places(1, 3, None),
    "QAttention": _Places(1, 7, 6),
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


def keep_byte_products(
    graph: onnx.GraphProto, outer: Mapping[str, TensorProto] | None = None
) -> None:
    """Makes constant weights of int8 ones of uint8, where the activation is not int8 itself.

    A weight and its zero point become larger by 128, which changes no product. Weights and zero
    points that only the run knows, or that lie outside of the file, stay as they are.

    Args:
        graph: A model's graph, or a body; it is changed.
        outer: Constants of the graphs around a body.
    """
    known = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    made: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for attribute in node.attribute:
            for body in bodies(attribute):
                keep_byte_products(body, known)
        places = _PLACES.get(node.op_type)
        if places is not None:
            _make_unsigned(node, places, known, made)
    nodes = [*made.values(), *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _make_unsigned(
    node: onnx.NodeProto,
    places: _Places,
    known: Mapping[str, TensorProto],
    made: dict[str, onnx.NodeProto],
) -> None:
    names = [*node.input, *[""] * (places.zero + 1 - len(node.input))]
    weight, zero = known.get(names[places.weight]), known.get(names[places.zero])
    if zero is None and not names[places.zero]:
        zero = numpy_helper.from_array(np.int8(0), "zero")
    other = None if places.other is None else known.get(names[places.other])
    if other is not None and other.data_type == TensorProto.INT8:
        return
    if _is_int8(weight) and _is_int8(zero):
        names[places.weight] = _unsigned(weight, made)
        names[places.zero] = _unsigned(zero, made)
        del node.input[:]
        node.input.extend(names)


def _is_int8(tensor: TensorProto | None) -> TypeGuard[TensorProto]:
    inside = tensor is not None and tensor.data_location != TensorProto.EXTERNAL
    return inside and tensor.data_type == TensorProto.INT8


def _unsigned(tensor: TensorProto, made: dict[str, onnx.NodeProto]) -> str:
    """Returns the name of what a constant of int8 is as uint8."""
    name = f"{tensor.name}:unsigned"
    if name not in made:
        codes = (numpy_helper.to_array(tensor).astype(np.int16) + _HALF).astype(np.uint8)
        made[name] = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(codes))
    return name
