"""The verb ``accumulators``: its tables, its JSON, its exit code, what it refuses."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.autoquant.hardware.products import accumulators, observe
from qdqbridge.autoquant.profiling.samples import Samples
from tests.places import MODELS

MODEL = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")


@pytest.fixture
def data(tmp_path):
    with np.load(MODELS / "digits_test.npz") as arrays:
        images = arrays["x"][:12]
    np.savez(tmp_path / "x.npz", input=images)
    return str(tmp_path / "x.npz"), images


def test_the_json_is_what_was_found(data, capsys):
    path, images = data
    assert run(["accumulators", MODEL, "--data", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    graph = qb.load(MODEL)
    seen = observe(graph, Samples.of(graph.inputs, {"input": images}))
    rows = accumulators(graph, seen=seen)
    assert found["samples"] == 12 and found["pairs"] == "channels-last"
    assert len(found["products"]) == len(rows) == 6
    for row, ours in zip(found["products"], rows, strict=True):
        assert (row["node"], row["operator"], row["terms"]) == (
            ours.node,
            ours.operator,
            ours.terms,
        )
        assert row["bits"] == ours.bits.tolist() and row["headroom"] == 32 - max(row["bits"])
        assert ours.observed is not None and ours.calibrated_bits is not None
        assert row["observed_smallest"] == ours.observed[0].tolist()
        assert row["observed_largest"] == ours.observed[1].tolist()
        assert row["calibrated_bits"] == ours.calibrated_bits.tolist()
        assert row["saturating_pairs"] == ours.saturating_pairs.tolist()
        assert row["scale_factor"] == ours.remedy.tolist()
        assert row["channels"] == len(row["bits"]) == len(row["scale_factor"])


def test_the_tables_show_the_worst_channel(data, capsys):
    assert run(["accumulators", MODEL]) == 0
    out = capsys.readouterr().out
    assert "accumulator bits" in out and "vpmaddubsw" in out and "channels-last" in out
    first = accumulators(qb.load(MODEL))[0].row()
    line = next(line for line in out.splitlines() if line.startswith(f"│ {first.node} "))
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == [
        first.node, "Conv", str(first.channels), str(first.dead_channels), str(first.terms),
        str(first.naive_bits), str(first.bits), "-", "-", str(first.headroom), "-", "-",
    ]  # fmt: skip
    assert run(["accumulators", MODEL, "--data", data[0]]) == 0
    assert str(first.bits) in capsys.readouterr().out


def test_without_data_nothing_is_observed(capsys):
    assert run(["accumulators", MODEL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 0
    for row in found["products"]:
        assert row["observed_bits"] is row["calibrated_bits"] is row["observed_largest"] is None


def test_the_order_of_terms_can_be_told(capsys):
    assert run(["accumulators", MODEL, "--pairs", "channels-first", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ours = accumulators(qb.load(MODEL), order="channels-first")
    assert [row["saturating_pairs"] for row in found["products"]] == [
        row.saturating_pairs.tolist() for row in ours
    ]


def test_a_threshold_on_bits():
    reach = max(int(row.bits.max()) for row in accumulators(qb.load(MODEL)))
    assert run(["accumulators", MODEL, "--max-bits", str(reach)]) == 0
    assert run(["accumulators", MODEL, "--max-bits", str(reach - 1)]) == 1


def test_fewer_samples_can_be_asked_for(data, capsys):
    assert run(["accumulators", MODEL, "--data", data[0], "--samples", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3


def test_a_float_model_is_refused(capsys):
    assert run(["accumulators", str(MODELS / "digits_cnn_float.onnx")]) == 3
    assert "no product of integers" in capsys.readouterr().err


def test_inputs_that_cannot_be_cut_are_fed_at_once(tmp_path, capsys):
    consts = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("z", TensorProto.INT8, [], [0]),
    ]
    shapes = {"a": (2, 8), "b": (8, 3)}
    nodes = [helper.make_node("DequantizeLinear", [n, "s", "z"], [f"{n}_real"]) for n in shapes]
    nodes.append(helper.make_node("MatMul", ["a_real", "b_real"], ["y"]))
    ports = [helper.make_tensor_value_info(n, TensorProto.INT8, s) for n, s in shapes.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "g", ports, [result], consts)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    feeds = {n: rng.integers(-128, 128, s).astype(np.int8) for n, s in shapes.items()}
    np.savez(tmp_path / "x.npz", a=feeds["a"], b=feeds["b"])
    line = ["accumulators", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "x.npz"), "--json"]
    assert run(line) == 0
    (row,) = json.loads(capsys.readouterr().out)["products"]
    sums = feeds["a"].astype(int) @ feeds["b"].astype(int)
    assert (row["observed_smallest"], row["observed_largest"]) == ([sums.min()], [sums.max()])
