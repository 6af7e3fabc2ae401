"""The extents of ceil_mode pools are those that are computed, not those that ONNX infers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.onnx_io.inference.shapes import without_dropped
from tests.onnx_models import Builder, canonical, run

Window: TypeAlias = "dict[str, Any]"
DROPS: Window = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1]}
STRIDES: Window = {"kernel_shape": [1, 1], "strides": [2, 2], "pads": [0, 0, 0, 0]}
KEEPS: Window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 0, 0]}


def model_of(
    nodes: list[onnx.NodeProto], size: int, last: str, *constants: onnx.TensorProto,
    declared: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, size, size])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)], list(constants),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model) if declared else model


def pools(op: str, *windows: Window, declared: bool = False) -> onnx.ModelProto:
    """Returns pools in a row, a Relu behind each; ``declared`` states what ONNX infers."""
    nodes: list[onnx.NodeProto] = []
    name = "x"
    for i, window in enumerate(windows):
        nodes.append(helper.make_node(op, [name], [f"p{i}"], ceil_mode=1, **window))
        nodes.append(helper.make_node("Relu", [f"p{i}"], [name := f"r{i}"]))
    return model_of(nodes, 36, name, declared=declared)


def loaded(model: onnx.ModelProto, path: Path) -> qb.Graph:
    onnx.save(model, path)
    return qb.load(path)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("declared", [False, True], ids=["open", "declared"])
def test_types_are_what_is_computed(op: str, declared: bool, tmp_path: Path) -> None:
    model = pools(op, DROPS, STRIDES, KEEPS, DROPS, declared=declared)
    graph = loaded(model, tmp_path / "m.onnx")
    shapes = [node.output.type.shape for node in graph.nodes if node.op.name == op]
    assert shapes == [("n", 1, e, e) for e in (12, 6, 3, 1)]
    x = np.random.default_rng(0).normal(size=(2, 1, 36, 36)).astype(np.float32)
    (found,) = qb.evaluate(graph, {"x": x}).values()
    assert found.shape == (2, 1, 1, 1)


def test_windows_are_dropped_beside_an_open_axis() -> None:
    """Along the axis whose extent is known."""
    window: Window = {"kernel_shape": [1, 1], "strides": [1, 3], "ceil_mode": 1}
    b = Builder(10)
    name = b.op("MaxPool", b.input("x", [1, 1, "h", 3]), outputs=2, **window)
    b.output(f"{name}:1", None, TensorProto.INT64)  # carried for its indices
    (found,) = run(canonical(b.model()), {"x": np.ones((1, 1, 2, 3), np.float32)})
    assert found.shape == (1, 1, 2, 1)


def test_declared_extents_do_not_change_the_digest(tmp_path: Path) -> None:
    digests = {
        loaded(pools("MaxPool", DROPS, KEEPS, declared=declared), tmp_path / f"{declared}").digest
        for declared in (False, True)
    }
    assert len(digests) == 1


def test_what_is_behind_is_inferred_too(tmp_path: Path) -> None:
    """ONNX's own inference finds 9 rows for the Gemm, and refuses the file."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], ceil_mode=1, **DROPS),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = loaded(model_of(nodes, 6, "y", weight), tmp_path / "m.onnx")
    assert graph.outputs[0].type.shape == ("n", 3)
    image = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    assert qb.evaluate(graph, {"x": image})["y"].tolist() == [[7 + 10 + 25 + 28] * 3]


def test_a_written_file_passes_the_checker_and_is_read_as_the_same(tmp_path: Path) -> None:
    graph = loaded(pools("MaxPool", DROPS, KEEPS), tmp_path / "m.onnx")
    qb.save(graph, tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    again = qb.load(tmp_path / "out.onnx")
    assert again.digest == graph.digest
    assert [v.type.shape for v in again.values()] == [v.type.shape for v in graph.values()]


def test_a_file_without_dropped_windows_keeps_what_it_declares(tmp_path: Path) -> None:
    model = pools("MaxPool", KEEPS, declared=True)
    assert without_dropped(model) is None
    qb.save(loaded(model, tmp_path / "m.onnx"), tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    assert [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in written.graph.value_info] == [["n", 1, 18, 18]]  # fmt: skip


@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_says_how_many_windows_there_are(padding: str, tmp_path: Path) -> None:
    """Whatever ceil_mode says; ONNX's inference counts one more where strides are wider."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> '
        "g (float[1,1,6] x) => (float[a,b,c] y, int64[a,b,c] i) { y, i = MaxPool"
        f'<kernel_shape = [1], strides = [2], auto_pad = "{padding}", ceil_mode = 1>(x) }}'
    )
    graph = loaded(model, tmp_path / "m.onnx")
    assert [value.type.shape for value in graph.outputs] == [(1, 1, 3)] * 2
    found = qb.evaluate(graph, {"x": np.arange(6, dtype=np.float32).reshape(1, 1, 6)})
    assert [part.tolist() for part in found.values()] == [[[[0, 2, 4]]]] * 2
