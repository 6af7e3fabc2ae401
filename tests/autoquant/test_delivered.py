"""What is reported of outputs is what the saved file gives against the given one, on every path."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.app.verdict import first_sentence, verdict
from qdqbridge.autoquant.advice.few_samples import unseen
from qdqbridge.autoquant.advice.input_scale import misscaled
from qdqbridge.autoquant.delivered import (
    Delivered,
    expected_sqnr,
    likely_sqnr,
    reaching_further,
)
from qdqbridge.autoquant.planning.plan import format_of
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair import steps
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.targets.profiles.export import file_size
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"][:48]
DRAWS = 10
CLOSE = 0.01
"""dB between sums of squares of float32 results in one order and in another."""


def outputs(path: Path | str, data: dict[str, Any], each: int = 0) -> list[np.ndarray]:
    """Runs a file in onnxruntime without optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if not each:
        return [np.asarray(array) for array in session.run(None, data)]
    count = len(next(iter(data.values())))
    runs = [
        session.run(None, {k: a[i : i + each] for k, a in data.items()})
        for i in range(0, count, each)
    ]
    return [np.concatenate(column) for column in zip(*runs, strict=True)]


def decibels(given, made) -> float:
    """The mean over outputs of noise by signal."""
    shares = [
        ((y.astype(float) - z) ** 2).sum() / max((y.astype(float) ** 2).sum(), 1e-300)
        for y, z in zip(given, made, strict=True)
    ]
    noise = float(np.mean(shares))
    return np.inf if noise == 0 else -10 * np.log10(noise)


def told_of(found: Quantization) -> Delivered:
    shown = found.delivered()
    assert shown is not None
    return shown


def check(
    found: Quantization, path: Path | str, data: dict[str, Any], folder: Path, each: int = 0
) -> None:
    """Measures the saved file, and compares with what is told.

    What was left out is run apart, and dynamic quantization, whose scales are those of all that is
    run at once, one example after the other.
    """
    made = folder / "made.onnx"
    qb.save(found.graph, made, overwrite=True)
    shown = told_of(found)
    assert found.outputs() == shown.metrics
    each = each or int(any(node.op.name.startswith("Dynamic") for node in found.graph.nodes))
    left_out = list(found.left_out)
    assert shown.left_out == bool(left_out)
    first = {k: a[left_out] for k, a in data.items()} if left_out else data
    rest = {k: np.delete(a, left_out, axis=0) for k, a in data.items()}
    for told, parts in (
        (shown.metrics, [first]),
        (shown.everything, [first, rest][: 1 + shown.left_out]),
    ):
        given, got = (
            [np.concatenate(c) for c in zip(*(outputs(f, fed, each) for fed in parts), strict=True)]
            for f in (path, made)
        )
        assert told.sqnr == pytest.approx(decibels(given, got), abs=CLOSE)
        if told.top1 is not None and given[0].ndim == 2:
            assert told.top1 == np.mean(given[0].argmax(1) == got[0].argmax(1))


@cache
def small() -> onnx.ModelProto:
    rng = np.random.default_rng(5)

    def drawn(*shape):
        return (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)

    b = Builder(17)
    y = b.input("input", ["n", 1, 8, 8])
    y = b.op("Conv", y, b.init(drawn(6, 1, 3, 3)), b.init(drawn(6)), strides=[2, 2], pads=[1] * 4)
    y = b.op("Conv", b.op("Relu", y), b.init(drawn(8, 6, 3, 3)), strides=[2, 2], pads=[1] * 4)
    y = b.op("Flatten", b.op("Relu", y))
    b.output(b.op("Gemm", y, b.init(drawn(10, 32)), b.init(drawn(10)), transB=1))
    return b.model()


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(small(), path)
    return path


@cache
def int2() -> Quantization:
    graph = canonical(small())
    return quantization(graph, {"input": IMAGES}, weights="int2", repair=("learn",), tune=False)


GOALS: dict[str, Any] = {
    "plain": lambda made: made,
    "min-sqnr": lambda made: made.meeting(min_sqnr=35.0),
    "min-sqnr in float": lambda made: made.meeting(min_sqnr=45.0, fallback="float"),
    "max-drop": lambda made: made.meeting(max_drop=0.0),
    "max-size": lambda made: made.within(max_bytes=6500),
    "smallest": lambda made: made.within(min_sqnr=30.0),
    "max-node-time": lambda made: made.within(max_node_seconds=1.0, engine="onnxruntime"),
}


