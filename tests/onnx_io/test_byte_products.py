"""Products of uint8 and int8 in onnxruntime, which saturate on x86 processors without VNNI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge
from qdqbridge.onnx_io.runtime.products import keep_byte_products
from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
from tests.onnx_models import canonical

SIZE = 64
LARGEST = 255 * 127
"""A product that leaves no room for another one in 16 bits."""


def model(
    op: str,
    weight: Any,
    zero: Any,
    scaled: bool,
    *,
    activation: Any = np.uint8,
) -> onnx.ModelProto:
    """One product, a sum of ``SIZE`` products; scaled to 8 bits or not."""
    conv = "Conv" in op
    shape = (1, SIZE, 2, 2) if conv else (4, SIZE)
    arrays: dict[str, Any] = {"w": weight[..., None, None] if conv else weight}
    if zero is not None:
        arrays["wz"] = zero
    wz = "" if zero is None else "wz"
    if scaled:
        arrays |= {name: np.float32(1) for name in ("xs", "ws")}
        arrays |= {"ys": np.float32(SIZE * 127), "yz": np.uint8(0), "xz": activation(0)}
        names = ["x", "xs", "xz", "w", "ws", wz, "ys", "yz"]
    else:
        names = ["x", "w", "", wz] if wz else ["x", "w"]
    result = TensorProto.UINT8 if scaled else TensorProto.INT32
    element = helper.np_dtype_to_tensor_dtype(np.dtype(activation))
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"])], "product",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def results(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return all_results(made, {"x": x})[0]


def all_results(made: onnx.ModelProto, fed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # of an LSTM each rounds its own part of a batch
    data = made.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, dict(fed))]


CASES: Sequence[tuple[str, bool]] = [
    ("QLinearConv", True), ("QLinearMatMul", True), ("MatMulInteger", False),
]  # fmt: skip


@pytest.mark.parametrize(("op", "scaled"), CASES)
@pytest.mark.parametrize("zero", [None, 0, 5])
def test_no_sum_saturates(op: str, scaled: bool, zero: int | None, tmp_path: Path) -> None:
    if scaled and zero is None:
        zero = -3
    point = None if zero is None else np.asarray(zero, np.int8)
    made = model(op, np.full((SIZE, SIZE), 127, np.int8), point, scaled)
    x = np.full(
        [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim], 255, np.uint8
    )
    exact = SIZE * 255 * (127 - (zero or 0))
    wanted = (
        np.clip(np.rint(np.float32(exact) / np.float32(SIZE * 127)), 0, 255) if scaled else exact
    )
    path = tmp_path / "product.onnx"
    onnx.save(made, path)
    np.testing.assert_array_equal(OnnxRuntimeSession(path).run({"x": x}, ["y"])["y"], wanted)
    keep_byte_products(made.graph)  # on every processor
    assert [t.data_type for t in made.graph.initializer if t.name == "w"] == [TensorProto.INT8]
    assert {node.op_type for node in made.graph.node} == {"Constant", op}
    np.testing.assert_array_equal(results(made, x), wanted)


def test_data_of_a_convolution_of_integers_and_not_its_weights() -> None:
    """Its kernel multiplies weights by windows, so that uint8 weights by int8 data saturate."""
    chance = np.random.default_rng(5)
    moved = helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[1, 1])
    for signed, unsigned in (("x", "w"), ("w", "x")):
        kinds = {signed: np.int8, unsigned: np.uint8}
        arrays = {
            name: chance.integers(np.iinfo(kind).max // 2, np.iinfo(kind).max, shape).astype(kind)
            for (name, kind), shape in zip(
                sorted(kinds.items()), ((8, 8, 3, 3), (1, 8, 5, 5)), strict=True
            )
        }
        node = helper.make_node("ConvInteger", ["p", "w", "xz"], ["y"], pads=[1, 1, 1, 1])
        element = helper.np_dtype_to_tensor_dtype(np.dtype(kinds["x"]))
        graph = helper.make_graph(
            [moved, node], "windows",
            [helper.make_tensor_value_info("x", element, (1, 8, 5, 5))],
            [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
            [
                numpy_helper.from_array(arrays["w"], "w"),
                numpy_helper.from_array(np.asarray(3, kinds["x"]), "xz"),
            ],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        before = made.SerializeToString(deterministic=True)
        wanted = next(iter(qdqbridge.evaluate(canonical(made), {"x": arrays["x"]}).values()))
        keep_byte_products(made.graph)
        assert (made.SerializeToString(deterministic=True) == before) == (signed == "w")
        np.testing.assert_array_equal(results(made, arrays["x"]), wanted)


def test_weights_that_nodes_compute() -> None:
    """Of a constant in a node, moved; and of what is fed."""
    weight = np.full((SIZE, SIZE), 127, np.int8)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight)),
        helper.make_node("Transpose", ["w"], ["moved"]),
        helper.make_node("MatMulInteger", ["x", "moved"], ["y"]),
        helper.make_node("QuantizeLinear", ["f", "one", "zero"], ["codes"]),
        helper.make_node("MatMulInteger", ["x", "codes"], ["z"]),
        helper.make_node("Cast", ["f"], ["cut"], to=TensorProto.INT8),
        helper.make_node("MatMulInteger", ["x", "cut"], ["c"]),
    ]
    graph = helper.make_graph(
        nodes, "computed",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, [4, SIZE]),
            helper.make_tensor_value_info("f", TensorProto.FLOAT, [SIZE, SIZE]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.INT32, [4, SIZE]) for name in "yzc"],
        [
            numpy_helper.from_array(np.asarray(1, np.float32), "one"),
            numpy_helper.from_array(np.asarray(0, np.int8), "zero"),
        ],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    keep_byte_products(made.graph)
    onnx.checker.check_model(made, full_check=True)
    assert all(
        node.input[1].rpartition(":")[0].endswith(":unsigned")
        for node in made.graph.node
        if node.op_type == "MatMulInteger"
    )
    fed = {"x": np.full((4, SIZE), 255, np.uint8), "f": weight.astype(np.float32)}
    for found in all_results(made, fed):
        assert (found == SIZE * LARGEST).all()


def test_weights_of_an_lstm_that_quantizes_while_it_runs() -> None:
    chance, hidden = np.random.default_rng(4), 8
    arrays = {
        "w": np.full((1, SIZE, 4 * hidden), 127, np.int8),
        "r": chance.integers(-127, 128, (1, hidden, 4 * hidden)).astype(np.int8),
        "ws": np.full(1, 1e-4, np.float32), "wz": np.zeros(1, np.int8),
        "rs": np.full(1, 1e-3, np.float32), "rz": np.full(1, 7, np.int8),
    }  # fmt: skip
    names = ["x", "w", "r", *[""] * 5, "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden
    )
    graph = helper.make_graph(
        [node], "lstm", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 1, 2, hidden])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = chance.uniform(0, 1, (3, 2, SIZE)).astype(np.float32)
    wanted = next(iter(qdqbridge.evaluate(canonical(made), {"x": x}).values()))
    keep_byte_products(made.graph)
    assert {made.graph.node[-1].input[at].rpartition(":")[0] for at in (1, 2, 9, 11)} == {
        f"{name}:unsigned" for name in ("w", "r", "wz", "rz")
    }
    np.testing.assert_array_equal(all_results(made, {"x": x})[0], wanted)


def test_weights_of_int8_activations_stay() -> None:
    made = model(
        "QLinearMatMul", np.ones((SIZE, SIZE), np.int8), np.int8(0), True, activation=np.int8
    )
    before = made.SerializeToString(deterministic=True)
    keep_byte_products(made.graph)
    assert made.SerializeToString(deterministic=True) == before


def test_weights_of_bodies_and_of_the_graph_around_them() -> None:
    product = model("MatMulInteger", np.full((SIZE, SIZE), 127, np.int8), None, False)
    weight = product.graph.initializer[0]
    del product.graph.initializer[:], product.graph.input[:]
    chosen = helper.make_node(
        "If", ["c"], ["y"], then_branch=product.graph, else_branch=product.graph
    )
    graph = helper.make_graph(
        [chosen], "outer",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.UINT8, [4, SIZE]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)], [weight],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    keep_byte_products(made.graph)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = made.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"c": np.asarray(True), "x": np.full((4, SIZE), 255, np.uint8)})[0]
    assert (np.asarray(found) == SIZE * LARGEST).all()
