"""What a target promises about its engine: the file is taken whole, and computed right.

TensorRT does not run here; its target is held against the rules of its profile in
``tests/autoquant/test_targets.py``, as all are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.targets import TARGETS
from qdqbridge.engines import ENGINES, EngineVerdict
from qdqbridge.graph.copying import symbolic_extents, with_numbers
from qdqbridge.graph.graph import Graph
from qdqbridge.sources import load_model
from tests.autoquant.float_models import quantize_plainly
from tests.engines.target_networks import NETWORKS, samples

ENGINE = {"qnn": "qnn-htp", "openvino": "openvino", "tflite": "litert"}
STEPS = 2
"""How far operators may be off."""
PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""OpenVINO's products; of the rest it has float kernels, or rounds the model's inputs in one."""
KNOWN = {("qnn", "attention"): 3}
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
    target: str, name: str, tmp_path: Path
) -> None:
    data, kind = samples(name, network(name)), ENGINES[ENGINE[target]]
    graph = quantize_plainly(network(name), data, target).graph
    graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
    feeds = [{key: array[i : i + 1] for key, array in data.items()} for i in range(8)]
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
