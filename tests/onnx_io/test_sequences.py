"""torch.split arrives as SplitToSequence and SequenceAt, and is a slice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.pipeline import session


def model(path: Path, split: np.ndarray | None, position: int, *, keepdims: int = 1) -> Path:
    inputs = ["x"] if split is None else ["x", "split"]
    nodes = [
        helper.make_node("SplitToSequence", inputs, ["parts"], axis=1, keepdims=keepdims),
        helper.make_node("SequenceAt", ["parts", "position"], ["part"]),
        helper.make_node("Neg", ["part"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.asarray(position, np.int64), "position")]
    if split is not None:
        constants.append(numpy_helper.from_array(split, "split"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 7, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("position", [0, 1, -1])
@pytest.mark.parametrize("split", [np.int64(3), np.array([2, 1, 4], np.int64), None], ids=repr)
def test_an_element_of_a_split_is_a_slice(tmp_path, split, position):
    given = None if split is None else np.asarray(split)
    path = model(tmp_path / "m.onnx", given, position)
    graph = qb.load(path)
    assert [node.op.name for node in graph.nodes] == ["Slice", "Neg"]
    assert all(isinstance(e, int) for n in graph.nodes for e in n.output.type.shape or ("",))
    x = {"x": np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)}
    expected = session(path).run(x, ["y"])["y"]
    np.testing.assert_array_equal(qb.evaluate(graph, x)["y"], expected)


def test_a_dropped_axis_is_carried_as_it_is(tmp_path):
    graph = qb.load(model(tmp_path / "m.onnx", None, 1, keepdims=0))
    assert "SequenceAt" in [node.op.name for node in graph.nodes]


def test_a_position_outside_of_the_sequence_is_refused(tmp_path):
    with pytest.raises(qb.QdqBridgeError, match="position 9 is outside of a sequence of 3"):
        qb.load(model(tmp_path / "m.onnx", np.asarray(3, np.int64), 9))