@pytest.mark.parametrize("goal", GOALS)
def test_what_is_told_is_delivered(goal, net, tmp_path):
    """Biases were learned: a layer that leaves the integers has its own again."""
    start = int2()
    assert {s.step for s in start.made.repairs if s.applied} >= {"learn"}
    found = GOALS[goal](start)
    check(found, net, {"input": IMAGES}, tmp_path)
    goal_of = getattr(found.goal, "goal", found.goal)
    if goal_of is not None and goal_of.min_sqnr is not None:
        shown = told_of(found)
        assert min(shown.metrics.sqnr, shown.everything.sqnr) >= goal_of.min_sqnr


def test_a_goal_that_no_integers_meet_gives_the_given_model(net, tmp_path):
    found = quantization(net, {"input": IMAGES}, weights="int4", repair=("round", "learn"))
    assert found.made.decision.plan.biases
    every = found.meeting(min_sqnr=100.0, fallback="float")
    assert told_of(every).metrics.sqnr == np.inf and every.fallback is not None
    assert not every.fallback.decision.plan.rules
    check(every, net, {"input": IMAGES}, tmp_path)


def test_a_corrected_plan_is_still_about_the_float_model():
    made = int2().made
    data = {"input": IMAGES}
    ours = qb.evaluate(made.decision.plan.graph, data)
    assert made.decision.plan.biases and made.original is not None
    for wanted, found in zip(qb.evaluate(made.original, data).values(), ours.values(), strict=True):
        assert decibels([wanted], [found]) > 110


