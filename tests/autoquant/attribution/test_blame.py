"""Whose fault an error is: spoiled tensors are found, named and repaired; networks are aligned."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.viewing import record
from qdqbridge.autoquant.attribution.attribute import CORRECTION
from qdqbridge.autoquant.attribution.correspondence import correspondence, share
from qdqbridge.autoquant.attribution.simulation import GraphRuns
from qdqbridge.autoquant.planning.plan import weights_of
from qdqbridge.autoquant.repair.equalize import EqualizedLink, reach_of, rescaled
from qdqbridge.autoquant.repair.layers import PathRefused, layer_of, norm_of
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.targets.comparison.compare import Interpreter, visible_values
from qdqbridge.targets.engines.kinds import EngineVerdict
from tests.autoquant.attribution.sabotage import KINDS, named, quantized_by_onnxruntime, spoil
from tests.places import MODELS

CNN, ATTENTION = (MODELS / f"digits_{name}_float.onnx" for name in ("cnn", "attention"))
MLP = MODELS / "digits_mlp_float.onnx"
PAIRS = [
    (CNN, MODELS / "digits_cnn_u8s8_per_channel.onnx"),
    (CNN, MODELS / "digits_cnn_s8s8_per_tensor.onnx"),
    (ATTENTION, MODELS / "digits_attention_u8s8_per_channel.onnx"),
]


def images(count: int = 32) -> NDArray[Any]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return arrays["x"][200 : 200 + count]


@pytest.mark.parametrize(("reference", "quantized"), PAIRS)
def test_every_node_corresponds_to_the_right_one(reference: Path, quantized: Path) -> None:
    """What a quantized value stands for is nearly what the float value holds."""
    original, theirs = qb.load(reference), qb.load(quantized)
    found = correspondence(original, theirs)
    assert share(found) == 1.0
    simulation = GraphRuns(found.reference, {original.inputs[0].name: images()})
    held = record(found.quantized, {theirs.inputs[0].name: images()})
    checked = 0
    for each in found.rounded:
        if each.params is None:
            continue
        real = dequantize(held[each.theirs], each.params).ravel()
        clean = simulation.stored(each.value).ravel()
        # Noise of 8 bits leaves a correlation above 0.99; another tensor of the net has none.
        assert np.corrcoef(real, clean)[0, 1] > 0.99, each.name
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize(("reference", "quantized"), PAIRS)
def test_the_tensors_explain_the_whole_error(reference: Path, quantized: Path) -> None:
    original = qb.load(reference)
    found = qb.blame(original, quantized, {original.inputs[0].name: images()}, repairs=0)
    # Integer kernels round once where the simulation rounds a float sum: a quarter of a decibel.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.25)


@pytest.fixture(scope="module")
def quantized_cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quantized") / "cnn.onnx"
    with np.load(MODELS / "digits_test.npz") as arrays:
        data = arrays["x"][:64]
    logging.disable(logging.WARNING)
    try:
        return quantized_by_onnxruntime(CNN, out, "input", data, per_channel=True, signed=False)
    finally:
        logging.disable(logging.NOTSET)  # other tests of this process look for warnings


@pytest.mark.parametrize("seed", range(KINDS))
def test_a_spoiled_tensor_is_named_with_its_cause_and_repaired(
    quantized_cnn: Path, tmp_path: Path, seed: int
) -> None:
    """One of each kind of sabotage; scripts/checks/blame_sabotage takes six networks."""
    data = {"input": images()}
    made = spoil(quantized_cnn, tmp_path / "spoiled.onnx", seed, data)
    unspoiled = qb.blame(CNN, quantized_cnn, data, repairs=0).quantized_db
    found = qb.blame(CNN, tmp_path / "spoiled.onnx", data)
    assert named(found.tensors[0], made), (made, found.tensors[0])
    assert found.tensors[0].cause in made.causes
    assert found.quantized_db < unspoiled - 3
    assert found.repaired_db >= unspoiled - 1


def test_data_without_numbers_is_refused() -> None:
    with pytest.raises(InputDataError, match="no finite numbers"):
        qb.blame(CNN, PAIRS[0][1], {"input": np.full_like(images(4), np.nan)})


def test_other_models_are_refused() -> None:
    data = {"input": images()}
    with pytest.raises(UnsupportedModelError, match="nothing of the second model is quantized"):
        qb.blame(CNN, CNN, data)


@pytest.mark.parametrize(("reference", "quantized"), PAIRS)
def test_what_nodes_add_and_inherit_is_the_whole_error(reference: Path, quantized: Path) -> None:
    """The result of the last node: what it inherits and what it adds are all that it is off by."""
    original = qb.load(reference)
    found = qb.blame(original, quantized, {original.inputs[0].name: images()}, repairs=0)
    assert found.aligned == 1.0
    *_, last = (each for each in found.nodes if each.operator == "Dense")
    powers = [10 ** (-db / 10) for db in (last.added_db, last.inherited_db)]
    # Powers add up where errors are independent; two decibels are what their product leaves.
    assert -10 * np.log10(sum(powers)) == pytest.approx(found.quantized_db, abs=2)
    first = found.nodes[0]
    assert first.operator == "quantize"
    assert first.inherited_db == np.inf
    assert list(first.parts) == ["activation rounding"]
    assert first.parts["activation rounding"] == first.added_db


@pytest.mark.parametrize("name", ["mlp", "cnn", "attention"])
def test_what_runs_quantized_only_is_charged_to_the_products(name: str, tmp_path: Path) -> None:
    original, out = MODELS / f"digits_{name}_float.onnx", tmp_path / "dynamic.onnx"
    quantize_dynamic(original, out, weight_type=QuantType.QUInt8)
    found = qb.blame(original, out, {qb.load(original).inputs[0].name: images()})
    # The same integers summed in floats instead.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.02)
    assert found.aligned == 1.0
    activations = [each for each in found.tensors if each.kind == "activation"]
    products = [each for each in found.nodes if each.operator in ("DynamicDense", "DynamicConv")]
    assert activations
    assert all(each.cause == "activation rounding" for each in activations)
    assert all({"weight rounding", "activation rounding"} <= set(each.parts) for each in products)
    # What is left to the kernels is the order of float32 sums.
    assert all(each.parts.get("kernel", np.inf) > 120 for each in products)


def _smoothed(spread: float) -> tuple[qb.Graph, set[str]]:
    """The attention network with factors in every channel that can have one, and their tensors."""
    scaled, names = _scaled(qb.load(ATTENTION), spread)
    assert len(names) >= 4
    return scaled, names


def _scaled(graph: qb.Graph, spread: float) -> tuple[qb.Graph, set[str]]:
    """A network with factors in every channel that can have one, and their tensors."""
    rng = np.random.default_rng(0)
    sources = [each for node in graph.nodes if (each := norm_of(node) or layer_of(node))]
    links: list[EqualizedLink] = []
    for source in sources:
        with contextlib.suppress(PathRefused):
            links.append(EqualizedLink(source, reach_of(graph.outputs, source, {})))
    factors = {link: np.exp(rng.normal(0, spread, link.source.outputs)) for link in links}
    return rescaled(graph, factors), {link.source.node.output.name for link in links}


def test_scaled_channels_are_no_error() -> None:
    """A file of smoothed and equalized weights is blamed as against the smoothed float model."""
    scaled, names = _smoothed(1.0)
    made = qb.quantize(scaled, {"input": images(48)}, repair=(), chooser="minmax")
    found, wanted = (qb.blame(each, made, {"input": images()}) for each in (ATTENTION, scaled))
    assert set(found.scaled) == names
    assert wanted.scaled == ()
    # Factors are read off rounded weights where no norm says them.
    assert found.simulated_db == pytest.approx(wanted.simulated_db, abs=0.01)
    assert found.repaired_db == pytest.approx(wanted.repaired_db, abs=0.5)
    assert [each.name for each in found.tensors[:3]] == [each.name for each in wanted.tensors[:3]]


def test_scaled_channels_of_tiny_and_huge_weights(tmp_path: Path) -> None:
    """The powers of weights leave float32 long before the weights do."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 1e-25, (12, 16)), "v": rng.normal(0, 1e23, (16, 5))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 12), ("y", 5))
    )
    held = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    path = tmp_path / "tiny.onnx"
    graph = helper.make_graph(nodes, "tiny", [x], [y], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    data = {"x": rng.normal(0, 1, (64, 12)).astype(np.float32)}
    scaled, names = _scaled(qb.load(path), 1.0)
    found = qb.blame(path, qb.quantize(scaled, data, repair=()), data)
    assert set(found.scaled) == names == {"h"}


def test_scaled_channels_of_what_runs_quantized(tmp_path: Path) -> None:
    """Products that quantize while they run are given the factors of their weights as well."""
    scaled, names = _smoothed(0.5)
    original, out = tmp_path / "scaled.onnx", tmp_path / "dynamic.onnx"
    qb.save(scaled, original)
    quantize_dynamic(original, out, weight_type=QuantType.QInt8, per_channel=True)
    found, wanted = (qb.blame(each, out, {"input": images()}) for each in (ATTENTION, original))
    assert set(found.scaled) == names
    # Factors are read off rounded weights where no norm says them.
    assert found.simulated_db == pytest.approx(wanted.simulated_db, abs=0.01)
    assert {each.cause for each in found.tensors} == {each.cause for each in wanted.tensors}


class _WrongKernel(Interpreter):
    """The interpreter of a graph, of which one result is off by some steps, and what follows."""

    label = "an engine"

    def __init__(self, graph: qb.Graph, wrong: str, steps: int) -> None:
        super().__init__(graph)
        self.steps = steps
        self.wrong = next(v for v in graph.values() if v.name == wrong)

    def taken(self) -> EngineVerdict:
        return EngineVerdict(self.label, "", (), 1)

    def run(self, inputs: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
        values: dict[Value, Any] = {v: inputs[v.name] for v in self.graph.inputs}
        for node in self.graph.nodes:
            operands = [
                v if v is None else values[v] if v.constant is None else v.constant.numpy()
                for v in node.inputs
            ]
            for value, array in zip(node.outputs, evaluate_node(node, operands), strict=True):
                values[value] = array
                if value is self.wrong:
                    values[value] = np.clip(array.astype(int) + self.steps, 0, 255).astype(
                        array.dtype
                    )
        shown = visible_values(self.graph)
        return {name: values[shown[name]] for name in names}


@pytest.mark.parametrize("place", [2, 4])
def test_a_wrong_kernel_is_charged_to_its_node(place: int) -> None:
    graph = qb.load(PAIRS[0][1])
    victim = [v.name for node in graph.nodes for v in node.outputs if v.quant and v.name][place]
    engine = _WrongKernel(graph, victim, 9)
    alone = qb.blame(graph, None, {"input": images()}, engine=engine)
    assert [each.name for each in alone.tensors] == [victim]
    # The sum of one kernel's gap and a clean run is the spoiled run, but for two clips in a row.
    assert alone.quantized_db == pytest.approx(alone.simulated_db, abs=0.01)
    found = qb.blame(CNN, graph, {"input": images()}, engine=engine, repairs=0)
    kernels = [each for each in found.tensors if each.kind == "kernel"]
    assert [each.quantized_name for each in kernels] == [victim]
    assert kernels[0] is found.tensors[0]
    (node,) = (each for each in found.nodes if each.tensor == victim)
    assert next(iter(node.parts)) == "kernel"
    other = qb.blame(CNN, graph, {"input": images()}, repairs=0)
    (clean,) = (each for each in other.nodes if each.tensor == victim)
    assert clean.parts.get("kernel", np.inf) > node.parts["kernel"] + 20


def test_the_kernels_of_a_real_runtime() -> None:
    """onnxruntime's fused AveragePool rounds ties otherwise than ONNX says; nothing else does.

    But for products of uint8 and int8, where they saturate.
    """
    known = {"AveragePool", *(["Conv"] if saturates() else [])}
    graph = qb.load(PAIRS[0][1])
    with qb.open_engine("onnxruntime-optimized", PAIRS[0][1]) as engine:
        found = qb.blame(graph, None, {"input": images()}, engine=engine)
    assert {each.node.partition(" ")[0] for each in found.tensors} <= known
    if saturates():
        assert found.simulated_db > found.quantized_db + 20
        return
    # What follows an element that differs is rounded otherwise: a tenth of a decibel.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.1)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", input=images(8))
    page = tmp_path / "page.html"
    asked = ["blame", CNN, PAIRS[1][1], "--data", tmp_path / "x.npz", "--page", page]
    assert run([str(each) for each in asked]) == 0
    said = capsys.readouterr().out
    assert "weight rounding" in said
    assert "aligned: 100.0%" in said
    assert run([*[str(each) for each in asked], "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["aligned"] == 1.0
    worst = [each["alone_db"] for each in found["tensors"]]
    assert worst == sorted(worst)
    text = page.read_text("utf-8")
    assert all(f'"{paint}"' in text for paint in ("damage", "added", "inherited"))
    assert found["nodes"]
    assert run(["blame", str(CNN), "--data", str(tmp_path / "x.npz")]) != 0
    assert "nothing to be blamed against" in capsys.readouterr().err
    alone = ["blame", PAIRS[0][1], "--data", tmp_path / "x.npz", "--engine", "onnxruntime"]
    assert run([str(each) for each in alone]) == 0
    assert "against the contract" in capsys.readouterr().out


# ---- What quantize makes of a model: what was learned is no error, and repairs are its options ---


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learned") / "mlp.onnx"
    with np.load(MODELS / "digits_test.npz") as arrays:
        qb.save(qb.quantize(MLP, {"input": arrays["x"][:100]}, repair=("learn",)), path)
    return path


def test_learned_biases_are_no_errors_and_spoiled_ones_are(learned: Path, tmp_path: Path) -> None:
    data = {"input": images()}
    found = qb.blame(MLP, learned, data, repairs=2, nodes=False)
    biases = [each for each in found.tensors if each.kind == "bias"]
    corrections = [each for each in biases if each.cause == CORRECTION]
    assert corrections and not any(each.repair for each in corrections)
    assert list(found.tensors[-len(corrections) :]) == corrections
    model = onnx.load(learned)
    (stored,) = (t for t in model.graph.initializer if t.name == "3.bias")
    array = numpy_helper.to_array(stored)
    stored.CopyFrom(numpy_helper.from_array(-array, stored.name))
    onnx.save(model, tmp_path / "spoiled.onnx")
    worst = qb.blame(MLP, tmp_path / "spoiled.onnx", data, repairs=2, nodes=False).tensors[0]
    assert (worst.name, worst.cause) == ("3.bias", "bias of other numbers")


def test_no_repair_is_proposed_without_which_the_outputs_are_as_good(learned: Path) -> None:
    for reference, quantized in ((MLP, learned), PAIRS[0]):
        found = qb.blame(reference, quantized, {"input": images()}, nodes=False)
        made = [each for each in found.tensors if each.repair]
        assert made and all(each.repair_db > 0.25 for each in made)
        assert found.repaired_db > found.simulated_db + 0.25
        assert all(
            each.options or each.repair not in ("16 bits", "leave it float") for each in made
        )


def test_the_command_that_is_printed_makes_the_repairs(
    learned: Path, tmp_path: Path, capsys: Any
) -> None:
    """It is run as it is; default sessions of onnxruntime judge both files on other samples."""
    data = tmp_path / "some images.npz"
    np.savez(data, input=images(40))
    assert run(["blame", str(MLP), str(learned), "--data", str(data)]) == 0
    said = capsys.readouterr().out.splitlines()
    (command,) = (line for line in said if line.startswith("qdqbridge quantize "))
    arguments = shlex.split(command)[1:]
    assert "--format" in arguments and run(arguments) == 0
    with np.load(MODELS / "digits_test.npz") as arrays:
        x = {"input": arrays["x"][:200]}
    floats, before, after = (
        np.asarray(ort.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, x)[0])
        for file in (MLP, learned, arguments[-1])
    )
    errors = [float(np.square(each - floats).sum()) for each in (before, after)]
    assert errors[1] < errors[0], errors


def test_each_model_gets_the_extents_that_it_leaves_open(tmp_path: Path, capsys: Any) -> None:
    data, fixed = tmp_path / "x.npz", tmp_path / "fixed.onnx"
    np.savez(data, input=images(4))
    opened = PAIRS[0][1]
    qb.save(qb.load(opened), fixed, extents={"batch": 1})
    for pair in ((CNN, fixed), (CNN, opened)):
        asked = ["blame", *map(str, pair), "--data", str(data), "--repairs", "0", "--extent"]
        assert run([*asked, "batch=1"]) == 0
        assert "aligned: 100.0%" in capsys.readouterr().out
        assert run([*asked, "rows=1"]) == 3
        assert "no symbolic extent 'rows'" in capsys.readouterr().err


def test_patterns_in_names_of_nodes_mean_themselves(tmp_path: Path) -> None:
    model = onnx.load(MLP)
    for node in model.graph.node:
        node.name = f"{node.name}[0]*"
    onnx.save(model, tmp_path / "named.onnx")
    data = {"input": images()}
    made = qb.quantize(tmp_path / "named.onnx", data, repair=(), chooser="minmax", weights="int4")
    found = qb.blame(tmp_path / "named.onnx", made, data, nodes=False)
    names = [p.removesuffix("=int8") for p in found.options if p.endswith("=int8")]
    assert names and "--weight-format" in found.options
    again = qb.quantize(
        tmp_path / "named.onnx", data, repair=(), chooser="minmax", weights="int4",
        weight_formats={names[0]: weights_of("int8")},
    )  # fmt: skip
    types = [n.operand(1).quant for n in again.nodes if n.op is DENSE]
    stored = [str(each.params.storage_dtype) for each in types if each is not None]
    assert sorted(stored) == ["int4", "int4", "int4", "int8"]


def test_where_no_repair_helps_a_goal_is_the_command(tmp_path: Path, capsys: Any) -> None:
    """Four bits that were learned together: each weight left float makes the outputs worse."""
    data, path = tmp_path / "x.npz", tmp_path / "learned.onnx"
    np.savez(data, input=images())
    with np.load(MODELS / "digits_test.npz") as arrays:
        made = qb.quantize(MLP, {"input": arrays["x"][:100]}, repair=("learn",), weights="int4")
    qb.save(made, path)
    asked = ["blame", str(MLP), str(path), "--data", str(data)]
    assert run(asked) == 0
    *_, said, command = capsys.readouterr().out.splitlines()
    arguments = shlex.split(command)
    assert "no repair of a single tensor" in said and arguments[:2] == ["qdqbridge", "quantize"]
    assert run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    goal = float(arguments[arguments.index("--min-sqnr") + 1])
    assert goal > told["quantized_db"] > 20 and told["options"] == []
    assert run([*asked, "--repairs", "0"]) == 0
    assert "repair" not in capsys.readouterr().out.splitlines()[-1]
