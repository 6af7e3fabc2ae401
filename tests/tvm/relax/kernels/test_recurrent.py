"""Kernels of LSTM, GRU and RNN: those of onnxruntime within float32's sums, of any extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.combinations import each_once, first_with_all
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, target_of

pytestmark = pytest.mark.relax

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CLOSE = 2e-6
"""Sums of float32 in another order; results are at most 1, cells of these few steps a few."""
Feeds = dict[str, np.ndarray[Any, Any]]


def layer(kind: str, seed: int, **attributes: Any) -> tuple[onnx.ModelProto, Feeds]:
    """Returns a layer of usual functions and random extents, some of which are open."""
    rng = np.random.default_rng([seed, len(kind), ord(kind[0])])
    turns, gates = 1 + seed % 2, GATES[kind]
    size, width = (int(rng.choice(some)) for some in ((3, 16, 20, 64, 70), (1, 7, 40)))
    steps, batch = int(rng.integers(1, 9)), int(rng.choice([1, 2, 3, 8, 19]))
    opened = ("t" if rng.integers(2) else steps, "n" if rng.integers(2) else batch)

    def real(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)

    b, feeds = Builder(opset=21), {"x": real(steps, batch, width) * 3}
    names = [b.input("x", [*opened, width], TensorProto.FLOAT)]
    names += [b.init(real(turns, gates * size, n)) for n in (width, size)]
    names += [b.init(real(turns, 2 * gates * size)) if rng.integers(4) else "", ""]
    if seed % 3 == 2:
        names[-1] = b.input("lengths", [opened[1]], TensorProto.INT32)
        feeds["lengths"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    for state in ("first", "cell")[: 1 + (kind == "LSTM")]:
        names.append("")
        if rng.integers(2):
            names[-1] = b.input(state, [turns, opened[1], size], TensorProto.FLOAT)
            feeds[state] = real(turns, batch, size)
    if kind == "LSTM" and attributes:
        names.append(b.init(real(turns, 3 * size)))  # peepholes
        attributes["input_forget"] = seed % 2
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * turns
    attributes |= {"hidden_size": size, "direction": "bidirectional"}
    if turns == 1:
        attributes["direction"] = "reverse" if rng.integers(2) else "forward"
    if kind == "GRU":
        attributes["linear_before_reset"] = seed // 2 % 2
    kept = [name if rng.integers(3) else "" for name in ("y", "last", "last_cell")]
    kept = kept[: 2 + (kind == "LSTM")] if any(kept[:2]) else ["y"]
    while not kept[-1]:
        kept.pop()
    while not names[-1]:
        names.pop()
    b.nodes.append(helper.make_node(kind, names, kept, **attributes))
    for name in kept:
        if name:
            b.output(name)
    return b.model(), feeds


def wanted(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
    session: Any = ort.InferenceSession(model.SerializeToString(), None, ["CPUExecutionProvider"])
    return session.run(None, feeds)


def near(found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> bool:
    largest = max(1.0, float(np.abs(exact).max()))
    return found.shape == exact.shape and np.abs(found - exact).max() <= CLOSE * largest


@pytest.mark.parametrize(("cpu", "kind"), first_with_all(CPUS, list(GATES)))
def test_what_onnxruntime_computes(cpu: Cpu, kind: str) -> None:
    for seed in (1, 2) if cpu == HOST else (0,):  # both directions and one; with lengths
        model, feeds = layer(kind, seed)
        graph = canonical(model)
        names = [kernel.name for kernel in plan(graph, cpu).kernels.values()]
        assert len(names) == 2 and f"{kind.lower()}_steps" in names[1]
        found = compile_relax(graph, target_of(cpu), threads=2).run(feeds)
        for name, exact in zip(graph.output_names, wanted(model, feeds), strict=True):
            assert near(found[name], exact), (seed, name)


OTHERS = ["HardSigmoid", "Relu", "Softsign"], ["Softsign", "HardSigmoid", "Tanh"]


@pytest.mark.parametrize(("kind", "functions"), each_once(GATES, [*OTHERS, []]))
def test_clips_peepholes_and_other_functions(kind: str, functions: list[str]) -> None:
    attributes: dict[str, Any] = {"clip": 1.5}
    if functions:
        attributes["activations"] = functions[: {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]]
    model, feeds = layer(kind, len(functions) // 3, **attributes)
    graph = canonical(model)
    names = [kernel.name for kernel in plan(graph, HOST).kernels.values()]
    assert f"{kind.lower()}_steps" in names[-1]
    found = compile_relax(graph, target_of(HOST), threads=1).run(feeds)
    for name, exact in zip(graph.output_names, wanted(model, feeds), strict=True):
        assert near(found[name], exact), name


@pytest.mark.parametrize(("kind", "turns"), [("LSTM", 2), ("GRU", 1)])
def test_threads_share_large_layers(kind: str, turns: int) -> None:
    rng, size = np.random.default_rng(1), 336
    b = Builder(opset=21)
    shapes = [(GATES[kind] * size, 8), (GATES[kind] * size, size)]
    names = [b.input("x", ["t", 3, 8], TensorProto.FLOAT)]
    names += [b.init(rng.normal(0, 0.1, (turns, *s)).astype(np.float32)) for s in shapes]
    direction = ("forward", "bidirectional")[turns - 1]
    b.nodes.append(helper.make_node(kind, names, ["y"], hidden_size=size, direction=direction))
    b.output("y")
    model, x = b.model(), rng.normal(0, 1, (6, 3, 8)).astype(np.float32)
    graph, (exact,) = canonical(model), wanted(model, {"x": x})
    one, two = (compile_relax(graph, target_of(HOST), threads=n).run({"x": x})["y"] for n in (1, 2))
    assert near(two, exact)
    np.testing.assert_array_equal(one, two)


def plainly(kind: str, scale: float) -> tuple[onnx.ModelProto, list[np.ndarray[Any, Any]]]:
    """Returns a layer of one direction without bias, and its weights."""
    b, rng = Builder(opset=21), np.random.default_rng(0)
    names = [b.input("x", ["t", 2, 4], TensorProto.FLOAT)]
    shapes = [(1, GATES[kind] * 16, width) for width in (4, 16)]
    weights = [rng.normal(0, scale, shape).astype(np.float32) for shape in shapes]
    names += [b.init(weight) for weight in weights]
    b.nodes.append(helper.make_node(kind, names, ["y"], hidden_size=16, name="layer"))
    b.output("y")
    return b.model(), weights


def exactly(kind: str, weights: list[np.ndarray[Any, Any]], x: np.ndarray[Any, Any]) -> Any:
    """Returns ONNX's formulas in float64: ``[steps, 1, batch, size]``."""
    w, r = (weight[0].astype(np.float64).T for weight in weights)
    h = c = np.zeros((x.shape[1], 16))
    states: list[Any] = []

    def sigmoid(value: Any) -> Any:
        return 1 / (1 + np.exp(-value))

    for row in x.astype(np.float64):
        given = np.split(row @ w, GATES[kind], axis=1)
        own = np.split(h @ r, GATES[kind], axis=1)
        if kind == "RNN":
            h = np.tanh(given[0] + own[0])
        elif kind == "GRU":
            z, reset = (sigmoid(given[i] + own[i]) for i in (0, 1))
            h = (1 - z) * np.tanh(given[2] + (reset * h) @ r[:, 32:]) + z * h
        else:
            i, o, f = (sigmoid(given[n] + own[n]) for n in range(3))
            c = f * c + i * np.tanh(given[3] + own[3])
            h = o * np.tanh(c)
        states.append(h[None])
    return np.stack(states)