def test_bodies(tmp_path):
    """A Loop around a product: its body is quantized as a model of its own."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 8)).astype(np.float32) / 3
    body = Builder(17)
    step, going = body.input("i", [], TensorProto.INT64), body.input("c", [], TensorProto.BOOL)
    state = body.input("s", ["n", 8])
    body.output(body.op("Identity", going), [], TensorProto.BOOL)
    body.output(body.op("Tanh", body.op("MatMul", state, body.init(weight))))
    b = Builder(17)
    x = b.input("x", ["n", 8])
    y = b.op("MatMul", x, b.init(weight))
    y = b.op("Loop", b.init(np.int64(3)), "", y, body=body.model().graph)
    b.output(b.op("MatMul", y, b.init(weight)))
    del step
    path = tmp_path / "loop.onnx"
    onnx.save(b.model(), path)
    data = {"x": rng.standard_normal((24, 8)).astype(np.float32)}
    found = quantization(path, data)
    assert any(body.integers for body in found.inside)
    check(found, path, data, tmp_path)
    check(found.meeting(min_sqnr=45.0), path, data, tmp_path)


def test_one_figure_everywhere(net, tmp_path, capsys):
    made, page = tmp_path / "made.onnx", tmp_path / "page.html"
    data = tmp_path / "data.npz"
    np.savez(data, input=IMAGES)
    asked = ["quantize", str(net), "--data", str(data), "--repair", "none", "--force"]
    asked += ["-o", str(made), "--report", str(page)]
    assert run([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["left_out"]) == 6 and facts["judged_on"] == "6 left-out samples"
    first = {"input": IMAGES[facts["left_out"]]}
    figure = decibels(outputs(net, first), outputs(made, first))
    assert facts["sqnr_measured"] == pytest.approx(figure, abs=CLOSE)
    api = quantization(net, {"input": IMAGES}, repair=())
    assert told_of(api).expected == facts["sqnr"] and list(api.left_out) == facts["left_out"]
    assert run(asked) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    low, high = facts["sqnr_likely"]
    most = f"{facts['sqnr']:.2f} dB SQNR ({low:.1f} to {high:.1f}) likely on other samples"
    shown = page.read_text("utf-8")
    for place in (said, shown):
        assert f"good: {most}; same class for" in place
        assert f"{figure:.2f} dB SQNR" in place and "6 left-out samples" in place
    assert f"{facts['sqnr']:.2f} dB</" in shown  # the first tile
    assert "48 samples" not in said  # most of which parameters were chosen by


def test_few_samples_are_told_as_what_they_are(net):
    few = told_of(quantization(net, {"input": IMAGES[:12]}, repair=(), tune=False))
    assert not few.left_out and "12 samples that parameters were chosen by" in few.where
    one = told_of(quantization(net, {"input": IMAGES[:1]}, repair=(), tune=False))
    assert "the one sample" in one.where and one.metrics == one.everything
    for shown in few, one:
        assert shown.expected == pytest.approx(shown.metrics.sqnr, abs=CLOSE)
    assert few.likely is not None and one.likely is None


@pytest.mark.parametrize("count", [15, 16, 100, 2000])
def test_samples_that_are_left_out_are_spread_and_their_copies_with_them(count):
    data = Samples({"x": np.arange(count, dtype=np.float32)}, 1)
    numbers = unseen(data)
    assert len(numbers) == (0 if count < 16 else min(count // 8, 64))
    assert not numbers or (np.diff(numbers) > 7).all()
    twice = Samples({"x": np.tile(np.arange(count, dtype=np.float32), 2)}, 1)
    assert unseen(twice) == [*numbers, *(n + count for n in numbers)]


def test_nothing_is_chosen_by_samples_that_are_left_out(net):
    """Were they larger than all others, no range would reach as far."""
    plain = quantization(net, {"input": IMAGES}, repair=("bias",))
    loud = IMAGES.copy()
    loud[list(plain.left_out)] *= 3
    other = quantization(net, {"input": loud}, repair=("bias",))
    assert other.left_out == plain.left_out and other.graph.digest == plain.graph.digest
    assert told_of(other).metrics.sqnr < told_of(plain).metrics.sqnr


def drawn_network(seed, path):
    """Saves a small network of random layers, and returns samples of it."""
    rng = np.random.default_rng(seed)
    b = Builder(17)

    def weight(*shape):
        return b.init((rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32))

    y, channels = b.input("x", ["n", 3, 6, 6]), 3
    for kind in rng.integers(0, 7, int(rng.integers(1, 4))):
        if kind < 2:
            wide = int(rng.integers(4, 9))
            bias = [weight(wide)] if rng.random() < 0.6 else []
            y, channels = b.op("Conv", y, weight(wide, channels, 3, 3), *bias, pads=[1] * 4), wide
            y = b.op(("Relu", "Sigmoid", "Tanh")[int(rng.integers(3))], y)
        elif kind == 2:
            y = b.op("Add", y, b.op("Mul", y, weight(channels, 1, 1)))
        elif kind == 3:
            y, channels = b.op("Concat", y, b.op("Sigmoid", y), axis=1), 2 * channels
        elif kind == 4:  # NHWC, as TensorFlow's converter leaves it
            y = b.op("Transpose", b.op("Transpose", y, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
            y = b.op("Conv", y, weight(channels, channels, 1, 1))
            y = b.op("Transpose", b.op("Transpose", y, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
            y = b.op("Mul", y, weight(channels, 1, 1))
        elif kind == 5:  # nodes of a graph, mixed by its adjacency
            flat = b.op("Reshape", y, b.init(np.array([0, channels, 36])))
            near = (rng.random((36, 36)) < 0.1) + np.eye(36)
            mixed = b.op("MatMul", flat, b.init((near / near.sum(axis=0)).astype(np.float32)))
            y = b.op("Reshape", b.op("Relu", mixed), b.init(np.array([0, channels, 6, 6])))
        else:
            y = b.op("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    if rng.random() < 0.7:
        y = b.op("Flatten", b.op("GlobalAveragePool", y))
        b.output(b.op("Gemm", y, weight(10, channels), weight(10), transB=1))
    else:
        b.output(y)
        b.output(b.op("Conv", y, weight(2, channels, 1, 1), weight(2)))
    onnx.save(b.model(), path)
    count = int(rng.choice([8, 20, 40]))
    return {"x": rng.standard_normal((count, 3, 6, 6)).astype(np.float32)}


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 100))]
)
def test_what_is_told_of_any_network_is_delivered(seed, tmp_path):
    """With any target, type of weights, repair and goal."""
    path, rng = tmp_path / "drawn.onnx", np.random.default_rng(1000 + seed)
    data = drawn_network(seed, path)
    targets = ("ort", "qnn", "tensorrt", "openvino", "weight-only", "power-of-two")
    targets += "dynamic", "dynamic-rows"
    target, few = targets[seed % 8], (None, "int4", "int2")[int(rng.integers(3))]
    repairs = ((), ("learn",), ("bias",), ("equalize", "smooth", "bias"))
    asked: dict[str, Any] = {
        "target": target,
        "repair": repairs[(seed + seed // 8) % 4],
        "weights": None if target.startswith("dynamic") else few,
        "tune": bool(rng.random() < 0.3),
    }
    try:
        found = quantization(path, data, budget=5.0, warn=lambda text: None, **asked)
    except UnsupportedModelError as error:
        assert target == "dynamic-rows" and "nothing in the model" in error.what
        return
    start = told_of(found).everything.sqnr
    goals: dict[int, Any] = {
        0: lambda: found,
        1: lambda: found.meeting(min_sqnr=start + 6),
        2: lambda: found.meeting(min_sqnr=start + 10, fallback="float"),
        3: lambda: found.meeting(max_drop=0.02),
    }
    if found.samples is not None and asked["target"] == "ort":
        goals[4] = lambda: found.within(max_bytes=file_size(found.graph) + 200)
        goals[5] = lambda: found.within(min_sqnr=start + 3)
    check(goals[int(rng.integers(len(goals)))](), path, data, tmp_path)


# ---- outputs of different ranges ---------------------------------------------------------------


def detector(path, *, joined=True):
    rng = np.random.default_rng(3)
    b = Builder(17)
    y = b.input("x", ["n", 3, 8, 8])
    weight = (rng.standard_normal((8, 3, 3, 3)) * 0.3).astype(np.float32)
    y = b.op("Relu", b.op("Conv", y, b.init(weight), pads=[1] * 4))
    y = b.op("Conv", y, b.init((rng.standard_normal((6, 8, 1, 1)) * 0.5).astype(np.float32)))
    boxes = b.op("Split", y, b.init(np.array([4, 2])), axis=1, outputs=2)
    scores = b.op("Sigmoid", f"{boxes}:1")
    boxes = b.op("Mul", b.op("Exp", boxes), b.init(np.float32(60)))
    if not joined:
        b.output(boxes)
        b.output(scores)
    else:
        y = b.op("Concat", boxes, scores, axis=1)
        b.output(b.op("Transpose", y, perm=[0, 2, 3, 1]))
    onnx.save(b.model(), path)
    return {"x": (rng.standard_normal((24, 3, 8, 8)) * 0.7).astype(np.float32)}


def test_scores_beside_boxes_are_told(tmp_path):
    path = tmp_path / "detector.onnx"
    data = detector(path)
    found = quantization(path, data, target="qnn", repair=(), tune=False)
    check(found, path, data, tmp_path)
    (output,) = told_of(found).outputs
    first = {"x": data["x"][list(found.left_out)]}
    given, made = outputs(path, first)[0], outputs(tmp_path / "made.onnx", first)[0]
    for part, columns in zip(output.parts, (slice(0, 4), slice(4, 6)), strict=True):
        real, got = given[..., columns], made[..., columns]
        assert part.sqnr_db == pytest.approx(decibels([real], [got]), abs=CLOSE)
        assert (part.low, part.high) == (real.min(), real.max())
    assert output.parts[1].sqnr_db < 15 < output.sqnr_db
    told = found.doubts()[0]
    assert f"'{output.parts[1].name}'" in told and "Split" in told
    # What is advised helps: two outputs, or a float Concat.
    data = detector(path, joined=False)
    apart = quantization(path, data, target="qnn", repair=(), tune=False)
    assert not told_of(apart).mixed() and told_of(apart).outputs[1].sqnr_db > 25


# ---- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [-np.inf, -1e30, -1e4, np.finfo(np.float32).min])
@pytest.mark.parametrize(
    ("kind", "target"), [("Add", "ort"), ("Add", "qnn"), ("Where", "ort"), ("scores", "qnn")]
)
def test_masks_are_no_signal(kind, fill, target, tmp_path):
    """Whether logits are masked or what a Softmax reads: figures are of what is computed."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return (rng.standard_normal(shape) / 4).astype(np.float32)

    b = Builder(17)
    x = b.input("x", ["n", 8, 16])
    scores = b.op("MatMul", x, b.op("Transpose", x, perm=[0, 2, 1]))
    hidden = np.triu(np.ones((8, 8), bool), 1)
    if kind == "scores":
        scores = b.op("Add", scores, b.init(np.where(hidden, fill, 0).astype(np.float32)))
    y = b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("MatMul", x, b.init(drawn(16, 16))))
    y = b.op("MatMul", y, b.init(drawn(16, 12)))
    masked = np.arange(12) % 4 == 0
    if kind == "Add":
        y = b.op("Add", y, b.init(np.where(masked, fill, 0).astype(np.float32)))
    elif kind == "Where":
        y = b.op("Where", b.init(masked), b.init(np.float32(fill)), y)
    b.output(y)
    path = tmp_path / "masked.onnx"
    onnx.save(b.model(), path)
    data = {"x": drawn(24, 8, 16) * 4}
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantization(
            path,
            data,
            target=target,
            repair=("bias",),
            tune=kind == "Add" or fill == -1e4,
            warn=told.append,
        )
        shown = told_of(found)
    assert not told and 10 < shown.everything.sqnr < 60
    qb.save(found.graph, tmp_path / "made.onnx")
    given, made = outputs(path, data)[0], outputs(tmp_path / "made.onnx", data)[0]
    real = ~masked if kind != "scores" else masked | True
    wanted = decibels([given[..., real]], [made[..., real]])
    assert shown.everything.sqnr == pytest.approx(wanted, abs=CLOSE)


