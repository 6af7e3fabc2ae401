"""TOSA by Arm's programs: files, what they require, and every difference with its cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.pipeline import save_tosa
from qdqbridge.autoquant.hardware.arithmetic import arithmetic_of
from qdqbridge.autoquant.hardware.arithmetic import run as simulate
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.comparison.compare import Comparison
from qdqbridge.targets.engines.workers.tosa import TosaWorker
from qdqbridge.targets.tosa import SUFFIXES
from qdqbridge.tflite_io.litert import TosaEngine
from qdqbridge.tflite_io.writer import converted
from tests.places import MODELS
from tests.tflite_io.drawn_inputs import drawn_inputs
from tests.tflite_io.random_graphs import graph_of

NETWORKS = sorted(MODELS.glob("digits_*8*.onnx"))
WORKER = TosaWorker()


def fixed(graph: Graph, extent: int = 1) -> Graph:
    return with_numbers(graph, dict.fromkeys(symbolic_extents(graph), extent))


def compared(graph: Graph, inputs: dict[str, Any] | None = None, seed: int = 0) -> Comparison:
    """Returns each value beside the reference model's, on its own operands."""
    made = converted(graph, tosa=True)
    engine = TosaEngine(made, lambda data, k, fed, wanted: WORKER.record(data, k.name, fed, wanted))
    return qb.compare(made.graph, engine, inputs or drawn_inputs(made, seed, 1), local=True)


def saved(nodes: list[Any], inputs: Any, outputs: Any, constants: list[Any], path: Path) -> Graph:
    graph = helper.make_graph(nodes, "case", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return qb.load(path)


def run_in_tosa(graph: Graph, x: Any) -> Any:
    """Returns the one output of a graph with one input, in the reference model."""
    with qb.open_engine("tosa", graph) as engine:
        (name,) = graph.output_names
        return engine.run({graph.inputs[0].name: x}, [name])[name]


@pytest.mark.parametrize("model", NETWORKS, ids=lambda path: path.stem)
def test_the_projects_networks(model: Path, tmp_path: Path) -> None:
    graph = fixed(qb.load(model), 4)
    for suffix in SUFFIXES:
        made = save_tosa(graph, tmp_path / f"model{suffix}")
        more = {"int16"} if "attention" in model.stem else set[str]()
        assert {*made.requires} == {"pro_int", "doubleround", "pro_fp", *more}  # floats enter
        assert all(each.taken for each in made.placements)
        interface = json.loads((tmp_path / f"model{suffix}.json").read_text("utf-8"))
        assert [each["name"] for each in interface["inputs"]] == ["input"]
        assert interface["outputs"] == [{"name": "logits", "dtype": "float32", "shape": [4, 10]}]
    text = (tmp_path / "model.mlir").read_text("utf-8")
    assert 'tosa.tensor_name = "input"' in text and 'tosa.tensor_name = "logits"' in text
    images = np.load(MODELS / "digits_test.npz")["x"][:4]
    found = compared(graph, {"input": images})
    assert found.unexplained == 0 and found.max_lsb <= 1 and len(found.values) > 10
    mapped = converted(graph, tosa=True).graph
    simulated = simulate(mapped, {"input": images}, arithmetic_of(requantize="double-round"))
    np.testing.assert_array_equal(simulated.outputs["logits"], run_in_tosa(graph, images))


@pytest.mark.parametrize("seed", range(110, 122))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    """Every value is the contract's, or has a cause; what is refused is refused by name."""
    try:
        found = compared(fixed(graph_of(seed, tmp_path)), seed=seed)
    except UnsupportedTargetError as error:
        assert error.why.count("(") and "'" in error.why
        return
    except RuntimeError as error:  # what the converter refuses, in its words
        assert "tosa" in str(error) and ("no TOSA for" in str(error) or "loc(" in str(error))
        return
    assert found.unexplained == 0


def test_integers_need_no_floats(tmp_path: Path) -> None:
    """Its file says what the integers mean, names as the model has them, and requires no floats."""
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    zero = helper.make_tensor("z", TensorProto.UINT8, [], [7])
    weights = helper.make_tensor("w", TensorProto.INT8, [2, 2], [1, -2, 3, 4])
    wzero = helper.make_tensor("wz", TensorProto.INT8, [], [0])
    operands = ["x 0", "s", "z", "w", "s", "wz", "s", "z"]
    node = helper.make_node("QLinearMatMul", operands, ["y é"])
    graph = saved(
        [node],
        [helper.make_tensor_value_info("x 0", TensorProto.UINT8, [3, 2])],
        [helper.make_tensor_value_info("y é", TensorProto.UINT8, [3, 2])],
        [scale, zero, weights, wzero],
        tmp_path / "integers.onnx",
    )
    made = save_tosa(graph, tmp_path / "integers.tosa")
    assert "pro_fp" not in made.requires
    end = {"dtype": "uint8", "shape": [3, 2], "scale": [0.5], "zero_point": [7]}
    assert made.interface["inputs"] == [{"name": "x 0", **end}]
    assert made.interface["outputs"] == [{"name": "y é", **end}]
    found = compared(graph)
    assert found.unexplained == 0 and found.max_lsb <= 1
    for value in (*graph.inputs, *graph.outputs):
        value.name = value.name.replace(" ", ",")
    graph.output_names[:] = [name.replace(" ", ",") for name in graph.output_names]
    with pytest.raises(UnsupportedTargetError, match="has a comma"):
        save_tosa(graph, tmp_path / "commas.tosa")


@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16])
@pytest.mark.parametrize("zero", [0, 100])
def test_floats_beyond_the_range_saturate(dtype: int, zero: int, tmp_path: Path) -> None:
    """The converter adds the zero point to int32 and wraps the sum; so floats are clamped."""
    zero = 0 if dtype == TensorProto.INT16 else zero
    parameters = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]),
        helper.make_tensor("z", dtype, [], [zero]),
    ]
    graph = saved(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", dtype, [1, 8])],
        parameters,
        tmp_path / "quantize.onnx",
    )
    x = np.array([[-3e38, -1e6, -40, -0.125, 0.375, 40, 1e6, 3e38]], np.float32)
    info = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
    meant = np.clip(np.rint(x.astype(np.float64) * 4) + zero, info.min, info.max)
    found = run_in_tosa(graph, x)
    np.testing.assert_array_equal(found, meant.astype(info.dtype))


