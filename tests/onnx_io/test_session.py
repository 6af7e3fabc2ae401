"""onnxruntime as the reference: files that would end the process, or that it gets wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
from qdqbridge.targets.running import Runner

CODE = """
import sys
import numpy as np
import qdqbridge as qb

x = {"x": np.arange(256, dtype=np.uint8)[None]}
print(qb.compare(qb.load(sys.argv[1]), sys.argv[1], x).max_lsb)
"""


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_a_last_operand_that_is_left_out_does_not_end_the_process(op: str, tmp_path: Path) -> None:
    """onnxruntime's kernels read it all the same (1.32); an operand of no name is left out too."""
    numbers = [("x_scale", 0.05), ("y_scale", 1 / 256)]
    initializers = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in numbers]
    initializers.append(helper.make_tensor("x_zero", TensorProto.UINT8, [], [128]))
    node = helper.make_node(
        op, ["x", "x_scale", "x_zero", "y_scale"], ["y"], domain="com.microsoft"
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 256]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], initializers)
    path = _saved(graph, tmp_path / "m.onnx")
    found = subprocess.run(
        [sys.executable, "-c", CODE, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (found.returncode, found.stdout) == (0, "0\n"), found.stderr


@pytest.mark.parametrize("inside", ["", "If", "Loop"])
@pytest.mark.parametrize("own", [False, True])
def test_products_of_half_floats_between_operators_of_float32_keep_their_scales(
    inside: str, own: bool, tmp_path: Path
) -> None:
    """Alone, onnxruntime (1.32) makes this product 0 where its optimizations are off."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 256, (8, 1, 16)).astype(np.uint8)
    scales = np.full(8, 0.25, np.float16)
    nodes = _product()
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in (("x", [2, 32]), ("y", [2, 8]))
    ]
    constants = [numpy_helper.from_array(words, "w"), numpy_helper.from_array(scales, "s")]
    if inside:
        held = constants if own else []
        constants = [] if own else constants
        nodes, more = _within(inside, nodes, held)
        constants += more
        ends[:1] = [*ends[:1], helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", ends[:-1], ends[-1:], constants)
    path = _saved(graph, tmp_path / "m.onnx")
    x = rng.integers(-127, 128, (2, 32)).astype(np.float16)
    x[:, 0] = 127  # a whole step per code: rounding to 8 bits moves nothing
    codes = np.stack([words & 15, words >> 4], -1).reshape(8, 32) - 8.0
    meant = (4 * 0.25 * x.astype(np.float64) @ codes.T).astype(np.float16)
    feeds = {"x": x, **({"c": np.array(True)} if inside else {})}
    found = OnnxRuntimeSession(path).run(feeds, ["y"])["y"]
    np.testing.assert_array_equal(found, meant)
    graph = qb.load(path)
    (found,) = Runner(graph, optimized=False).run(feeds)
    np.testing.assert_array_equal(found, meant)
    np.testing.assert_array_equal(qb.evaluate(graph, feeds)["y"], meant)


@pytest.mark.parametrize("inside", ["If", "Loop"])
def test_products_inside_of_bodies_round_their_activations(inside: str, tmp_path: Path) -> None:
    """Their constants are those of the graph around the body."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.integers(0, 256, (8, 1, 16)).astype(np.uint8), "w"),
        numpy_helper.from_array(np.full(8, 0.25, np.float32), "s"),
    ]
    nodes, more = _within(inside, _product(), [], TensorProto.FLOAT)
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [2, 32]), info("c", TensorProto.BOOL, [])]
    output = info("y", TensorProto.FLOAT, [2, 8])
    graph = helper.make_graph(nodes, "g", inputs, [output], constants + more)
    path = _saved(graph, tmp_path / "m.onnx")
    feeds = {"x": rng.normal(0, 1, (2, 32)).astype(np.float32), "c": np.array(True)}
    wanted = OnnxRuntimeSession(path).run(feeds, ["y"])["y"]
    np.testing.assert_array_equal(qb.evaluate(qb.load(path), feeds)["y"], wanted)


def _product() -> list[onnx.NodeProto]:
    """Returns a product of 4-bit weights between two sums, from x to y."""
    at: dict[str, Any] = {"K": 32, "N": 8, "bits": 4, "block_size": 32, "accuracy_level": 4}
    return [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node(
            "MatMulNBits", ["twice", "w", "s"], ["product"], domain="com.microsoft", **at
        ),
        helper.make_node("Add", ["product", "product"], ["y"]),
    ]


def _saved(graph: onnx.GraphProto, path: Path) -> Path:
    """Writes a model of opset 21 and onnxruntime's operators."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def _within(
    operator: str,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    element: int = TensorProto.FLOAT16,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Returns an If, or a Loop of one step, around nodes from x to y, and its constants."""
    info = helper.make_tensor_value_info
    result = info("y_inside", element, [2, 8])
    renamed = [*nodes[:-1], helper.make_node("Add", ["product", "product"], ["y_inside"])]
    if operator == "If":
        other = helper.make_node("Slice", ["x", "zeros", "ends"], ["y_inside"])
        branches: dict[str, Any] = {
            "then_branch": helper.make_graph(renamed, "then", [], [result], constants),
            "else_branch": helper.make_graph([other], "else", [], [result]),
        }
        bounds = {"zeros": [0, 0], "ends": [2, 8]}
        held = [numpy_helper.from_array(np.array(v), name) for name, v in bounds.items()]
        return [helper.make_node("If", ["c"], ["y"], "if", **branches)], held
    body = helper.make_graph(
        [*renamed, helper.make_node("Identity", ["go"], ["goes"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("before", element, [2, 8])],
        [info("goes", TensorProto.BOOL, []), result],
        constants,
    )  # fmt: skip
    held = [
        numpy_helper.from_array(np.array(1), "steps"),
        helper.make_tensor("first", element, [2, 8], [0.0] * 16),
    ]
    return [helper.make_node("Loop", ["steps", "c", "first"], ["y"], "loop", body=body)], held
