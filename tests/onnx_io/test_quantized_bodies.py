"""Bodies of If, Loop and Scan that quantize: computed by the contract, explained, counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run as command
from qdqbridge.errors import ScalesError, UnusableScaleError
from qdqbridge.onnx_io.control_flow.bodies import parts
from qdqbridge.tvm.byoc.model import partition_model
from tests.onnx_io.quantized_bodies import FLOAT, INT8, case, info
from tests.onnx_io.quantized_bodies import model as random_model

SCALE, STEPS = np.float32(2**-4), 600


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_bodies(first: int, tmp_path: Path) -> None:
    found = {seed: case(seed, tmp_path) for seed in range(first, first + 20)}
    assert {seed: problem for seed, problem in found.items() if problem} == {}


def outermost(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """Returns the bodies of a graph that quantize, not those inside them."""
    attributes = [a for node in graph.node for a in node.attribute]
    bodies = [a.g for a in attributes if a.type == onnx.AttributeProto.GRAPH]
    return [body for body in bodies if stored_in(body)]


def stored_in(body: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in body.node if "uantizeLinear" in node.op_type]


def stored_node(seed: int) -> tuple[onnx.ModelProto, onnx.GraphProto, onnx.NodeProto]:
    """Returns a random model, a body of it that quantizes, and a node there that does."""
    made, _ = random_model(seed)
    bodies = outermost(made.graph)
    body = bodies[seed % len(bodies)]
    nodes = stored_in(body)
    return made, body, nodes[seed // 3 % len(nodes)]


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, 1e-42])
def test_scales_that_stand_for_nothing_are_seen_inside_bodies(scale: float, tmp_path: Path) -> None:
    for seed in range(25):
        made, body, node = stored_node(seed)
        body.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), "odd_scale"))
        node.input[1] = "odd_scale"
        onnx.save(made, tmp_path / "m.onnx")
        with pytest.raises(UnusableScaleError) as error:
            qb.load(tmp_path / "m.onnx")
        assert (node.name or node.output[0]) in error.value.where


def test_scales_that_do_not_fit_are_seen_inside_bodies(tmp_path: Path) -> None:
    refused = 0
    for seed in range(100):
        made, body, node = stored_node(seed)
        tensors = {"unfit_s": np.ones(7, np.float32), "unfit_z": np.zeros(7, np.int8)}
        body.initializer.extend(numpy_helper.from_array(a, n) for n, a in tensors.items())
        node.input[1], node.input[2] = tensors
        node.attribute.append(helper.make_attribute("axis", 1))
        onnx.save(made, tmp_path / "m.onnx")
        try:
            graph = qb.load(tmp_path / "m.onnx")
        except ScalesError:
            refused += 1
            continue
        values = [v for body in parts(graph) for v in body.graph.values() if v.quant is not None]
        unfit = [v for v in values if v.quant is not None and not v.quant.params.per_tensor]
        assert unfit and all(v.type.shape is None for v in unfit)  # nothing to contradict
    assert refused > 80


def test_inspect_counts_what_bodies_quantize(tmp_path: Path, capsys: Any) -> None:
    onnx.save(scan(), tmp_path / "m.onnx")
    assert command(["inspect", str(tmp_path / "m.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["quantized_activations"].values()) > 0


@pytest.mark.relax
def test_random_bodies_on_tvm(tmp_path: Path) -> None:
    assert [case(seed, tmp_path, compiled=True) for seed in (30, 33)] == ["", ""]


@pytest.mark.slow
@pytest.mark.relax
def test_many_random_bodies(tmp_path: Path) -> None:
    found = {seed: case(seed, tmp_path, compiled=True) for seed in range(1000, 1200)}
    assert {seed: problem for seed, problem in found.items() if problem} == {}


def scan() -> onnx.ModelProto:
    """A Scan whose state are int8 codes: ``state = quantize((dequantize(state) + x) W)``."""
    held = {"s": SCALE, "z": np.int8(3), "w": np.full((2, 2), 64, np.int8), "ws": np.float32(2**-7)}
    steps = [
        ("DequantizeLinear", ["state", "s", "z"], "real"), ("Add", ["real", "x"], "sum"),
        ("QuantizeLinear", ["sum", "s", "z"], "a"), ("DequantizeLinear", ["a", "s", "z"], "b"),
        ("DequantizeLinear", ["w", "ws"], "wd"), ("MatMul", ["b", "wd"], "product"),
        ("QuantizeLinear", ["product", "s", "z"], "next"), ("Identity", ["next"], "row"),
    ]  # fmt: skip
    body = helper.make_graph(
        [helper.make_node(op, inputs, [result]) for op, inputs, result in steps], "body",
        [info("state", INT8, [1, 2]), info("x", FLOAT, [1, 2])],
        [info("next", INT8, [1, 2]), info("row", INT8, [1, 2])],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in held.items()],
    )  # fmt: skip
    node = helper.make_node("Scan", ["start", "xs"], ["last", "rows"], num_scan_inputs=1, body=body)
    graph = helper.make_graph(
        [node], "g", [info("start", INT8, [1, 2]), info("xs", FLOAT, ["t", 1, 2])],
        [info("last", INT8, [1, 2]), info("rows", INT8, ["t", 1, 2])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.relax
def test_a_state_of_codes_is_what_onnx_says(tmp_path: Path) -> None:
    onnx.save(scan(), tmp_path / "scan.onnx")
    graph = qb.load(tmp_path / "scan.onnx")
    feeds: dict[str, Any] = {
        "start": np.array([[5, -7]], np.int8),
        "xs": np.random.default_rng(0).normal(size=(STEPS, 1, 2)).astype(np.float32),
    }
    state, rows = feeds["start"], list[Any]()
    for x in feeds["xs"].astype(np.float64):
        codes = np.clip(np.rint((state - 3.0) + x / SCALE) + 3, -128, 127)
        total = (codes - 3).sum(axis=1, keepdims=True) * np.ones((1, 2)) * 64 * 2**-7
        state = np.clip(np.rint(total) + 3, -128, 127)
        rows.append(state)
    for found in (qb.evaluate(graph, feeds), qb.compile(graph).run(feeds)):
        np.testing.assert_array_equal(found["rows"], np.array(rows))
        np.testing.assert_array_equal(found["last"], state)


@pytest.mark.relax
def test_quantization_inside_of_bodies_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "scan.onnx", tmp_path / "data.npz"
    onnx.save(scan(), path)
    xs = np.random.default_rng(0).normal(size=(9, 1, 2)).astype(np.float32)
    np.savez(data, start=np.array([[5, -7]], np.int8), xs=xs)
    graph = qb.load(path)
    notes = qb.explain(graph)
    assert ("float-region", "last/body/sum") in {(note.rule, note.node) for note in notes}
    assert "no-quantization" not in {note.rule for note in notes}
    assert command(["accumulators", str(path), "--data", str(data), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["products"]
    assert (row["node"], row["terms"]) == ("last/body/product", 2)
    assert max(row["observed_largest"]) <= max(row["largest"])
    coverage = partition_model(graph).coverage
    assert not coverage.complete
    assert "operators on quantized values are inside of it" in coverage.text()