@pytest.mark.parametrize("kind", GATES)
def test_no_numbers_and_infinities_go_where_they_go(kind: str) -> None:
    """onnxruntime 1.32 makes numbers of them in an LSTM and a GRU; ONNX's formulas do not."""
    model, weights = plainly(kind, 0.4)
    x = np.random.default_rng(1).normal(0, 1, (6, 2, 4)).astype(np.float32)
    x[3, 0, 1], x[2, 1, 2], x[4, 1, 0] = np.nan, 3e38, -np.inf
    found = compile_relax(canonical(model), target_of(HOST)).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        exact = exactly(kind, weights, x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    assert np.isnan(exact[3:, :, 0]).all() and not np.isnan(exact[:, :, 1]).any()
    assert near(np.nan_to_num(found), np.nan_to_num(exact).astype(np.float32))


@pytest.mark.parametrize("kind", GATES)
def test_small_results_keep_their_digits(kind: str) -> None:
    model, weights = plainly(kind, 1e-3)
    x = np.random.default_rng(1).normal(0, 1e-2, (5, 2, 4)).astype(np.float32)
    found = compile_relax(canonical(model), target_of(HOST)).run({"x": x})["y"]
    exact = exactly(kind, weights, x)
    assert np.abs(exact).max() < 1e-4
    # some of float32's last bits of sums that cancel, of results of 1e-5
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-12)


def test_dequantized_weights_are_weights() -> None:
    b, rng = Builder(opset=21), np.random.default_rng(2)
    names = [b.input("x", ["t", 1, 6], TensorProto.FLOAT)]
    for width in (6, 20):
        codes = rng.integers(-127, 128, (1, 80, width)).astype(np.int8)
        scale, zero = b.init(np.float32(0.003)), b.init(np.int8(0))
        names.append(b.op("DequantizeLinear", b.init(codes), scale, zero))
    b.nodes.append(helper.make_node("LSTM", names, ["y"], hidden_size=20))
    b.output("y")
    model, x = b.model(), rng.normal(0, 1, (4, 1, 6)).astype(np.float32)
    graph = canonical(model)
    names = [kernel.name for kernel in plan(graph, HOST).kernels.values()]
    assert "lstm_steps_20" in names
    assert near(
        compile_relax(graph, target_of(HOST)).run({"x": x})["y"], wanted(model, {"x": x})[0]
    )


@pytest.mark.parametrize("functions", [["Sigmoid", "Elu", "Tanh"], ["Sigmoid", "Tanh", "Softplus"]])
def test_layers_of_other_functions_are_loops(functions: list[str]) -> None:
    """:mod:`tests.tvm.relax.test_recurrent` holds these to onnxruntime."""
    model, _ = layer("LSTM", 0, activations=functions)
    assert not plan(canonical(model), HOST).kernels
