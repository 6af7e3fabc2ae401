"""LSTM, GRU and RNN on TVM, of open batch and length, beside onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("tvm")

from onnx import ModelProto, TensorProto, helper

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax

_CLOSE = 2e-6
"""Sums of float32 in another order, relative to the largest result."""
_WIDTH, _SIZE = 3, 5
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
)  # fmt: skip
Feeds = dict[str, np.ndarray[Any, Any]]


def _case(kind: str, seed: int, *, layout: int = 0) -> tuple[ModelProto, Feeds]:
    rng = np.random.default_rng([seed, len(kind), ord(kind[0])])
    b = Builder(opset=21)
    direction = ("forward", "reverse", "bidirectional")[seed % 3]
    turns, gates = 1 + (seed % 3 == 2), _GATES[kind]
    steps, batch = int(rng.integers(1, 6)), int(rng.integers(1, 4))

    def real(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 0.6, shape).astype(np.float32)

    def by_layout(*shape: Any) -> tuple[Any, ...]:
        return (shape[1], shape[0], *shape[2:]) if layout else shape

    feeds: Feeds = {"x": real(*by_layout(steps, batch, _WIDTH))}
    names = [b.input("x", by_layout("t", "n", _WIDTH), TensorProto.FLOAT)]
    names += [b.init(real(turns, gates * _SIZE, width)) for width in (_WIDTH, _SIZE)]
    names.append(b.init(real(turns, 2 * gates * _SIZE)) if rng.integers(0, 3) else "")
    names.append("")
    if rng.integers(0, 2):
        names[-1] = b.input("lengths", ["n"], TensorProto.INT32)
        feeds["lengths"] = rng.integers(0, steps + 1, batch).astype(np.int32)
        feeds["lengths"][0] = steps
    for state in ("first", "cell")[: 1 + (kind == "LSTM")]:
        names.append("")
        if rng.integers(0, 2):
            names[-1] = b.input(state, by_layout(turns, "n", _SIZE), TensorProto.FLOAT)
            feeds[state] = real(*by_layout(turns, batch, _SIZE))
    attributes: dict[str, Any] = {"hidden_size": _SIZE, "direction": direction}
    if layout:
        attributes["layout"] = 1
    if kind == "LSTM":
        names.append(b.init(real(turns, 3 * _SIZE)) if rng.integers(0, 2) else "")
        attributes["input_forget"] = int(rng.integers(0, 2))
    if kind == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(0, 2))
    if rng.integers(0, 2):
        attributes["clip"] = 0.7
    if rng.integers(0, 2):
        count = turns * {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
        attributes["activations"] = [str(name) for name in rng.choice(_FUNCTIONS, count)]
        attributes["activation_alpha"] = [0.3, 0.8] * count
        attributes["activation_beta"] = [0.4] * 2 * count
    while not names[-1]:
        names.pop()
    results = ["y", "last", "last_cell"][: 2 + (kind == "LSTM")]
    kept = [name if rng.integers(0, 4) else "" for name in results]
    kept[0] = kept[0] or ("" if any(kept) else "y")
    b.nodes.append(helper.make_node(kind, names, kept, **attributes))
    for name in kept:
        if name:
            b.output(name)
    return b.model(), feeds


def _of_onnxruntime(model: bytes, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def _close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    largest = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    return found.shape == wanted.shape and np.abs(found - wanted).max() < _CLOSE * largest


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 9), marks=pytest.mark.slow)], ids=["few", "more"]
)
@pytest.mark.parametrize("kind", _GATES)
def test_what_onnxruntime_computes(kind: str, seeds: range) -> None:
    for seed in seeds:
        model, feeds = _case(kind, seed)
        graph = canonical(model)
        found = qb.compile(graph, UNOPTIMIZED).run(feeds)
        wanted = _of_onnxruntime(model.SerializeToString(), feeds)
        for name, array in zip(graph.output_names, wanted, strict=True):
            assert _close(found[name], array), (seed, name)


@pytest.mark.parametrize("kind", _GATES)
def test_it_comes_back_from_relax(kind: str) -> None:
    graph = canonical(_case(kind, 2)[0])
    module, params = qb.to_relax(graph)
    assert qb.from_relax(module, params).digest == graph.digest


@pytest.mark.parametrize("kind", _GATES)
def test_batches_first_are_steps_first_between_transposes(kind: str, tmp_path: Path) -> None:
    """onnxruntime has no kernel of that layout; it runs what is saved."""
    for seed in range(6):
        (model, feeds), (turned, by_batch) = (_case(kind, seed, layout=layout) for layout in (0, 1))
        by_batch = {
            name: np.ascontiguousarray(feeds[name].swapaxes(0, 1)) if array.ndim == 3 else array
            for name, array in by_batch.items()
        }
        graph = canonical(turned)
        path = tmp_path / f"{kind}{seed}.onnx"
        qb.save(graph, path)
        saved = _of_onnxruntime(path.read_bytes(), by_batch)
        computed = qb.evaluate(graph, by_batch)
        wanted = _of_onnxruntime(model.SerializeToString(), feeds)
        for name, array, own in zip(graph.output_names, wanted, saved, strict=True):
            first = array.transpose(2, 0, 1, 3) if name == "y" else array.swapaxes(0, 1)
            np.testing.assert_array_equal(computed[name], first)
            np.testing.assert_array_equal(own, first)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Gelu", "its activation is 'Gelu'"),
        ("Affine", "its activation Affine is given no alpha or beta"),
        ("ThresholdedRelu", "its activation ThresholdedRelu is given no alpha or beta"),
    ],
)
def test_functions_of_no_meaning_are_refused_by_name(name: str, why: str) -> None:
    b = Builder(opset=21)
    weights = [b.init(np.zeros((1, 4, width), np.float32)) for width in (3, 4)]
    x = b.input("x", [2, 1, 3], TensorProto.FLOAT)
    b.nodes.append(helper.make_node("RNN", [x, *weights], ["y"], hidden_size=4, activations=[name]))
    b.output("y")
    with pytest.raises(UnsupportedTargetError, match=why):
        qb.compile(canonical(b.model()), UNOPTIMIZED)
