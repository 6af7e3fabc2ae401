"""Random operators and random graphs end no process and raise only our errors.

``scripts/checks/mutations.py nodes`` and ``graphs`` run thousands in children.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import (
    InputDataError,
    InvalidModelError,
    QdqBridgeError,
    UnsupportedTargetError,
)
from tests.fuzzing.random_models import random_graph, random_node
from tests.fuzzing.target import put_on_tvm
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax


def test_random_operators(tmp_path: Path) -> None:
    results = [put_on_tvm(random_node(Random(f"test/{n}")), tmp_path) for n in range(10)]
    assert "the same on TVM" in results


def test_random_graphs(tmp_path: Path) -> None:
    results = [put_on_tvm(random_graph(Random(f"test/{n}")), tmp_path) for n in range(2)]
    assert "the same on TVM" in results


def test_a_left_out_operand_of_max_is_refused(tmp_path: Path) -> None:
    b = Builder(17)
    b.output(b.op("Max", b.input("x", [2]), "", b.input("y", [2])))
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    with pytest.raises(InvalidModelError, match="left out"):
        qb.load(path)


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomNormal"])
def test_a_normal_distribution_of_no_width_is_its_mean(op: str) -> None:
    """onnxruntime's own assertion ends the process; ONNX's reference runs it."""
    b = Builder(17)
    x = b.input("x", [2])
    operands, shape = ([x], None) if op.endswith("Like") else ([], [2])
    made = b.op(op, *operands, scale=0.0, mean=3.0, shape=shape)
    b.output(b.op("Add", x, made), [2])
    (got,) = qb.evaluate(canonical(b.model()), {"x": np.ones(2, np.float32)}).values()
    assert got.tolist() == [4, 4]


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_of_no_examples_give_none(op: str, gates: int) -> None:
    """onnxruntime ends the process; ONNX's reference runs it."""
    b = Builder(17)
    x, ones = b.input("x", ["steps", "n", 5]), np.ones((2, gates * 4, 5), np.float32)
    weights = b.init(ones), b.init(ones[:, :, :4])
    b.output(b.op(op, x, *weights, hidden_size=4, direction="bidirectional"))
    (got,) = qb.evaluate(canonical(b.model()), {"x": np.zeros((3, 0, 5), np.float32)}).values()
    assert got.shape == (3, 2, 0, 4)


def test_constants_of_no_elements_are_refused_by_tvm() -> None:
    """TVM cannot load a library with one in it."""
    b = Builder(20)
    empty = b.init(np.zeros((1, 0, 2), np.float32))
    b.output(b.op("IsInf", empty), None, TensorProto.BOOL)
    b.output(b.op("Relu", b.input("x", [2])), [2])
    graph = canonical(b.model())
    try:
        results = qb.compile(graph).run({"x": np.zeros(2, np.float32)})
    except UnsupportedTargetError as error:
        assert error.why
    else:
        assert results[graph.output_names[0]].shape == (1, 0, 2)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Min", "Concat"])
def test_an_empty_name_among_any_number_of_operands_is_refused(op: str, tmp_path: Path) -> None:
    """TVM's importer ends the process with such a node."""
    b = Builder(17)
    attributes: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
    b.output(b.op(op, b.input("x", [2]), "", **attributes))
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    with pytest.raises(InvalidModelError, match="left out"):
        qb.load(path)


@pytest.mark.relax
@pytest.mark.parametrize("op", ["GatherElements", "ScatterElements", "GatherND", "ScatterND"])
@pytest.mark.parametrize("axis", [0, 1])
def test_indices_outside_of_their_data_read_no_other_memory(op: str, axis: int) -> None:
    """They end the run with an error; TVM's own loops end the process. Those inside are exact."""
    b, points = Builder(18), op.endswith("ND")
    operands = [b.input("x", [3, 4]), b.input("i", [2, 2], TensorProto.INT64)]
    if op.startswith("Scatter"):
        operands.append(b.input("u", [2] if points else [2, 2]))
    attributes: dict[str, Any] = {} if points else {"axis": axis}
    b.output(b.op(op, *operands, **attributes), None)
    graph = canonical(b.model())
    feeds: dict[str, Any] = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "i": np.array([[0, -1], [2, 1]]),
        "u": np.array([7, 8] if points else [[7, 8], [9, 10]], np.float32),
    }
    feeds = {value.name: feeds[value.name] for value in graph.inputs}
    executable = qb.compile(graph)
    (meant,), (got,) = qb.evaluate(graph, feeds).values(), executable.run(feeds).values()
    assert np.array_equal(meant, got)
    feeds["i"] = np.array([[1 << 40, -(1 << 40)], [77_777_777, -3]])
    with pytest.raises(InputDataError, match="an index is beyond its data"):
        executable.run(feeds)


@pytest.mark.relax
def test_negative_sizes_of_run_time_are_refused_by_name() -> None:
    b = Builder(17)
    b.output(b.op("Tile", b.input("x", [2, 2]), b.input("n", [2], TensorProto.INT64)), None)
    executable = qb.compile(canonical(b.model()))
    feeds = {"x": np.ones((2, 2), np.float32), "n": np.array([1, 2])}
    (got,) = executable.run(feeds).values()
    assert got.shape == (2, 4)
    with pytest.raises(QdqBridgeError, match="cannot run"):
        executable.run(feeds | {"n": np.array([-1, 2])})


def test_an_optional_that_is_quantized_is_refused_by_name() -> None:
    """ONNX's inference tells no type of an Optional that holds nothing."""
    b = Builder(18)
    b.output(b.qdq(b.op("Optional"), 0.1, 0), None)
    graph = canonical(b.model())
    with pytest.raises(InvalidModelError, match="reads no tensor"):
        qb.evaluate(graph, {})
