"""Extents that only the numbers of constants, or the body of a Loop, say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from tests.onnx_io.digest_trips import HOSTED, hosted, loaded

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
KEEPS = ("Neg", "Add", "Identity", "Transpose twice", "Reshape")
CHANGES = ("Concat", "Unsqueeze", "Transpose", "Flatten")
"""What a body does to a state: in the same shape again, or in another."""
RELATIVES = 100


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, tuple[Any, ...]]],
    outputs: list[str], constants: dict[str, NDArray[Any]], opset: int = 17,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, *given) for n, given in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def step(kind: str, state: str, result: str) -> list[onnx.NodeProto]:
    """Returns what a body does to a state of two axes."""
    node, between = helper.make_node, f"{result}_t"
    if kind == "Add":
        return [node("Add", [state, state], [result])]
    if kind == "Transpose twice":
        turned = node("Transpose", [state], [between], perm=[1, 0])
        return [turned, node("Transpose", [between], [result], perm=[1, 0])]
    if kind == "Reshape":
        return [node("Shape", [state], [between]), node("Reshape", [state, between], [result])]
    if kind == "Concat":
        return [node("Concat", [state, state], [result], axis=0)]
    if kind == "Unsqueeze":
        axes = helper.make_tensor(f"{result}_axes", INT64, [1], [0])
        constant = node("Constant", [], [between], value=axes)
        return [constant, node("Unsqueeze", [state, between], [result])]
    if kind == "Transpose":
        return [node("Transpose", [state], [result], perm=[1, 0])]
    return [node(kind, [state], [result])]


def loop(seed: int) -> tuple[onnx.ModelProto, list[str]]:
    """Returns a Loop of one or two states, and what its body does to each."""
    chance = random.Random(seed)
    states = [f"s{i}" for i in range(chance.choice((1, 1, 2)))]
    kinds = [chance.choice(KEEPS if chance.random() < 0.7 else CHANGES) for _ in states]
    nodes = [helper.make_node("Identity", ["going"], ["on"])]
    for state, kind in zip(states, kinds, strict=True):
        nodes += step(kind, f"in_{state}", f"out_{state}")
    scanned = chance.random() < 0.5 and kinds[0] in KEEPS
    nodes += [helper.make_node("Identity", ["out_s0"], ["each"])] if scanned else []
    made = ["on", *(f"out_{state}" for state in states), *(["each"] if scanned else [])]
    given = [("turn", INT64), ("going", BOOL), *((f"in_{state}", FLOAT) for state in states)]
    body = helper.make_graph(
        nodes, "body",
        [helper.make_tensor_value_info(n, t, [] if t != FLOAT else None) for n, t in given],
        [helper.make_tensor_value_info(n, BOOL if n == "on" else FLOAT, None) for n in made],
    )  # fmt: skip
    extents = (chance.choice((2, 3, "n")), chance.choice((2, 3)))
    results = [f"y{i}" for i in range(len(made) - 1)]
    node = helper.make_node("Loop", ["times", "yes", *states], results, body=body)
    inputs: dict[str, tuple[int, tuple[Any, ...]]] = {state: (FLOAT, extents) for state in states}
    constants: dict[str, Any] = {"yes": np.array(chance.random() < 0.9)}
    if chance.random() < 0.6:
        constants["times"] = np.array(chance.choice((0, 1, 2, 3)))
    else:
        inputs["times"] = (INT64, ())
    return model([node], inputs, results, constants), kinds


@pytest.mark.parametrize("first", range(0, RELATIVES, 25))
def test_what_a_loop_gives_has_the_shape_that_is_told(first: int) -> None:
    for seed in range(first, first + 25):
        made, kinds = loop(seed)
        graph = loaded(made)
        known = [value.type.shape for value in graph.outputs]
        for index, kind in enumerate(kinds):
            assert (known[index] is not None) or kind not in KEEPS, (seed, kinds, known)
        for times in (0, 1, 3):
            fed: dict[str, NDArray[Any]] = {
                v.name: np.ones([e if isinstance(e, int) else 2 for e in v.type.shape or ()], "f")
                for v in graph.inputs
            }
            if "times" in fed:
                fed["times"] = np.array(times)
            found = qb.evaluate(graph, fed)
            for name, shape in zip(graph.output_names, known, strict=True):
                given = found[name].shape
                same = shape is None or len(shape) == len(given)
                assert same, (seed, kinds, name, shape, given)
                for extent, own in zip(shape or given, given, strict=True):
                    assert not isinstance(extent, int) or extent == own, (seed, kinds, shape)


def test_a_loop_that_tvm_unrolls_has_one_digest() -> None:
    """TVM knows the rank behind a Loop of constant length, and with that what an Expand does."""
    nodes = [
        helper.make_node("Loop", ["times", "yes", "x"], ["y", "each"], body=_doubling()),
        helper.make_node("Slice", ["y", "low", "high", "axes", "steps"], ["cut"]),
        helper.make_node("Reshape", ["cut", "shape"], ["z"]),
    ]
    constants = {
        "times": np.array(3), "yes": np.array(True), "low": np.array([0, 0]),
        "high": np.array([100, -1]), "axes": np.array([4, -3]), "steps": np.array([3, 2]),
        "shape": np.array([1, 2, 1, 1, 1]),
    }  # fmt: skip
    graph = loaded(model(nodes, {"x": (FLOAT, (1, 2, 3, 1, 3))}, ["z"], constants))
    assert [node.op.name for node in graph.nodes] == ["Loop", "Slice"]
    for variant in HOSTED:
        assert hosted(graph, variant).digest == graph.digest


def _doubling() -> onnx.GraphProto:
    return helper.make_graph(
        [
            helper.make_node("Add", ["s", "s"], ["o"]),
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Identity", ["o"], ["each"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("c", BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("d", BOOL, []),
            helper.make_tensor_value_info("o", FLOAT, None),
            helper.make_tensor_value_info("each", FLOAT, None),
        ],
    )


COUNTED: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], Any]] = {
    "NonZero": (
        [helper.make_node("NonZero", ["a"], ["y"])],
        {"a": np.array([0.0, 2.0], "f")},
        np.array([[1]]),
    ),
    "Compress": (
        [helper.make_node("Compress", ["a", "c"], ["y"], axis=0)],
        {"a": np.array([4, 5, 6]), "c": np.array([True, False, True])},
        np.array([4, 6]),
    ),
    "Unique": (
        [helper.make_node("Unique", ["a"], ["y"])],
        {"a": np.array([2, 1, 2])},
        np.array([1, 2]),
    ),
    "Range of 16 bits": (
        [helper.make_node("Range", ["a", "b", "c"], ["y"])],
        {n: np.array(v, np.int16) for n, v in (("a", 1), ("b", 8), ("c", 3))},
        np.array([1, 4, 7], np.int16),
    ),
    "Range of nothing": (
        [
            helper.make_node("Range", ["a", "b", "c"], ["r"]),
            helper.make_node("Shape", ["r"], ["y"]),
        ],
        {n: np.array(v, np.int16) for n, v in (("a", 1), ("b", -8), ("c", 3))},
        np.array([0]),
    ),
    "Equal behind": (
        [helper.make_node("NonZero", ["a"], ["r"]), helper.make_node("Equal", ["r", "r"], ["y"])],
        {"a": np.array([0.0, 2.0], "f")},
        np.array([[True]]),
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_constants_count_is_a_constant(name: str) -> None:
    nodes, constants, wanted = COUNTED[name]
    graph = loaded(model(nodes, {}, ["y"], constants))
    (value,) = graph.outputs
    assert not graph.nodes
    assert value.constant is not None
    assert np.array_equal(value.constant.numpy(), wanted)
    for variant in HOSTED:
        assert hosted(graph, variant).digest == graph.digest


def test_large_results_are_not_counted() -> None:
    """What a file holds grows by no more than a few thousand numbers."""
    nodes, constants = (
        [helper.make_node("NonZero", ["a"], ["y"])],
        {"a": np.ones(5000, np.float32)},
    )
    graph = loaded(model(nodes, {}, ["y"], constants))
    assert [node.op.name for node in graph.nodes] == ["NonZero"]


def test_a_later_version_runs_where_the_oldest_does_not() -> None:
    """onnxruntime has no MaxPool of float64 at opset 7, and ONNX's reference pads otherwise."""
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[1, 1, 3], strides=[2, 2, 1], auto_pad="SAME_LOWER"
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 1, 1, 4))
    graph = loaded(model([node], {"x": (TensorProto.DOUBLE, (2, 3, "k", "k", 4))}, ["y"], {}, 13))
    padded = np.concatenate([np.full((2, 3, 1, 1, 1), -np.inf), x, x[..., :1] - np.inf], -1)
    wanted = np.maximum(np.maximum(padded[..., :-2], padded[..., 1:-1]), padded[..., 2:])
    assert np.array_equal(qb.evaluate(graph, {"x": x})["y"], wanted)


