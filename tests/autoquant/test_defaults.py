"""What the defaults try by themselves: room for few samples, fewer operators, and a warning."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.choosers import MinMax
from qdqbridge.autoquant.few_samples import ENOUGH, different, with_room
from qdqbridge.autoquant.presets import STEP, chosen
from qdqbridge.autoquant.quantize import QuantizeOptions
from qdqbridge.autoquant.samples import Samples
from qdqbridge.autoquant.targets import ORT, POWER_OF_TWO
from qdqbridge.quantizing import quantization
from tests.onnx_models import Builder

MODELS = Path(__file__).resolve().parents[2] / "models"
CNN = MODELS / "digits_cnn_float.onnx"
IMAGES = np.load(MODELS / "digits_test.npz")["x"]


def sqnr(model, graph, inputs):
    (real,) = qb.evaluate(qb.load(model), inputs).values()
    (rough,) = qb.evaluate(graph, inputs).values()
    wide = real.astype(np.float64)
    return 10 * np.log10(np.sum(wide**2) / np.sum((wide - rough) ** 2))


@pytest.mark.parametrize("repeated", [1, 32])
def test_one_sample_leaves_room_for_others(repeated):
    one = {"input": np.repeat(IMAGES[:1], repeated, axis=0)}
    unseen = {"input": IMAGES[100:200]}
    found = sqnr(CNN, qb.quantize(CNN, one, repair=()), unseen)
    extremes = sqnr(CNN, qb.quantize(CNN, one, repair=(), chooser="minmax"), unseen)
    assert found > extremes + 6


def test_room_shrinks_with_samples_and_is_not_forced():
    graph = qb.load(CNN)
    for count, margin in ((1, 2.0), (4, 1.5)):
        samples = Samples.of(graph.inputs, {"input": np.repeat(IMAGES[:count], 3, axis=0)})
        assert different(samples) == count
        assert with_room(ORT, count).chooser == MinMax(margin)
    assert different(Samples.of(graph.inputs, {"input": IMAGES[:50]})) == ENOUGH
    assert with_room(ORT, ENOUGH) is ORT
    own = QuantizeOptions(chooser="mse").described()
    assert with_room(own, 1) is own  # a chooser that the user names stays
    assert with_room(POWER_OF_TWO, 0) is POWER_OF_TWO


def masked(path):
    """Attention whose mask is -1e4: no scale of 8 bits resolves that and the scores beside it."""
    rng = np.random.default_rng(0)
    b = Builder(17)
    x = b.input("x", ["n", 8, 16])
    weights = (rng.standard_normal((3, 16, 16)) / 4).astype(np.float32)
    q, k, v = (b.op("MatMul", x, b.init(weight)) for weight in weights)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    mask = np.triu(np.full((8, 8), -1e4, np.float32), 1)
    shares = b.op("Softmax", b.op("Add", scores, b.init(mask)), axis=-1)
    b.output(b.op("MatMul", shares, v))
    onnx.save(b.model(), path)
    return path


def test_fewer_operators_run_on_integers_where_all_are_bad(tmp_path):
    path = masked(tmp_path / "f.onnx")
    rng = np.random.default_rng(1)
    x, unseen = (rng.standard_normal((48, 8, 16)).astype(np.float32) for _ in range(2))
    made = quantization(path, {"x": x})
    first = made.made.repairs[0]
    assert first.step == STEP and first.applied and "products" in first.told
    assert first.before is not None and first.after is not None
    assert first.after > first.before + 3
    kinds = {node.op.name for node in made.made.decision.plan.rules}
    assert kinds == {"MatMul"}
    everything = qb.quantize(path, {"x": x}, repair=())
    assert sqnr(path, made.graph, {"x": unseen}) > sqnr(path, everything, {"x": unseen}) + 6


def test_what_is_good_or_wished_for_is_left_alone():
    graph = qb.load(CNN)
    samples = Samples.of(graph.inputs, {"input": IMAGES[:48]})
    options = QuantizeOptions()
    assert chosen(graph, samples, options) == (options, None)
    wished = QuantizeOptions(only=["Conv"], weights="int2")
    assert chosen(graph, samples, wished) == (wished, None)


def test_bad_outputs_are_told_with_what_mends_them(caplog):
    rough: dict[str, Any] = {"weights": "int2", "repair": (), "chooser": "minmax"}
    made = quantization(CNN, {"input": IMAGES[:48]}, **rough)
    warning = made.doubt()
    names = [node.name for node in made.made.decision.plan.rules]
    assert "--min-sqnr" in warning and any(f"--exclude '{name}'" in warning for name in names)
    assert quantization(CNN, {"input": IMAGES[:48]}, repair=()).doubt() == ""
    with caplog.at_level(logging.WARNING):
        qb.quantize(CNN, {"input": IMAGES[:48]}, **rough)
    assert warning in caplog.text
