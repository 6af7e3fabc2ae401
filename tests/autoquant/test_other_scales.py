"""Where no range is stored, what repair gains on the data costs little on data of other scales."""

import numpy as np
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair import steps
from qdqbridge.autoquant.repair.steps import DEFAULT
from qdqbridge.autoquant.repair.sweep import MOST_LOST, SCALES, OtherScales
from qdqbridge.core.graph.interpreter import evaluate
from tests.autoquant.float_models import quantize_model, quantize_plainly
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

SEEDS, GAINED = (1, 2, 3), 2.0
"""Networks that lose 7 to 12 dB at another scale by plain learning; gains are 2.4 dB and more."""
IMAGES = np.load(MODELS / "digits_test.npz")["x"]


def biased(seed, end=""):
    """A network whose loud channels are those of its biases on tiny data, and others elsewhere."""
    rng, loud = np.random.default_rng(seed), np.geomspace(0.01, 1, 32)
    b = Builder(17)
    first, last = rng.standard_normal((8, 32)) * loud, rng.standard_normal((32, 4))
    y = b.op("MatMul", b.input("x", ["n", 8]), b.init(first.astype(np.float32)))
    y = b.op("Relu", b.op("Add", y, b.init(loud[::-1].astype(np.float32))))
    y = b.op("MatMul", y, b.init(last.astype(np.float32)))
    b.output(b.op(end, y) if end else y, ["n", 4])
    return canonical(b.model())


def drawn(seed, count):
    return 4 * np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def quantized(graph, data, repair):
    """All of the data are calibrated with: none is left out to tell how close others come."""
    return quantize_model(
        graph, {"x": data}, "weight-only", weights="int4", repair=repair, tune=False
    )


def sqnr(graph, other, x):
    (wanted,), (got,) = (evaluate(each, {"x": x})[0].values() for each in (graph, other))
    return 10 * np.log10(np.sum(wanted**2.0) / np.sum((got - wanted) ** 2.0))


@pytest.mark.parametrize("repair", [("smooth",), DEFAULT], ids="-".join)
def test_repair_by_data_255_times_too_small_costs_little(repair):
    """Tiny data leave only biases to look at; what repair made of these lost 4 and 5 dB."""
    graph = biased(0)
    seen, unseen = drawn(9, 32), drawn(10, 200)
    plain, repaired = (quantized(graph, seen / 255, steps) for steps in ((), repair))
    assert sqnr(graph, repaired.graph, unseen) > sqnr(graph, plain.graph, unseen) - MOST_LOST
    refused = [record for record in repaired.repairs if "it would lose" in record.outcome]
    assert refused and not any(record.applied for record in refused)
    assert all("on data 256 times as large" in record.outcome for record in refused)


@pytest.mark.parametrize("name", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_repair_by_the_right_data_stays_as_it_is(name, monkeypatch):
    graph = qb.load(MODELS / f"digits_{name}_float.onnx")

    def repaired():
        made = quantize_model(
            graph, {"input": IMAGES[:48]}, "weight-only", weights="int4", block=32,
            repair=("round", "learn"), tune=False,
        )  # fmt: skip
        assert all(record.applied for record in made.repairs)
        return made.graph.digest

    judged = repaired()
    monkeypatch.setattr(OtherScales, "of", lambda decision, samples: None)
    assert repaired() == judged


def learned(seed):
    """Returns what learning told, and what it gains on data of the right scale and of 1/256."""
    graph = biased(seed)
    seen, unseen = drawn(seed + 9, 32), drawn(seed + 40, 200)
    plain, other = (quantized(graph, seen, repair) for repair in ((), ("learn",)))
    (record,) = other.repairs
    data = [unseen * factor for factor in (1, np.float32(1 / 256))]
    before, after = ([sqnr(graph, made.graph, x) for x in data] for made in (plain, other))
    return record, np.subtract(after, before)


def test_learning_is_tried_from_other_scales_too_where_it_loses_too_much():
    records, gains = zip(*map(learned, SEEDS), strict=True)
    for record in records:
        assert record.applied and "from samples of other scales too" in record.outcome
    assert np.min(gains) > 0 and np.all(np.mean(gains, axis=0) > GAINED)


def test_learning_is_tried_with_weights_held_harder_where_it_loses_too_much(monkeypatch):
    monkeypatch.setattr(steps, "_OTHERWISE", {"learn": steps._HELD})
    record, (gain, elsewhere) = learned(1)
    assert record.applied and "held 100 times as hard" in record.outcome
    assert gain > 1 and elsewhere > -MOST_LOST


def test_every_second_sample_is_there_at_another_scale_too():
    graph, data = biased(0), drawn(9, 32)
    samples = Samples.of(graph.inputs, {"x": data})
    mixed = OtherScales(graph, samples).among(samples)
    rows = np.concatenate([sample["x"] for sample in mixed])
    copies = rows[2::3]
    assert len(rows) == 48 and np.array_equal(rows[0::3], data[::2])
    assert np.array_equal(rows[1::3], data[1::2])
    factors = np.resize(np.array(SCALES, np.float32), 16)[:, None]
    assert np.array_equal(copies, data[::2] * factors)


def test_what_steps_lose_adds_up_where_they_are_kept():
    graph = biased(0)
    scales = OtherScales(graph, Samples.of(graph.inputs, {"x": drawn(9, 32)}))
    plain, worse = (quantized(graph, drawn(9, 32), ()).graph for _ in range(2))
    found = {plain: 20.0, worse: 18.5}
    scales._sqnr = lambda graph: {256.0: found[graph]}
    assert [scales.refusal(plain, worse) for _ in range(2)] == ["", ""]
    told = scales.refusal(plain, worse)
    assert told == "it would lose 4.5 dB on data 256 times as large"
    assert scales.refusal(worse, plain) == "" and scales.refusal(plain, worse) == ""


def test_only_what_stores_no_range_is_judged_by_other_scales():
    graph, data = biased(0), {"x": drawn(9, 32)}
    samples = Samples.of(graph.inputs, data)
    for target, judged in (("weight-only", True), ("dynamic", True), ("ort", False)):
        made = quantize_plainly(graph, data, target)
        assert (OtherScales.of(made.decision, samples) is not None) == judged


def test_gates_that_end_a_network_are_judged_before_they_saturate():
    """Of shares of 0 and 1 one that flips would be all that counts."""
    plain, shares = (
        OtherScales(graph, Samples.of(graph.inputs, {"x": drawn(9, 32)}))._sqnr(
            quantized(graph, drawn(9, 32), ()).graph
        )
        for graph in (biased(0), biased(0, "Softmax"))
    )
    assert plain.keys() == shares.keys() == {1 / 256, 1 / 16, 16.0, 256.0}
    assert all(abs(plain[f] - shares[f]) < 1e-3 for f in plain)


def test_masks_constants_and_integers_have_no_scale():
    b = Builder(17)
    mask, ids = b.input("mask", ["n", 8]), b.input("ids", ["n", 8], TensorProto.INT64)
    y = b.op("Mul", b.op("Cast", ids, to=1), mask)
    b.output(b.op("MatMul", y, b.init(np.eye(8, 4, dtype=np.float32))), ["n", 4])
    graph = canonical(b.model())
    ones = np.tile(np.array([0, 1], np.float32), (6, 4))
    data = {"mask": ones, "ids": np.arange(48).reshape(6, 8)}
    scales = OtherScales(graph, Samples.of(graph.inputs, data))
    assert scales._judges() == {} and scales.refusal(graph, graph) == ""