def test_the_samples_that_make_nan_are_named(tmp_path):
    b = Builder(17)
    x = b.input("x", ["n", 4])
    y = b.op("MatMul", x, b.init(np.eye(4, dtype=np.float32)))
    b.output(b.op("Sqrt", b.op("Relu", y)))
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    data = np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32)
    for number in (5, unseen(Samples({"x": data}, 1))[0]):
        bad = data.copy()
        bad[number, 2] = np.nan
        with pytest.raises(InputDataError) as caught:
            quantization(path, {"x": bad})
        assert f"in sample {number} (counted from 0)" in caught.value.where
        folder = tmp_path / f"runs {number}"
        folder.mkdir()
        for part in range(6):
            np.savez(folder / f"part{part}.npz", x=bad[4 * part : 4 * part + 4])
        with pytest.raises(InputDataError) as caught:
            quantization(path, folder)
        assert f"in sample {number} ('part{number // 4}.npz')" in caught.value.where


def test_arithmetic_of_indices_is_not_counted_as_float(tmp_path):
    b = Builder(17)
    x = b.input("x", ["n", 4, 8])
    y = b.op("MatMul", x, b.init(np.eye(8, dtype=np.float32)))
    extent = b.op("Gather", b.op("Shape", x), b.init(np.array([0])))
    extent = b.op("Mul", b.op("Add", extent, b.init(np.array([1]))), b.init(np.array([1])))
    extent = b.op("Sub", extent, b.init(np.array([1])))
    y = b.op("Reshape", y, b.op("Concat", extent, b.init(np.array([32])), axis=0))
    b.output(b.op("Relu", y))
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    data = {"x": np.random.default_rng(0).standard_normal((8, 4, 8)).astype(np.float32)}
    found = quantization(path, data, repair=(), tune=False)
    assert found.made.decision.plan.floats == {}


