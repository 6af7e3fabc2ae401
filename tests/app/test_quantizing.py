"""``qdqbridge.quantize`` and what it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.errors import InputDataError, UnsupportedTargetError
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

    made = quantization(FLOAT, {"input": IMAGES}, **ROUGH).meeting(max_drop=0.0, metric=right)
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
    with pytest.raises(UnsupportedTargetError, match="there is no"):
        qb.quantize(FLOAT, {"input": IMAGES}, **wrong)
