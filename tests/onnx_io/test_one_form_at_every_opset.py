"""Opaque operators have one digest at every opset that says the same, and in every form of it.

onnx's own converter says what a later opset says of a model: it knows nothing of digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

import qdqbridge as qb
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from tests.onnx_io.rewriting_tools import TOOLS
from tests.onnx_models import canonical

_RNG = np.random.default_rng(0)
_NEWEST = 26


def floats(*shape: int) -> Any:
    return _RNG.normal(size=shape).astype(np.float32)


def body(*, copied: bool = False) -> onnx.GraphProto:
    """A body that pools and reduces; a copied one has an Identity, and another order."""
    nodes = [
        helper.make_node("Add", ["s", "e"], ["s2"]),
        helper.make_node("LpPool", ["s2"], ["p" if copied else "o"], kernel_shape=[1]),
        helper.make_node("ReduceMax", ["s2"], ["m"], axes=[0, 1], keepdims=0),
    ]
    if copied:
        nodes = [nodes[0], nodes[2], nodes[1], helper.make_node("Identity", ["p"], ["o"])]
        nodes.append(helper.make_node("Neg", ["s"], ["unread"]))
    shapes = {"s": (1, 2, 3), "e": (1, 2, 3), "s2": (1, 2, 3), "o": (1, 2, 3), "m": (3,)}
    infos = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    return helper.make_graph(
        nodes, "b", [infos["s"], infos["e"]], [infos["s2"], infos["o"], infos["m"]]
    )


_IMAGE = {"x": (1, 2, 5, 5)}
_GRID = {"x": (1, 2, 5, 5), "g": (1, 3, 3, 2)}
_STEPS = {"x": (2, 3, 4)}
CASES: Mapping[str, tuple[int, str, Mapping[str, Any], Mapping[str, Any], dict[str, Any]]] = {
    "GRU": (13, "GRU", _STEPS, {"w": floats(1, 9, 4), "r": floats(1, 9, 3)}, {"hidden_size": 3}),
    "LSTM": (13, "LSTM", _STEPS, {"w": floats(1, 12, 4), "r": floats(1, 12, 3)},
             {"hidden_size": 3}),
    "RNN": (13, "RNN", _STEPS, {"w": floats(1, 3, 4), "r": floats(1, 3, 3)}, {"hidden_size": 3}),
    "LpPool": (13, "LpPool", _IMAGE, {}, {"kernel_shape": [2, 2]}),
    "GridSample": (16, "GridSample", _GRID, {}, {}),
    "GridSample bicubic": (16, "GridSample", _GRID, {}, {"mode": "bicubic"}),
    "GridSample nearest": (16, "GridSample", _GRID, {}, {"mode": "nearest"}),
    "CastLike": (15, "CastLike", {"x": (1, 2)}, {"like": np.zeros(1, np.int32)}, {}),
    "ScatterElements": (13, "ScatterElements", {"x": (2, 5)},
                        {"i": np.array([[0, 1]]), "u": floats(1, 2)}, {}),
    "ScatterND": (13, "ScatterND", {"x": (5,)}, {"i": np.array([[0], [1]]), "u": floats(2)}, {}),
    "Cast to strings": (13, "Cast", {"x": (1, 2)}, {}, {"to": TensorProto.STRING}),
    "Hardmax": (13, "Hardmax", {"x": (2, 5)}, {}, {}),
    "CumSum": (13, "CumSum", {"x": (2, 5)}, {"a": np.array(1)}, {}),
    "ReduceL1": (13, "ReduceL1", {"x": (2, 5)}, {}, {"axes": [1]}),
    "ReduceLogSum": (13, "ReduceLogSum", {"x": (2, 5)}, {}, {"axes": [1], "keepdims": 0}),
    "RoiAlign": (16, "RoiAlign", _IMAGE, {"r": floats(1, 4), "b": np.array([0])}, {}),
    "Mod": (13, "Mod", {"x": (2, 5)}, {"b": floats(5)}, {"fmod": 1}),
    "IsInf": (13, "IsInf", {"x": (2, 5)}, {}, {}),
    "EyeLike": (13, "EyeLike", {"x": (2, 5)}, {}, {}),
    "Trilu": (14, "Trilu", {"x": (2, 5)}, {}, {}),
    "LpNormalization": (13, "LpNormalization", {"x": (2, 5)}, {}, {}),
    "ArgMax": (13, "ArgMax", {"x": (2, 5)}, {}, {"axis": 1}),
    "Scan": (13, "Scan", {"s": (1, 2, 3), "e": (4, 1, 2, 3)}, {},
             {"body": body(), "num_scan_inputs": 1}),
}  # fmt: skip


def made(name: str, **more: Any) -> onnx.ModelProto:
    opset, op_type, shapes, constants, attributes = CASES[name]
    results = ["y"] if op_type != "Scan" else ["y", "o", "m"]
    node = helper.make_node(op_type, [*shapes, *constants], results, **attributes | more)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(
        [node], "g", inputs, [onnx.ValueInfoProto(name=result) for result in results],
        [numpy_helper.from_array(array, n) for n, array in constants.items()],
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_opset_and_every_tool_say_the_same(name: str, tmp_path: Path) -> None:
    first = made(name)
    graph, opset = canonical(first), CASES[name][0]
    for later in range(opset + 1, _NEWEST + 1):
        found = canonical(version_converter.convert_version(first, later))
        assert found.digest == graph.digest, later
        if later in (18, 22):
            qb.save(found, tmp_path / f"{later}.onnx")
            assert qb.load(tmp_path / f"{later}.onnx").digest == graph.digest, later
    for tool in TOOLS.values():
        assert canonical(tool(first)).digest == graph.digest


def test_an_older_grid_sample_is_written_for_a_later_opset(tmp_path: Path) -> None:
    qb.save(canonical(made("GridSample bicubic")), tmp_path / "m.onnx", opset=22)
    (node,) = onnx.load(tmp_path / "m.onnx").graph.node
    assert {a.name: a.s for a in node.attribute} == {"mode": b"cubic"}


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("GRU", {"direction": "forward", "linear_before_reset": 0}),
        ("GRU", {"activations": ["Sigmoid", "Tanh"]}),
        ("LSTM", {"activations": ["sigmoid", "tanh", "tanh"], "input_forget": 0}),
        ("LpPool", {"strides": [1, 1], "pads": [0, 0, 0, 0], "p": 2, "auto_pad": "NOTSET"}),
        ("CumSum", {"exclusive": 0, "reverse": 0}),
        ("IsInf", {"detect_negative": 1, "detect_positive": 1}),
        ("Hardmax", {"axis": -1}),
    ],
)
def test_what_onnx_assumes_need_not_be_said(name: str, stated: dict[str, Any]) -> None:
    assert canonical(made(name, **stated)).digest == canonical(made(name)).digest


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GRU", {"activations": ["Tanh", "Tanh"]}),
        ("GRU", {"linear_before_reset": 1}),
        ("LpPool", {"strides": [1, 2]}),
        ("LpPool", {"p": 1}),
        ("IsInf", {"detect_negative": 0}),
    ],
)
def test_what_is_said_otherwise_is_another_network(name: str, said: dict[str, Any]) -> None:
    assert canonical(made(name, **said)).digest != canonical(made(name)).digest


AXES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    **{f"Reduce{name}": ({}, None) for name in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare")},
    **{name: ({}, None) for name in ("ArgMax", "ArgMin", "Hardmax", "LpNormalization")},
    "Unique": ({}, None),
    "TopK": ({"k": np.array([2])}, None),
    "GatherElements": ({"i": np.zeros((2, 3, 4), np.int64)}, None),
    "ScatterElements": ({"i": np.zeros((2, 3, 1), np.int64), "u": floats(2, 3, 1)}, None),
    "Compress": ({"c": np.array([True, False])}, None),
    "CumSum": ({}, np.array),
    "CumProd": ({}, np.array),
}
"""Constants behind the first operand, and how the axis is one; None for an attribute."""


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op_type", AXES)
def test_axes_count_from_either_end(op_type: str, axis: int) -> None:
    constants, operand = AXES[op_type]
    texts: set[str] = set()
    for each in (axis, axis - 3):
        given = dict(constants) | ({} if operand is None else {"a": operand(each)})
        more: dict[str, Any] = {"axes": [each]} if op_type.startswith("Reduce") else {"axis": each}
        more = {} if operand else more
        node = helper.make_node(op_type, ["x", *given], ["y"], **more)
        held = [numpy_helper.from_array(array, name) for name, array in given.items()]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3, 4))
        graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], held)
        imports = [helper.make_opsetid("", 26 if op_type == "CumProd" else 17)]
        texts.add(canonical(helper.make_model(graph, opset_imports=imports, ir_version=8)).text())
    assert len(texts) == 1


def test_the_order_of_a_body_and_its_copies_leave_no_trace() -> None:
    graph = canonical(made("Scan"))
    assert canonical(made("Scan", body=body(copied=True))).digest == graph.digest
    (node,) = graph.nodes
    inside = node.record(OpaqueAttrs).node.proto().attribute[0].g.node
    assert [each.op_type for each in inside] == ["Add", "LpPool", "ReduceMax"]


def test_cast_like_is_a_cast() -> None:
    (node,) = canonical(made("CastLike")).nodes
    assert node.op.name == "Cast"


def rounding(opset: int) -> onnx.ModelProto:
    """An If with a branch that rounds to 16 bits by onnxruntime's own operators, and reduces."""
    made = [
        helper.make_node(kind, [read, "s", "z"], [name], domain="com.microsoft")
        for kind, read, name in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "d"))
    ]
    over: dict[str, Any] = {"axes": [0]} if opset < 18 else {}
    read = ["d", *(["axes"] if opset >= 18 else [])]
    made.append(helper.make_node("ReduceMax", read, ["m"], keepdims=1, **over))
    made.append(helper.make_node("Add", ["d", "m"], ["t"]))
    other = helper.make_node("Relu", ["x"], ["e"])
    ends = [onnx.ValueInfoProto(name=name) for name in "tey"]
    held = {"s": np.float32(0.01), "z": np.uint16(7), "axes": np.array([0])}
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=helper.make_graph(made, "t", [], ends[:1]),
        else_branch=helper.make_graph([other], "e", [], ends[1:2]),
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
              helper.make_tensor_value_info("c", TensorProto.BOOL, ())]  # fmt: skip
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, ends[2:], tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_bodies_with_nodes_of_onnxruntimes_have_one_form(tmp_path: Path) -> None:
    found = {canonical(rounding(opset)).digest for opset in range(13, _NEWEST + 1)}
    assert len(found) == 1
    for opset in (17, 21):
        qb.save(canonical(rounding(13)), tmp_path / f"{opset}.onnx", opset=opset)
        assert qb.load(tmp_path / f"{opset}.onnx").digest in found


@pytest.mark.parametrize("shape", [(2, 3), None])
def test_an_if_of_equal_branches_is_one_of_them(shape: tuple[int, ...] | None) -> None:
    """Also of a tensor whose rank nobody knows."""
    bodies = [
        helper.make_graph(nodes, "b", [], [onnx.ValueInfoProto(name="r")])
        for nodes in (
            [helper.make_node("Identity", ["x"], ["r"])],
            [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Neg", ["n"], ["r"])],
        )
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
              helper.make_tensor_value_info("c", TensorProto.BOOL, ())]  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    last = helper.make_node("Relu", ["y"], ["z"])
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node, last], "g", inputs, [output])
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert [each.op.name for each in canonical(model).nodes] == ["Relu"]