# ---- data in a wrong range -----------------------------------------------------------------------


def _gated(b, x, rng):
    """Two layers of gates, as recurrent networks and squeezed channels have them."""
    for _ in range(2):
        weight = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
        y = b.op("MatMul", x, b.init(weight))
        x = b.op("Mul", b.op("Sigmoid", y), b.op("Tanh", y))
    return x


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "ends", ["regression", "gates", "transposed", "scaled inside", "residual", "recurrent"]
)
def test_pixels_for_a_model_of_numbers_around_one_are_told(ends, seed):
    """Networks without normalization or classes; right data and scaling inside are not told."""
    rng = np.random.default_rng(seed)
    b = Builder(17)
    x = b.input("x", ["n", 64])
    if ends == "scaled inside":
        x = b.op("Mul", x, b.init(np.float32(1 / 255)))
    if ends == "gates":
        y = _gated(b, x, rng)
    elif ends == "recurrent":
        steps = b.op("Transpose", b.op("Reshape", x, b.init(np.array([-1, 8, 8]))), perm=[1, 0, 2])
        drawn = [rng.standard_normal((1, 96, side)) / np.sqrt(side) for side in (8, 32)]
        weights = [b.init(array.astype(np.float32)) for array in drawn]
        layer = b.op("GRU", steps, *weights, outputs=2, hidden_size=32)
        y = b.op("Squeeze", f"{layer}:1", b.init(np.array([0])))
    else:
        if ends == "transposed":
            x = b.op("Reshape", x, b.init(np.array([-1, 8, 8])))
            x = b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1]), b.init(np.array([-1, 64])))
        weight = (rng.standard_normal((64, 32)) / 8).astype(np.float32)
        y = b.op("Relu", b.op("MatMul", x, b.init(weight)))
        if ends == "residual":
            whole = b.init((rng.standard_normal((32, 64)) / 6).astype(np.float32))
            y = b.op("Add", b.op("MatMul", y, whole), x)
    last = (rng.standard_normal((64 if ends in ("gates", "residual") else 32, 3)) / 4).astype(
        np.float32
    )
    b.output(b.op("MatMul", y, b.init(last)))
    graph = canonical(b.model())
    right = rng.uniform(0, 1, (24, 64)).astype(np.float32)
    right[0, 0] = 1
    pixels = np.rint(255 * right).astype(np.float32)
    normal = (rng.standard_normal((24, 64)) * 255).astype(np.float32)
    if ends == "scaled inside":
        assert not misscaled(graph, Samples.of(graph.inputs, {"x": pixels}))
        return
    for count in (2, 24):
        assert not misscaled(graph, Samples.of(graph.inputs, {"x": right[:count]}))
        told = misscaled(graph, Samples.of(graph.inputs, {"x": pixels[:count]}))
        assert "'x'" in told and "255" in told
    loud = misscaled(graph, Samples.of(graph.inputs, {"x": normal}))
    assert ("gates" in loud) == (ends == "gates")


