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
from qdqbridge.app.pipeline import check, diff
from qdqbridge.app.sources import inspect_model
from qdqbridge.options import RelaxVariant
from qdqbridge.targets.profiles import PROFILES

_DEPTH = 1200
_KINDS = {
    "constants": ("Neg", "Abs"),
    "a weight": ("Neg",),
    "clamps": ("Relu",),
    "stored movers": ("Transpose",),
    "floats": ("Neg", "Relu"),
    "pushed movers": ("Reshape",),
    "movers": ("Transpose",),
}
_SOME = [*list(_KINDS)[:4], *(pytest.param(k, marks=pytest.mark.slow) for k in list(_KINDS)[4:])]
"""All of them, some for the slow sweep alone."""


def _chain(kind: str, depth: int) -> onnx.ModelProto:
    """Returns a model with a chain: of a constant, or from the input up to a QuantizeLinear."""
    ops, large = _KINDS[kind], kind == "a weight"
    constants: dict[str, Any] = {"s": np.float32(0.5), "z": np.int8(0)}
    nodes, tensor = list[onnx.NodeProto](), "x"
    if kind in ("constants", "a weight"):
        constants["c"] = np.ones((100, 100) if large else (4,), np.float32)
        tensor = "c"
    if kind in ("stored movers", "pushed movers"):
        nodes, tensor = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"])], "xq"
    if kind == "pushed movers":
        nodes.append(helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]))
        constants["shape"], tensor = np.array([4, 4]), "xd"
    for i in range(depth):
        op = ops[i % len(ops)]
        attributes: dict[str, Any] = {"perm": [1, 0]} if op == "Transpose" else {}
        operands = [tensor, "shape"] if op == "Reshape" else [tensor]
        nodes.append(helper.make_node(op, operands, [f"t{i}"], **attributes))
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


@pytest.mark.parametrize("kind", _SOME)
def test_a_long_chain_goes_through_everything(kind: str, tmp_path: Path) -> None:
    path, copy = tmp_path / "chain.onnx", tmp_path / "copy.onnx"
    path.write_bytes(_chain(kind, _DEPTH).SerializeToString())
    graph = qb.load(path)
    assert graph.digest
    for note in qb.explain(graph):
        assert str(note)
    inspect_model(path)
    for profile in PROFILES.values():
        check(path, profile)
    qb.save(graph, copy)
    again = qb.load(copy)
    assert again.digest == graph.digest
    assert not diff(graph, again)
    check(copy, "qnn")


def _seconds(model: onnx.ModelProto, folder: Path, *variants: RelaxVariant) -> float:
    """Returns the time that a model takes through the verbs."""
    path, copy = folder / "model.onnx", folder / "copy.onnx"
    path.write_bytes(model.SerializeToString())
    start = time.process_time()
    graph = qb.load(path)
    qb.save(graph, copy, overwrite=True)
    again = qb.load(copy)
    assert not diff(graph, again)
    assert all(map(str, qb.explain(graph)))
    check(path, "ort")
    for variant in variants:
        module = qb.to_relax(graph, variant=variant)[0]
        assert qb.from_relax(module).digest == graph.digest
    return time.process_time() - start


@pytest.mark.parametrize("kind", _SOME[2:])
def test_time_grows_with_the_length_alone(kind: str, tmp_path: Path) -> None:
    _seconds(_chain(kind, 10), tmp_path)  # imports
    short = _seconds(_chain(kind, 1500), tmp_path)
    assert _seconds(_chain(kind, 6000), tmp_path) < 7 * short + 1.0


@pytest.mark.relax
@pytest.mark.parametrize("kind", ("floats", "clamps", "pushed movers"))
def test_a_long_chain_goes_to_relax_and_back(kind: str, tmp_path: Path) -> None:
    assert _seconds(_chain(kind, _DEPTH), tmp_path, "qnn", "qdq") < 12


def _parts(count: int) -> onnx.ModelProto:
    """Returns a model that splits its input into quantized parts and joins them again."""
    constants: dict[str, Any] = {"s": np.float32(0.5), "z": np.int8(0), "one": np.ones(count, int)}
    names = [f"p{i}" for i in range(count)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Split", ["d", "one"], names, axis=1),
        helper.make_node("Concat", names[::-1], ["c"], axis=1),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, count])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, count])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.relax
def test_time_grows_with_the_number_of_parts_alone(tmp_path: Path) -> None:
    """The parts are told to Relax, and read back, without looking at all of them for each."""
    _seconds(_parts(10), tmp_path, "qnn")
    few = _seconds(_parts(1000), tmp_path, "qnn")
    assert _seconds(_parts(4000), tmp_path, "qnn") < 7 * few + 1.0
