"""Results that nobody reads: optional ones are forgotten, those of a Split are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.pipeline import session
from tests.onnx_models import Builder, canonical


def split(path: Path, read: list[int], sizes: list[int] | None) -> Path:
    inputs = ["x"] if sizes is None else ["x", "sizes"]
    nodes = [helper.make_node("Split", inputs, ["p0", "p1", "p2"], axis=1)]
    nodes += [helper.make_node("Neg", [f"p{i}"], [f"y{i}"]) for i in read]
    constants = [] if sizes is None else [numpy_helper.from_array(np.array(sizes), "sizes")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in read],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("sizes", [None, [2, 1, 3]], ids=str)
@pytest.mark.parametrize("names", [["a", "b", ""], ["", "b", ""], ["", "", "c"]], ids=str)
def test_parts_without_a_name_are_parts(
    names: list[str], sizes: list[int] | None, opset: int, tmp_path: Path
) -> None:
    """The last ones, too: how many parts there are is what the node says."""
    operands = ["x"] if sizes is None else ["x", "sizes"]
    count: dict[str, Any] = {"num_outputs": 3} if sizes is None and opset == 18 else {}
    node = helper.make_node("Split", operands, names, axis=0, **count)
    kept = [i for i, name in enumerate(names) if name]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 2])],
        [helper.make_tensor_value_info(names[i], TensorProto.FLOAT, [None, 2]) for i in kept],
        [] if sizes is None else [numpy_helper.from_array(np.array(sizes), "sizes")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    parts = np.split(x, np.cumsum(sizes or [2, 2, 2])[:-1])
    read = qb.load(path)
    qb.save(read, tmp_path / "again.onnx")
    assert qb.load(tmp_path / "again.onnx").digest == read.digest
    for found in (qb.evaluate(read, {"x": x}), session(path).run({"x": x}, read.output_names)):
        for i in kept:
            np.testing.assert_array_equal(found[names[i]], parts[i])


@pytest.mark.parametrize("sizes", [None, [2, 2, 2], [1, 3, 2]], ids=str)
@pytest.mark.parametrize("read", [[0, 1], [0, 2], [1]], ids=str)
def test_a_split_keeps_its_parts(tmp_path, read, sizes):
    path = split(tmp_path / "m.onnx", read, sizes)
    graph = qb.load(path)
    assert len(graph.nodes[0].outputs) == 3
    x = {"x": np.arange(12, dtype=np.float32).reshape(2, 6)}
    expected = session(path).run(x, graph.output_names)
    found = qb.evaluate(graph, x)
    for name in graph.output_names:
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_number_is_taken_where_onnx_names_an_extent() -> None:
    """ONNX's inference of an old Max gives its first operand's shape, whatever the others have."""
    b = Builder(7)
    y = b.op("Max", b.input("x", ["n", "k"]), b.input("y", ["n", 3]))
    b.output(b.op("Reshape", y, b.init(np.array([-1, 3, 1]))))
    assert canonical(b.model()).nodes[0].output.type.shape == ("n", 3)


@pytest.mark.parametrize(
    ("start", "end", "step", "extent"),
    [
        (2, 0, 1, 0),
        (-1, -3, 2, 0),
        (0, 2, -1, 0),
        (-3, -1, -1, None),
        (-1, 2, 1, None),
        (0, 2, 1, None),
    ],
)
def test_nothing_lies_between_places_in_the_wrong_order(
    start: int, end: int, step: int, extent: int | None
) -> None:
    b = Builder(17)
    cut = [b.init(np.array([each])) for each in (start, end, 0, step)]
    b.output(b.op("Exp", b.op("Slice", b.input("x", ["n", 3]), *cut)), None)
    shape = canonical(b.model()).outputs[0].type.shape
    assert shape is not None
    assert (shape[0] == 0) == (extent == 0)
