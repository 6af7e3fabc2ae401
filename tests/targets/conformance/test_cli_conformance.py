"""The verb ``conformance``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from qdqbridge.app import conforming
from qdqbridge.app.cli.failures import run


def test_an_engine_that_is_right(capsys: pytest.CaptureFixture[str]):
    assert run(["conformance", "--engine", "onnxruntime", "--only", "quantize_infinity"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "4", "0", "0", "0", "0"]


def test_an_engine_that_is_wrong(capsys: pytest.CaptureFixture[str]):
    words = ["conformance", "--engine", "onnx.reference", "--only", "quantize_infinity", "--json"]
    assert run(words) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["wrong"] == 4
    assert told["cases"][0]["cause"].startswith("expected 255, got 0 at [0] of output 0")


def test_a_name_that_no_case_has(capsys: pytest.CaptureFixture[str]):
    assert run(["conformance", "--only", "nothing_of_that_name"]) == 3
    assert "no case of the conformance suite is named like" in capsys.readouterr().err


class Dying:
    """A case whose model ends the process that unpickles it."""

    def __reduce__(self):
        import os

        return os._exit, (7,)


def test_a_process_that_dies_is_a_crash_and_the_next_case_runs(monkeypatch: pytest.MonkeyPatch):
    first = iter([True])

    def feeds(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"x": Dying()} if next(first, False) else {**inputs}

    monkeypatch.setattr(conforming, "dict", feeds, raising=False)
    found = list(conforming.conform("onnxruntime", "quantize_infinity_*int8"))
    assert [result.outcome for result in found] == ["crashed", "equal"]