def test_zero_points_of_an_axis_are_refused_by_name(tmp_path: Path) -> None:
    scales = helper.make_tensor("s", TensorProto.FLOAT, [2], [0.25, 0.5])
    zeros = helper.make_tensor("z", TensorProto.INT8, [2], [3, -4])
    graph = saved(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1)],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [3, 2])],
        [scales, zeros],
        tmp_path / "axis.onnx",
    )
    with pytest.raises(UnsupportedTargetError, match="has no TOSA for QUANTIZE"):
        save_tosa(graph, tmp_path / "axis.tosa")
    assert not (tmp_path / "axis.tosa").exists()


HALVES = np.concatenate([
    np.arange(-5.5, 6, 0.5), [2.0**22 + 0.5, -(2.0**22) - 1.5, 2.0**23 + 1, -3e38, np.inf],
]).astype(np.float32)[None]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "constants", "meant"),
    [
        ("Round", [], np.rint),
        ("Pow", [2.0], lambda x: x * x),
        ("Pow", [3.0], lambda x: x * x * x),
    ],
)
def test_floats_are_those_of_the_operator(
    kind: str, constants: list[float], meant: Any, tmp_path: Path
) -> None:
    """The converter rounds halves up, and TOSA's POW has no negative bases."""
    graph = saved(
        [helper.make_node(kind, ["x", *(["k"] if constants else [])], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, HALVES.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, HALVES.shape)],
        [helper.make_tensor("k", TensorProto.FLOAT, [], constants)] if constants else [],
        tmp_path / "floats.onnx",
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run_in_tosa(graph, HALVES), meant(HALVES))


@pytest.mark.parametrize("batches", [(), (2, 3)])
def test_products_of_16_bits_have_any_axes(batches: tuple[int, ...]) -> None:
    """The converter reshapes sums of 48 bits, which TOSA does not."""
    shape = ",".join(map(str, (*batches, 4, 4)))
    graph = qb.parse(
        f"qnn-raw 1\ninput %x: quant<int16, 0.001, 0>[{shape}]\n"
        f"%y = MatMul(%x, %x): quant<int16, 0.002, 0>[{shape}]\noutput %y\n"
    )
    rng = np.random.default_rng(0)
    x = rng.integers(-3000, 3000, (*batches, 4, 4)).astype(np.int16)
    found = compared(graph, {"x": x})
    assert found.unexplained == 0 and found.max_lsb <= 1


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_the_one_that_the_file_says(approximate: str, tmp_path: Path) -> None:
    """The converter makes a tanh of either, with a cube that has no number for negative floats."""
    graph = saved(
        [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
            helper.make_node("Gelu", ["f"], ["y"], approximate=approximate),
        ],
        [helper.make_tensor_value_info("x", TensorProto.INT8, [1, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])],
        [
            helper.make_tensor("s", TensorProto.FLOAT, [], [0.03125]),
            helper.make_tensor("z", TensorProto.INT8, [], [0]),
        ],
        tmp_path / "gelu.onnx",
    )
    x = np.arange(-128, 128, dtype=np.int8)[None]
    found = run_in_tosa(graph, x)
    # Float32's erf and tanh of two libraries.
    np.testing.assert_allclose(found, qb.evaluate(graph, {"x": x})["y"], atol=2e-6)


def test_it_is_a_side_of_comparisons(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, file = NETWORKS[0], tmp_path / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][:4])
    asked = ["--data", str(file), "--engine", "tosa", "--extent", "batch=4"]
    assert run(["compare", str(model), *asked, "--local", "--max-lsb", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["unexplained"] == 0
    out = tmp_path / "out.npz"
    assert run(["run", str(model), *asked, "-o", str(out)]) == 0
    meant = qb.evaluate(qb.load(model), {"input": np.load(file)["input"]})["logits"]
    np.testing.assert_array_equal(np.load(out)["logits"].argmax(1), meant.argmax(1))
