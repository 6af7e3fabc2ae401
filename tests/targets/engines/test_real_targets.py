"""What a target promises about its engine: the file is taken whole, and computed right.

TensorRT does not run here; its target is held against the rules of its profile in
``tests/autoquant/test_targets.py``, as all are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.app.sources import load_model
from qdqbridge.autoquant.planning.targets import TARGETS
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.options import EngineName
from qdqbridge.targets.engines.kinds import ENGINES, EngineVerdict
from tests.autoquant.float_models import masked, quantize_plainly
from tests.targets.engines.processor import PAIRS_SATURATE, crashes_in_floats
from tests.targets.engines.target_networks import NETWORKS, samples

ENGINE: dict[str, EngineName] = {"qnn": "qnn-htp", "openvino": "openvino", "tflite": "litert"}
STEPS = 2
"""How far operators may be off."""
PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""OpenVINO's products; of the rest it has float kernels, or rounds the model's inputs in one."""
KNOWN = {("qnn", "attention"): 4}
"""Steps of one node that are more: a Softmax of Hexagon's."""


@cache
def network(name: str) -> Graph:
    return NETWORKS[name]()


def promised(target: str, verdict: EngineVerdict) -> bool:
    """True where the engine takes what its target says that it does."""
    if target != "openvino":
        return verdict.takes_all
    made = [placement for placement in verdict.placements if placement.operator in PRODUCTS]
    return bool(made) and all(placement.taken for placement in made)


def agreement(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Returns the signal to noise of an engine's outputs, in dB."""
    pairs = zip(found, wanted, strict=True)
    error = sum(float(np.sum((a.astype(float) - b) ** 2)) for a, b in pairs)
    power = sum(float(np.sum(b.astype(float) ** 2)) for b in wanted)
    return 10 * np.log10(power / max(error, 1e-30))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", ENGINE)
def test_the_engine_takes_what_is_quantized_for_it_and_computes_it_right(
    target: EngineName, name: str, tmp_path: Path
) -> None:
    data, kind = samples(name, network(name)), ENGINES[ENGINE[target]]
    pairs = target == "openvino" and PAIRS_SATURATE
    plainly: dict[str, Any] = {"repair": (), "tune": False, "avoid_pairs": pairs}
    graph = quantization(network(name), data, target=target, **plainly).graph
    graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
    feeds = [{key: array[i : i + 1] for key, array in data.items()} for i in range(8)]
    if pairs and crashes_in_floats("openvino", network(name), feeds[0], tmp_path):
        pytest.skip("OpenVINO crashes on the float network on this processor")
    path = tmp_path / f"written{kind.suffix}"
    qb.save(graph, path, TARGETS[target].profile)
    read = load_model(path)
    with qb.open_engine(ENGINE[target], path) as judge:
        verdict = judge.taken()
        found = [judge.run(feed, judge.outputs) for feed in feeds]
        local = qb.compare(read, judge, feeds[0], local=True)
    assert promised(target, verdict), verdict.left
    assert local.max_lsb <= KNOWN.get((target, name), STEPS)
    theirs = [array for each in found for array in each.values()]
    ours = [array for feed in feeds for array in qb.evaluate(read, feed).values()]
    assert agreement(theirs, ours) > 30


WIDE_STEPS = {"qnn-htp": 32, "openvino": 1}
"""How far 16-bit results may be off, of 65,536: Hexagon adds them in narrower sums; a step of 8
bits is 256 of them. OpenVINO computes them in floats."""
WIDE_PRODUCTS = {("qnn-htp", "attention"): 256, ("qnn-htp", "transformer"): 256}
"""The same where two 16-bit activations are multiplied, whose second factor Hexagon reads so."""


def sixteen_bits(name: str, engine: str, path: Path) -> tuple[Graph, dict[str, np.ndarray]]:
    """Writes what the target a16w8 makes of a network for an engine; returns it, and its data."""
    data = samples(name, network(name))
    graph = quantize_plainly(network(name), data, "a16w8").graph
    graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
    qb.save(graph, path, ENGINES[engine].profile)
    return load_model(path), data


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", WIDE_STEPS)
def test_sixteen_bits_are_taken_and_computed_right(
    engine: EngineName, name: str, tmp_path: Path
) -> None:
    """Hexagon takes them whole; OpenVINO has no integer kernels of them and runs floats."""
    path = tmp_path / "written.onnx"
    read, data = sixteen_bits(name, engine, path)
    feeds = [{key: array[i : i + 1] for key, array in data.items()} for i in range(8)]
    pairs = engine == "openvino" and PAIRS_SATURATE
    if pairs and crashes_in_floats("openvino", network(name), feeds[0], tmp_path):
        pytest.skip("OpenVINO crashes on the float network on this processor")
    with qb.open_engine(engine, path) as judge:
        verdict = judge.taken()
        found = [judge.run(feed, judge.outputs) for feed in feeds]
        local = qb.compare(read, judge, feeds[0], local=True)
    if engine == "qnn-htp":
        assert verdict.takes_all, verdict.left
    else:
        made = [each for each in verdict.placements if each.operator in PRODUCTS]
        assert made and not any(each.taken for each in made)
    assert local.max_lsb <= WIDE_PRODUCTS.get((engine, name), WIDE_STEPS[engine])
    theirs = [array for each in found for array in each.values()]
    ours = [array for feed in feeds for array in qb.evaluate(read, feed).values()]
    # Each operator is within the steps above; steps have room for a thousand times as many samples.
    assert agreement(theirs, ours) > (70 if engine == "openvino" else 40)


@pytest.mark.parametrize("engine", ["qnn-htp", "qnn-htp-v73"])
def test_what_8_bits_lose_is_taken_in_16_and_not_left_float(
    engine: EngineName, tmp_path: Path
) -> None:
    """By the defaults: a mask of -1e4 in 8 bits leaves nothing of the scores beside it."""
    model, path = masked(tmp_path / "float.onnx"), tmp_path / "written.onnx"
    x = np.random.default_rng(1).uniform(-1.7, 1.7, (72, 8, 16)).astype(np.float32)
    made = quantization(model, {"x": x[:64]}, target="qnn").graph
    graph = with_numbers(made, dict.fromkeys(symbolic_extents(made), 1))
    qb.save(graph, path, ENGINES[engine].profile)
    feeds = [{"x": x[i : i + 1]} for i in range(64, 72)]
    with qb.open_engine(engine, path) as judge:
        verdict = judge.taken()
        found = [array for feed in feeds for array in judge.run(feed, judge.outputs).values()]
    assert verdict.takes_all, verdict.left
    wanted = [a for feed in feeds for a in qb.evaluate(qb.load(model), feed).values()]
    assert agreement(found, wanted) > 25
