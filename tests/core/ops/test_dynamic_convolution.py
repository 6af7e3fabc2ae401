"""Convolutions of activations that are quantized while the model runs: onnxruntime's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge
from qdqbridge.app.pipeline import load, save
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.dynamic import DYNAMIC_CONV
from tests.onnx_models import Builder

ort.set_default_logger_severity(3)
CASES: dict[str, dict[str, Any]] = {
    "image": {"x": [2, 4, 7, 6], "w": [6, 4, 3, 3], "pads": [1, 1, 1, 1]},
    "one zero point": {"x": [1, 4, 7, 6], "w": [6, 4, 3, 3], "point": 5},
    "uint8": {"x": [1, 4, 7, 6], "w": [6, 4, 3, 3], "dtype": np.uint8, "point": 120},
    "per channel": {"x": [1, 4, 7, 6], "w": [6, 4, 2, 3], "channels": True, "pads": [0, 2, 1, 0]},
    "groups": {"x": [1, 4, 7, 6], "w": [8, 1, 3, 3], "group": 4, "strides": [2, 1]},
    "dilated": {"x": [1, 2, 9, 9], "w": [3, 2, 3, 3], "dilations": [2, 3], "pads": [2, 1, 0, 1]},
    "sequence": {"x": [2, 3, 11], "w": [5, 3, 4], "strides": [2], "pads": [1, 2]},
    "many terms": {"x": [1, 300, 5, 5], "w": [4, 300, 3, 3], "pads": [1, 1, 1, 1]},
}
"""The last one has sums beyond what float32 holds exactly, so that it is read in another way."""


def model(case: dict[str, Any], *, bias: bool = True) -> onnx.ModelProto:
    chance, dtype = np.random.default_rng(3), case.get("dtype", np.int8)
    n, rank = Builder(17), len(case["x"]) - 2
    x, ends = n.input("x", case["x"]), np.iinfo(dtype)
    weight = chance.integers(ends.min, ends.max + 1, case["w"], dtype)
    channels = (1, case["w"][0], *[1] * rank)
    scale: Any = np.float32(0.013)
    if case.get("channels"):
        scale = chance.uniform(1e-3, 1e-2, channels).astype(np.float32)
    window = {
        name: case[name] for name in ("pads", "strides", "dilations", "group") if name in case
    }
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    point = n.init(dtype(case.get("point", 0)))
    total = n.op("ConvInteger", codes, n.init(weight), f"{codes}:2", point, **window)
    y = n.op("Mul", n.op("Cast", total, to=1), n.op("Mul", f"{codes}:1", n.init(scale)))
    if bias:
        y = n.op("Add", y, n.init(chance.normal(size=channels).astype(np.float32)))
    n.output(y, None)
    return n.model()


@pytest.mark.parametrize("channels", [False, True])
def test_a_convolution_of_dequantized_codes_is_one_too(channels: bool, tmp_path: Path) -> None:
    """Its sums are floats: last bits."""
    chance, n = np.random.default_rng(3), Builder(17)
    codes = n.op("DynamicQuantizeLinear", n.input("x", [2, 4, 7, 6]), outputs=3)
    real = n.op("DequantizeLinear", codes, f"{codes}:1", f"{codes}:2")
    scale = chance.uniform(1e-3, 1e-2, 6 if channels else ()).astype(np.float32)
    weight = n.init(chance.integers(-127, 128, (6, 4, 3, 3), np.int8))
    w = n.op("DequantizeLinear", weight, n.init(scale), axis=0)
    bias = n.init(chance.normal(size=6).astype(np.float32))
    n.output(n.op("Conv", real, w, bias, pads=[1, 1, 1, 1]), None)
    path, again = tmp_path / "model.onnx", tmp_path / "again.onnx"
    onnx.save(n.model(), path)
    graph = load(path, fuse=True)
    assert only(graph) and not only(load(path))
    save(graph, again)
    assert load(again).digest == graph.digest
    x = samples([2, 4, 7, 6])[0]
    wanted, (ours,) = runs(path, x), evaluate(graph, {"x": x})[0].values()
    np.testing.assert_array_equal(runs(again, x), ours)
    # float32 sums of 36 terms
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=36 * 2**-24 * np.abs(wanted).max())


def runs(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def only(graph: Graph) -> bool:
    return [node.op for node in graph.nodes] == [DYNAMIC_CONV]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_one_operator_with_onnxruntimes_bits_and_is_written_as_it_was(
    name: str, bias: bool, tmp_path: Path
) -> None:
    path, again = tmp_path / "model.onnx", tmp_path / "again.onnx"
    onnx.save(model(CASES[name], bias=bias), path)
    graph = load(path)
    assert only(graph)
    save(graph, again)
    written = load(again)
    assert written.digest == graph.digest
    kinds = [node.op_type for node in onnx.load(again).graph.node]
    assert kinds.count("ConvInteger") == kinds.count("DynamicQuantizeLinear") == 1
    for x in samples(CASES[name]["x"]):
        wanted = runs(path, x)
        (ours,) = evaluate(graph, {"x": x})[0].values()
        np.testing.assert_array_equal(ours, wanted)
        np.testing.assert_array_equal(runs(again, x), wanted)


def samples(shape: list[int]) -> list[np.ndarray]:
    """Returns data of both signs, of one, zeros, and tiny and large ones."""
    x = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    return [x, np.abs(x), -np.abs(x), np.zeros_like(x), x * np.float32(1e-30), x * np.float32(1e9)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.relax
def test_tvm_has_the_same_bits_and_reads_its_call_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(CASES[name]), path)
    graph = load(path)
    module, _ = qdqbridge.to_relax(graph)
    assert str(module).count(f"qnn.dynamic_conv{len(CASES[name]['x']) - 2}d") == 1
    assert qdqbridge.from_relax(module).digest == graph.digest
    for kernels in ("fast", "reference"):
        compiled = qdqbridge.compile(graph, kernels=kernels, threads=1)
        for x in samples(CASES[name]["x"]):
            (ours,) = compiled.run({"x": x}).values()
            np.testing.assert_array_equal(ours, runs(path, x))


def test_sums_that_somebody_else_reads_stay_what_they_are(tmp_path: Path) -> None:
    made = model(CASES["image"])
    total = next(node for node in made.graph.node if node.op_type == "ConvInteger")
    made.graph.output.append(onnx.helper.make_empty_tensor_value_info(total.output[0]))
    onnx.save(made, tmp_path / "model.onnx")
    graph = load(tmp_path / "model.onnx")
    assert DYNAMIC_CONV not in [node.op for node in graph.nodes]