def _smooth(rng, count):
    """Images of three channels with neighbours alike, around 0.45 as photographs are."""
    coarse = rng.uniform(-0.4, 0.4, (count, 3, 4, 4)) + rng.uniform(0.25, 0.65, (count, 1, 1, 1))
    fine = rng.normal(0, 0.05, (count, 3, 16, 16))
    return np.clip(np.kron(coarse, np.ones((4, 4))) + fine, 0, 1).astype(np.float32)


def _regression(rng, images, norm):
    """A model of one number, whose first norm has seen the images: folded, kept, or none."""
    b = Builder(17)
    x = b.input("x", ["n", 3, 16, 16])
    weight = rng.normal(0, 0.2, (24, 3, 3, 3)) + rng.normal(0, 0.1, (24, 1, 1, 1))
    bias, gamma, beta = rng.normal(0, 0.1, 24), rng.uniform(0.5, 1.5, 24), rng.normal(0, 0.3, 24)
    probe = Builder(17)
    seen = probe.input("x", ["n", 3, 16, 16])
    probe.output(probe.op("Conv", seen, probe.init(weight.astype(np.float32)), pads=[1] * 4))
    (sums,) = qb.evaluate(canonical(probe.model()), {"x": images}).values()
    mean, scale = sums.mean(axis=(0, 2, 3)), sums.std(axis=(0, 2, 3))
    if norm == "folded":
        weight, bias = weight * (gamma / scale).reshape(-1, 1, 1, 1), beta - gamma * mean / scale
    operands = [b.init(weight.astype(np.float32))]
    operands += [] if norm == "kept" else [b.init(bias.astype(np.float32))]
    y = b.op("Conv", x, *operands, pads=[1] * 4)
    if norm == "kept":
        constants = (gamma, beta, mean, scale**2)
        y = b.op("BatchNormalization", y, *(b.init(c.astype(np.float32)) for c in constants))
    y = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", y)))
    b.output(b.op("MatMul", y, b.init(rng.normal(0, 0.2, (24, 1)).astype(np.float32))))
    return canonical(b.model())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("norm", ["folded", "kept", "none"])
