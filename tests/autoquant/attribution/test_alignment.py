"""Float originals and quantized files of other tools: what corresponds, and that it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.autoquant.attribution.correspondence import correspondence, share
from scripts.checks.alignment import twin, wrong_of_twin
from tests.places import MODELS

QUANTIZED = sorted(MODELS.glob("*s8*.onnx"))


@pytest.mark.parametrize("path", QUANTIZED, ids=lambda path: path.stem)
def test_a_file_is_aligned_with_what_it_was_made_from(path: Path) -> None:
    """The float original is the file without roundings and names: every pair is known."""
    graph = qb.load(path)
    original, names = twin(graph)
    found = correspondence(original, graph)
    assert share(found) == 1.0
    copies = dict(zip(graph.values(), found.quantized.values(), strict=True))
    made = {copies[value]: name for value, name in names.items()}
    assert len(set(made) & set(found.values)) > 10
    assert list(wrong_of_twin(found, made)) == []


def branches(path: Path, order: list[int], *, quantized: bool) -> Path:
    """Writes parallel products of one value, in any order, which only their weights tell apart."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8)).astype(np.float32) for _ in order]
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def add(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    for place, number in enumerate(order):
        weight = f"w{place}"
        if quantized:
            scale = np.asarray(np.abs(weights[number]).max() / 127, np.float32)
            codes = np.rint(weights[number] / scale).astype(np.int8)
            pair = [add(f"q{place}", codes), add(f"s{place}", scale)]
            nodes.append(helper.make_node("DequantizeLinear", pair, [weight]))
        else:
            add(weight, weights[number])
        nodes.append(helper.make_node("MatMul", ["x", weight], [f"m{place}"]))
        nodes.append(helper.make_node("Relu", [f"m{place}"], [f"r{place}"]))
    nodes.append(helper.make_node("Sum", [f"r{i}" for i in range(len(order))], ["y"]))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "branches", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("seed", range(4))
def test_parallel_branches_are_told_apart_by_their_weights(tmp_path: Path, seed: int) -> None:
    order = list(np.random.default_rng(seed).permutation(6))
    reference = qb.load(branches(tmp_path / "a.onnx", list(range(6)), quantized=False))
    other = qb.load(branches(tmp_path / "b.onnx", order, quantized=True))
    found = correspondence(reference, other)
    assert share(found) == 1.0
    weights = [each for each in found.rounded if each.kind == "weight"]
    assert len(weights) == 6
    for each in weights:
        assert each.replaced is not None
        assert each.value.constant is not None
        gap = np.abs(each.replaced - each.value.constant.numpy()).max()
        assert gap < 0.05  # a step is below 0.03; other weights are 1 apart
