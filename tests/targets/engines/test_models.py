"""What the script that measures whole models gives to engines, and what it counts."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError
from tests.places import ROOT

SCRIPTS = ROOT / "scripts" / "engines"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``scripts/engines/engine_models.py``; what it imports is forgotten afterwards."""
    monkeypatch.syspath_prepend(SCRIPTS)
    for name in ("pattern_models", "engine_patterns", "engine_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("engine_models")


def test_an_input_that_no_memory_holds_is_refused(script: ModuleType) -> None:
    chance = np.random.default_rng(0)
    with pytest.raises(InputDataError, match="no input for this file") as caught:
        script.random_input(TensorType(DType.FLOAT32, (1, 1 << 30, 1 << 20)), chance)
    assert "1125899906842624 elements" in caught.value.why
    assert script.random_input(TensorType(DType.UINT8, ("n", 3)), chance).shape == (1, 3)


def test_of_equal_numbers_each_is_an_argmax(script: ModuleType) -> None:
    meant = np.array([[1.0, 3.0, 3.0], [1.0, 2.0, 3.0]])
    found = np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]])
    assert script.same_classes(meant, found).tolist() == [True, False]


def test_a_refused_export_says_nothing_of_the_rules(script: ModuleType) -> None:
    rows = [script.Row("m.onnx", "tool", "exported", taken) for taken in ("refused", "no", "whole")]
    found = [script.misjudged([(row.file, row.outcome)]) for row in rows[:2]]
    assert [len(kept) for kept, _ in found] == [0, 1]
    assert [row.ran for row in rows] == [False, False, True]
    own = script.Row("m.onnx", "tool", "original", "whole")
    assert next(script.worse([own, rows[0]])).startswith("worse: ")