def test_a_norm_of_training_tells_data_of_another_mean(norm, seed):
    """Folded or kept, of a model that is no classifier; without one nothing tells it."""
    rng = np.random.default_rng(seed)
    images, others = _smooth(rng, 64), _smooth(rng, 32)
    graph = _regression(rng, images, norm)

    def told(x):
        return misscaled(graph, Samples.of(graph.inputs, {"x": x.astype(np.float32)}))

    assert not told(others) and not told(others * 0.6 + 0.1)
    normalized = (others - others.mean()) / others.std()
    assert bool(told(normalized)) == (norm != "none")
    assert bool(told((normalized - 0.45) / 0.225)) == (norm != "none")
    if norm == "folded":
        assert "trained for one of about 0." in told(others - others.mean())
    of_normalized = _regression(rng, (images - 0.45) / 0.225, norm)
    right = Samples.of(of_normalized.inputs, {"x": normalized.astype(np.float32)})
    assert not misscaled(of_normalized, right)


@pytest.mark.parametrize("tail", [0.5, 1.0, 1.6])
@pytest.mark.parametrize("count", [6, 8, 16, 40])
def test_what_is_likely_on_others_holds_most_of_them(count, tail):
    rng = np.random.default_rng(count)
    population = np.exp(rng.normal(-8, tail, 4000))
    whole, inside, widths = -10 * np.log10(population.mean()), 0, []
    for _ in range(200):
        low, high = likely_sqnr(rng.choice(population, count)) or (0, 0)
        inside += low <= whole <= high
        widths.append(high - low)
    assert inside >= 170  # of 200
    assert np.median(widths) < 8 * tail * (1 + tail) / np.sqrt(count) * 2


def test_others_have_what_is_told_to_be_likely(net, tmp_path):
    found = quantization(net, {"input": IMAGES}, repair=())
    shown, path = told_of(found), tmp_path / "made.onnx"
    qb.save(found.graph, path)
    fresh = {"input": np.load(MODELS / "digits_test.npz")["x"][48:]}
    assert shown.likely is not None
    low, high = shown.likely
    assert low <= decibels(outputs(net, fresh), outputs(path, fresh)) <= high
    assert low < shown.expected < high and f"({low:.1f} to {high:.1f})" in shown.on_others


def test_what_was_learned_from_samples_says_less_of_others(net):
    found = quantization(net, {"input": IMAGES}, weights="int4", repair=("learn",), tune=False)
    shown, (step,) = told_of(found), (s for s in found.made.repairs if s.step == "learn")
    assert step.applied and step.optimism > 0
    assert 0 < shown.everything.sqnr - shown.expected < step.optimism


@pytest.mark.parametrize("seed", range(100))
def test_what_is_expected_is_closer_than_a_few_samples_say(seed):
    """Of a population whose errors are spread as those of networks are, in the mean of draws."""
    rng = np.random.default_rng(seed)
    tail, count = rng.uniform(0.5, 1.5), int(rng.integers(3, 33))
    population = np.exp(rng.normal(-8, tail, 4000))
    whole, off = -10 * np.log10(population.mean()), np.zeros(2)
    for _ in range(60):
        drawn = rng.choice(population, 8 * count)
        most, likely = expected_sqnr(drawn[:count], drawn[count:])
        unseen = drawn[:count]
        assert likely is not None and likely[0] <= most <= likely[1]
        off += np.abs([most - whole, -10 * np.log10(unseen.mean()) - whole])
    assert off[0] < 0.75 * off[1]  # about half, in the mean of populations


def test_left_out_samples_that_contradict_count_alone():
    rng = np.random.default_rng(0)
    unseen = np.exp(rng.normal(-6, 0.5, 8))
    alone = -10 * np.log10(unseen.mean())
    far, likely = expected_sqnr(unseen, np.full(56, 1e-4 * unseen.mean()))
    assert abs(far - alone) < CLOSE and likely == likely_sqnr(unseen)
    # Luck of few samples: none can come closer than those that parameters were chosen by.
    lucky = expected_sqnr(unseen, np.full(56, 1e4 * unseen.mean()))[0]
    assert alone - 40 < lucky < alone - 39
    many = np.exp(rng.normal(-6, 0.5, 64))
    most = expected_sqnr(many, many * 0.5)[0]
    assert abs(most + 10 * np.log10(many.mean())) < CLOSE


