"""Chains far longer than Python's stack is deep go through everything, in linear time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.onnx_io.profiles import PROFILES
from qdqbridge.pipeline import check, diff
from qdqbridge.sources import inspect_model

_DEPTH = 1200
_KINDS = {
    "constants": ("Neg", "Abs"),
    "a weight": ("Neg",),
    "floats": ("Neg", "Relu"),
    "clamps": ("Relu",),
    "movers": ("Transpose",),
    "stored movers": ("Transpose",),
}


def _chain(kind: str, depth: int) -> onnx.ModelProto:
    """Returns a model with a chain: of a constant, or from the input up to a QuantizeLinear."""
    ops, large = _KINDS[kind], kind == "a weight"
    constants: dict[str, Any] = {"s": np.float32(0.5), "z": np.int8(0)}
    nodes, tensor = list[onnx.NodeProto](), "x"
    if kind in ("constants", "a weight"):
        constants["c"] = np.ones((100, 100) if large else (4,), np.float32)
        tensor = "c"
    if kind == "stored movers":
        nodes, tensor = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"])], "xq"
    for i in range(depth):
        op = ops[i % len(ops)]
        attributes: dict[str, Any] = {"perm": [1, 0]} if op == "Transpose" else {}
        nodes.append(helper.make_node(op, [tensor], [f"t{i}"], **attributes))
        tensor = f"t{i}"
    if kind == "stored movers":
        nodes.append(helper.make_node("DequantizeLinear", [tensor, "s", "z"], ["y"]))
    else:
        nodes += [helper.make_node("QuantizeLinear", [tensor, "s", "z"], ["q"]),
                  helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                  helper.make_node("Add", ["x", "d"], ["y"])]  # fmt: skip
    shape = [100, 100] if large else [4, 4]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_long_chain_goes_through_everything(kind: str, tmp_path: Path) -> None:
    path, copy = tmp_path / "chain.onnx", tmp_path / "copy.onnx"
    path.write_bytes(_chain(kind, _DEPTH).SerializeToString())
    graph = qb.load(path)
    assert graph.digest
    for note in qb.explain(graph):
        assert str(note)
    inspect_model(path)
    for profile in PROFILES:
        check(path, profile)
    qb.save(graph, copy)
    again = qb.load(copy)
    assert again.digest == graph.digest
    assert not diff(graph, again)
    for profile in ("ort", "qnn"):
        check(copy, profile)


@pytest.mark.parametrize("kind", ("floats", "stored movers"))
def test_time_grows_with_the_length_alone(kind: str, tmp_path: Path) -> None:
    def seconds(depth: int) -> float:
        path = tmp_path / f"{depth}.onnx"
        path.write_bytes(_chain(kind, depth).SerializeToString())
        start = time.process_time()
        qb.save(qb.load(path), tmp_path / "copy.onnx", overwrite=True)
        check(path, "ort")
        return time.process_time() - start

    seconds(10)  # imports
    assert seconds(2000) < 4 * seconds(1000) + 1.0