def test_a_product_of_two_constant_vectors() -> None:
    q = helper.make_node("DequantizeLinear", ["a", "s"], ["x"])
    w = helper.make_node("DequantizeLinear", ["b", "s"], ["w"])
    constants: dict[str, NDArray[Any]] = {
        "a": np.array([10, 3], np.int8),
        "b": np.array([2, -4], np.int8),
        "s": np.array(0.5, np.float32),
    }
    graph = loaded(
        model([q, w, helper.make_node("MatMul", ["x", "w"], ["y"])], {}, ["y"], constants)
    )
    assert qb.evaluate(graph, {})["y"] == 2.0
    for variant in HOSTED:
        assert hosted(graph, variant).digest == graph.digest


def test_blocks_of_an_image_without_elements() -> None:
    """TVM's reshape takes 0 in a list for the extent that is there."""
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)
    graph = loaded(model([node], {"x": (FLOAT, (5, 5, "k", 0))}, ["y"], {}))
    found = qb.compile(graph).run({"x": np.zeros((5, 5, 4, 0), np.float32)})
    assert found["y"].shape == (5, 20, 2, 0)


@pytest.mark.parametrize("inputs", [0, 1, 2, 3])
def test_a_body_that_does_not_fit_its_loop(inputs: int) -> None:
    """Of a body that lacks results nothing is reported, and one that lacks inputs is refused."""
    body = _doubling()
    del body.input[inputs:]
    node = helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)
    constants = {"times": np.array(3), "yes": np.array(True)}
    made = model([node], {"x": (FLOAT, (2, 3))}, ["y"], constants)
    if inputs < 3:
        with pytest.raises(qb.QdqBridgeError, match="nothing defines it"):
            loaded(made)
        return
    del made.graph.node[0].attribute[0].g.output[1:]
    assert loaded(made).outputs[0].type.shape is None


@pytest.mark.parametrize("times", [None, 2])
def test_a_state_whose_extents_change_keeps_its_rank(times: int | None) -> None:
    """On Relax it has one, and what reads it becomes another operator."""
    body = _doubling()
    body.node[0].CopyFrom(helper.make_node("Concat", ["s", "s"], ["o"], axis=0))
    node = helper.make_node("Loop", ["times", "yes", "x"], ["y", "rows"], body=body)
    del body.node[2], body.output[2]
    del node.output[1]
    constants: dict[str, Any] = {"yes": np.array(True)}
    inputs: dict[str, Any] = {"x": (FLOAT, (1, 3))}
    if times is None:
        inputs["times"] = INT64, ()
    else:
        constants["times"] = np.array(times)
    y = loaded(model([node], inputs, ["y"], constants)).outputs[0].type.shape
    assert y is not None
    assert [isinstance(extent, str) for extent in y] == [True, False]
    assert y[1] == 3