def test_a_step_gains_more_on_its_own_samples_than_on_others():
    """By two thirds of what half of the samples show: the errors of learned means, exactly.

    A mean of n samples of noise is learned: these are left with 1 - 1/n of its power, others see
    1 + 1/n, and 1 + 2/n where half of them taught.
    """
    n = 64
    half, own, others = (-10 * np.log10(1 + k / n) for k in (2, -1, 1))
    assert steps.ALL_BY_HALF * (own - half) == pytest.approx(own - others, abs=CLOSE)
    path = MODELS / "digits_mlp_float.onnx"
    images = np.load(MODELS / "digits_test.npz")["x"][:24]
    found = quantization(path, {"input": images}, repair=("learn",), tune=False)
    state = found.made
    (step,) = (s for s in state.repairs if s.step == "learn")
    assert step.applied and 0.3 < step.optimism < 6
    shown = told_of(found)
    assert shown.optimism == pytest.approx(shown.everything.sqnr - shown.expected, abs=CLOSE)


@pytest.mark.parametrize("seed", [3, 8, 11])
def test_a_goal_is_met_by_what_is_printed(seed, tmp_path):
    data = drawn_network(seed, tmp_path / "drawn.onnx")
    found = quantization(tmp_path / "drawn.onnx", data, weights="int4", repair=("learn",))
    goal = told_of(found).expected + 4
    assert told_of(found.meeting(min_sqnr=goal)).expected >= goal
    every = told_of(found.meeting(min_sqnr=300.0))
    assert every.expected == np.inf and "the same outputs" in every.judged
    assert first_sentence(found.meeting(min_sqnr=300.0)).startswith("nothing is quantized")


def test_what_onnxruntime_computes_in_float_is_counted(net):
    options: list[dict[str, Any]] = [
        {}, {"formats": {"*": format_of("uint16")}}, {"target": "a16w8"}
    ]  # fmt: skip
    said = [
        dict(verdict(quantization(net, {"input": IMAGES[:12]}, repair=(), tune=False, **wanted)))
        for wanted in options
    ]
    told = [
        "16-bit activations, which onnxruntime computes in float" in x["operators"] for x in said
    ]
    assert told == [False, True, False]


def test_what_reaches_further_is_as_far_as_the_tail_is_long():
    b = Builder()
    b.output(b.op("Relu", b.input("x", [1, 4])))
    graph = canonical(b.model())
    flat = [{"x": np.full((1, 4), -1, np.float32)} for _ in range(30)]
    assert [sample["x"].tolist() for sample in reaching_further(graph, flat)] == [[[-1.0] * 4]]
    ranks = np.arange(1, 101)
    heavy = [{"x": np.full((1, 4), rank**-0.5, np.float32)} for rank in ranks]
    (further,) = reaching_further(graph, heavy)
    index = np.mean(np.log((ranks[:10] / 11.0) ** -0.5))
    # a product that is rounded to float32
    np.testing.assert_allclose(further["x"], 27**index, rtol=1e-6)
    assert not list(reaching_further(graph, heavy[:19]))  # too few to tell
    assert not list(reaching_further(graph, [{"x": np.zeros((1, 4), np.float32)}] * 30))


def test_the_interval_holds_what_data_of_long_tails_give():
    rng = np.random.default_rng(5)
    b = Builder()
    hidden = b.op("Relu", b.op("Gemm", b.input("x", ["n", 6]),
        b.init(rng.standard_normal((6, 16)).astype(np.float32))))  # fmt: skip
    b.output(b.op("Gemm", hidden, b.init(rng.standard_normal((16, 3)).astype(np.float32))))
    graph, held, tails = canonical(b.model()), 0, 0
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        seen, fresh = (np.exp(rng.standard_normal((n, 6))).astype(np.float32) for n in (100, 300))
        made = quantization(graph, {"x": seen}, repair=(), tune=False)
        told = told_of(made)
        assert told.likely is not None
        figure = decibels(
            *(list(qb.evaluate(g, {"x": fresh}).values()) for g in (graph, made.graph))
        )
        held += told.likely[0] <= figure <= told.likely[1]
        tails += "reach much further" in told.on_others
    assert held >= 0.8 * DRAWS and tails > DRAWS // 2
