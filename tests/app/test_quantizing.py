"""``qdqbridge.quantize`` and what it is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.simulation.user_metric import LabelledTop1
from qdqbridge.errors import InputDataError
from tests.places import TESTS

MODELS = TESTS / ".." / "models"
FLOAT = MODELS / "digits_mlp_float.onnx"
IMAGES = np.load(MODELS / "digits_test.npz")["x"][:48]
LABELS = np.load(MODELS / "digits_test.npz")["labels"][:48]
ROUGH: dict[str, Any] = {"chooser": "minmax", "repair": (), "weights": "int4"}


def sqnr(graph):
    (real,) = qb.evaluate(qb.load(FLOAT), {"input": IMAGES}).values()
    (rough,) = qb.evaluate(graph, {"input": IMAGES}).values()
    wide = real.astype(np.float64)
    return 10 * np.log10(np.sum(wide**2) / np.sum((wide - rough) ** 2))


def test_files_folders_and_arrays_are_the_same_data(tmp_path):
    (tmp_path / "parts").mkdir()
    np.savez(tmp_path / "parts" / "a.npz", input=IMAGES[:20])
    np.savez(tmp_path / "parts" / "b.npz", input=IMAGES[20:])
    np.savez(tmp_path / "whole.npz", input=IMAGES)
    alone = qb.quantize(qb.load(FLOAT), {"input": IMAGES}, repair=())
    assert qb.quantize(FLOAT, tmp_path / "parts", repair=()).digest == alone.digest
    whole = qb.quantize(str(FLOAT), str(tmp_path / "whole.npz"), repair=())
    assert whole.digest == alone.digest


def test_a_goal_is_met():
    rough = qb.quantize(FLOAT, {"input": IMAGES}, **ROUGH)
    fine = qb.quantize(FLOAT, {"input": IMAGES}, **ROUGH, min_sqnr=sqnr(rough) + 2)
    assert sqnr(fine) > sqnr(rough) + 2 - 0.01
    goal: dict[str, Any] = {"min_sqnr": sqnr(rough) + 2, "fallback": "float"}
    floats = qb.quantize(FLOAT, {"input": IMAGES}, **ROUGH, **goal)
    assert {"int4", "int8"} <= types(fine) and "int8" not in types(floats)


def types(graph):
    return {str(v.quant.params.storage_dtype) for v in graph.values() if v.quant is not None}


def test_a_metric_of_the_user_decides():
    asked = []

    def right(outputs):
        asked.append(list(outputs))
        return float(np.mean(outputs["logits"].argmax(axis=1) == LABELS))

    made = quantization(FLOAT, {"input": IMAGES}, **ROUGH, metric=right).meeting(max_drop=0.0)
    assert asked and set(map(tuple, asked)) == {("logits",)}
    assert made.fallback is not None and made.fallback.metrics.drop <= 0
    (found,) = qb.evaluate(made.graph, {"input": IMAGES}).values()
    assert right({"logits": found}) >= right(qb.evaluate(qb.load(FLOAT), {"input": IMAGES}))


def test_the_report_is_of_what_came_out(tmp_path):
    made = quantization(FLOAT, {"input": IMAGES}, **ROUGH)
    fine = made.meeting(min_sqnr=sqnr(made.graph) + 2)
    assert fine.fallback is not None and fine.fallback.reverted
    for each, name in ((made, "rough.html"), (fine, "fine.html")):
        each.report(tmp_path / name)
    rough, good = ((tmp_path / n).read_text("utf-8") for n in ("rough.html", "fine.html"))
    assert made.graph.digest[:12] in rough and fine.graph.digest[:12] in good
    reasons = [each.reason for each in fine.fallback.reverted]
    assert all(reason in good and reason not in rough for reason in reasons)


def test_a_profile_needs_no_data_but_a_goal_does():
    profile = qb.profile(FLOAT, {"input": IMAGES})
    made = quantization(FLOAT, None, profile=profile)
    assert made.samples is None and made.graph.canonical
    with pytest.raises(InputDataError, match="no data is given"):
        made.meeting(min_sqnr=10)
    with pytest.raises(InputDataError, match="no data is given"):
        qb.quantize(FLOAT, None)


@pytest.mark.parametrize("key", ["target", "chooser", "weights"])
def test_names_that_stand_for_nothing(key):
    wrong: dict[str, Any] = {key: "abacus"}
    with pytest.raises(qb.QdqBridgeError) as caught:
        qb.quantize(FLOAT, {"input": IMAGES}, **wrong)
    assert "abacus" in str(caught.value)


def accuracy_of(graph, data, labels):
    (found,) = qb.evaluate(graph, data).values()
    return float(np.mean(found.argmax(axis=1) == labels))


def test_labels_measure_the_float_model_and_the_quantized_one(tmp_path, caplog):
    np.save(tmp_path / "y.npy", LABELS)
    made = quantization(FLOAT, {"input": IMAGES}, **ROUGH, labels=tmp_path / "y.npy")
    scores = made.scores()
    assert scores is not None and scores[1] is not None
    every, few = scores[0], scores[1]
    assert every.samples == len(IMAGES) and few.samples == len(made.left_out)
    assert every.reference == accuracy_of(made.original, {"input": IMAGES}, LABELS)
    assert every.score == accuracy_of(made.graph, {"input": IMAGES}, LABELS)
    rows = list(made.left_out)
    assert few.score == accuracy_of(made.graph, {"input": IMAGES[rows]}, LABELS[rows])
    kept = made.meeting(max_drop=0.0)
    assert accuracy_of(kept.graph, {"input": IMAGES}, LABELS) >= every.reference
    with caplog.at_level("INFO", "qdqbridge"):
        qb.quantize(FLOAT, {"input": IMAGES}, **ROUGH, metric=lambda outputs: 0.25)
    assert "0.25, of the float model 0.25" in caplog.text


def test_a_metric_is_asked_of_all_samples_in_their_order():
    many = np.concatenate([IMAGES] * -(-300 // len(IMAGES)))[:300]
    many = many + np.arange(300, dtype=np.float32).reshape(-1, 1, 1, 1) / 1e4
    counts: list[int] = []

    def counted(outputs):
        counts.append(len(outputs["logits"]))
        return 1.0

    made = quantization(FLOAT, {"input": many}, **ROUGH, metric=counted)
    made.meeting(max_drop=0.0)
    assert set(counts) == {300}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"labels": LABELS[:-1]}, "do not fit"),
        ({"labels": LABELS.astype(np.float32)}, "not numbers of classes"),
        ({"labels": LABELS, "metric": lambda outputs: 1.0}, "two measures"),
        ({"metric": lambda outputs: math.nan}, "the metric gives nan"),
    ],
)
def test_a_measure_that_does_not_fit_is_refused_before_the_work(given, word):
    with pytest.raises(InputDataError, match=word):
        qb.quantize(FLOAT, {"input": IMAGES}, **given)


@pytest.mark.parametrize("seed", range(100))
def test_labels_are_compared_with_the_classes_of_any_output(seed):
    rng = np.random.default_rng(seed)
    count, classes = int(rng.integers(1, 9)), int(rng.integers(2, 7))
    inner = tuple(int(n) for n in rng.integers(2, 5, rng.integers(0, 3)))
    kind = ["scores", "sequence", "index"][seed % 3]
    labels = rng.integers(0, classes, (count, *inner)).astype([np.int32, np.int64][seed % 2])
    if kind == "sequence" and len(inner) == 1:  # classes last: N, T, C
        scores = rng.standard_normal((count, *inner, classes)).astype(np.float32)
        wanted = scores.argmax(-1)
    elif kind == "index":
        scores = wanted = rng.integers(0, classes, (count, *inner))
    else:
        if inner == (classes,):  # which axis is which nobody can say: then they are last
            labels, inner = labels[:, 0], ()
        scores = rng.standard_normal((count, classes, *inner)).astype(np.float32)
        wanted = scores.argmax(1)
    metric = LabelledTop1(labels)
    assert metric({"boxes": np.zeros(3, np.float32), "y": scores}) == np.mean(wanted == labels)
    assert LabelledTop1(wanted)({"y": scores}) == 1
