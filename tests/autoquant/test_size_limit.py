"""Bits per layer for a size, or as few bytes as a goal leaves."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.targets.profiles.export import file_size
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"][:64]
MODEL = MODELS / "digits_cnn_float.onnx"


@cache
def made() -> Quantization:
    return quantization(MODEL, {"input": IMAGES}, repair=(), tune=False)


def narrow(graph: Graph) -> int:
    """Returns how many weights have 4 bits."""
    stored = Counter(
        v.quant.params.storage_dtype.bits for v in graph.values() if v.is_constant and v.quant
    )
    return stored[4]


def test_a_size_is_kept_with_as_few_layers_as_it_needs() -> None:
    whole = file_size(made().graph)
    sizes, closeness, layers = [], [], []
    for share in (1.0, 0.85, 0.7):
        found = made().within(max_bytes=int(whole * share))
        outputs = found.outputs()
        assert outputs is not None
        sizes.append(file_size(found.graph))
        closeness.append(outputs.sqnr)
        layers.append(narrow(found.graph))
        assert sizes[-1] <= whole * share
    assert layers[0] == 0 < layers[1] <= layers[2]
    assert closeness[0] > closeness[1] > closeness[2]
    with pytest.raises(InputDataError, match="does not fit into 1,000 bytes"):
        made().within(max_bytes=1000)


def test_the_size_is_that_of_the_file_which_is_written(tmp_path: Path) -> None:
    """Names, nodes and shapes included, which are most of a small model's bytes."""
    whole = file_size(made().graph)
    path = tmp_path / "out.onnx"
    for most in (whole, whole - 4_000):
        graph = made().within(max_bytes=most).graph
        qb.save(graph, path, overwrite=True)
        assert whole - 12_000 < path.stat().st_size == file_size(graph) <= most
    with pytest.raises(InputDataError) as caught:
        made().within(max_bytes=path.stat().st_size // 4)
    least = int(str(caught.value.why).rsplit(maxsplit=1)[-1].replace(",", ""))
    assert file_size(made().within(max_bytes=least).graph) == least


def test_the_size_is_that_of_a_tflite_file(tmp_path: Path) -> None:
    data, out = tmp_path / "x.npz", tmp_path / "out.tflite"
    np.savez(data, input=IMAGES)
    plain = ["quantize", str(MODEL), "--data", str(data), "-o", str(out), "--repair", "none"]
    plain += ["--target", "tflite", "--chooser", "minmax", "--force"]
    assert run(plain) == 0
    most = out.stat().st_size - 4_000
    assert run([*plain, "--max-size", str(most)]) == 0
    assert out.stat().st_size <= most


def test_as_small_as_a_goal_leaves() -> None:
    shown = made().delivered()
    assert shown is not None
    best = max(shown.metrics, shown.everything, key=lambda metrics: metrics.nmse)
    found = made().within(min_sqnr=best.sqnr - 10)
    outputs = found.outputs()
    assert outputs is not None and outputs.sqnr >= best.sqnr - 10
    assert narrow(found.graph) > 0
    assert file_size(found.graph) < file_size(made().graph)
    half_a_point = made().within(max_drop=0.005)
    outputs = half_a_point.outputs()
    assert outputs is not None and outputs.drop <= 0.005
    better = made().within(min_sqnr=best.sqnr + 3)  # some layers stay float
    assert file_size(better.graph) > file_size(made().graph)
    with pytest.raises(InputDataError, match="no bits per layer are"):
        made().within(min_sqnr=best.sqnr, max_bytes=int(file_size(made().graph) * 0.75))


def test_the_curve_is_in_the_report(tmp_path: Path) -> None:
    found = made().within(max_drop=0.01)
    assert found.fallback is not None
    points = found.fallback.pareto
    assert len(points) >= 8
    assert [p.size for p in points] == sorted(p.size for p in points)
    assert points[0].sqnr_db < points[-1].sqnr_db and all(p.milliseconds > 0 for p in points)
    found.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "Size and time against quality" in text and f"{points[0].size:,}" in text


class Stop(Exception):
    """What ends a search in the middle."""


def test_a_search_goes_on_where_it_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, limit = tmp_path / "trials.json", int(file_size(made().graph) * 0.8)
    expected = made().within(max_bytes=limit)
    trials = _counted(monkeypatch)
    whole = made().within(max_bytes=limit, state=tmp_path / "whole.json")
    needed = len(trials)
    trials.clear()

    def stopping(done: int, total: int) -> None:
        assert done <= total
        if done == 7:
            raise Stop

    with pytest.raises(Stop):
        made().within(max_bytes=limit, state=state, progress=stopping)
    assert 5 <= len(json.loads(state.read_text("utf-8"))["trials"]) <= 7
    trials.clear()
    found = made().within(max_bytes=limit, state=state)
    assert len(trials) < needed
    assert found.graph.digest == whole.graph.digest == expected.graph.digest
    trials.clear()
    made().within(max_bytes=limit, state=state)
    assert len(trials) <= 1  # the real graph is compared with the float model
    other = quantization(MODEL, {"input": IMAGES[:32]}, repair=(), tune=False)
    with pytest.raises(InputDataError, match="trials of another model, data or target"):
        other.within(max_bytes=limit, state=state)
    state.write_text("{", "utf-8")
    with pytest.raises(InputDataError, match="holds no trials"):
        made().within(max_bytes=limit, state=state)
    with pytest.raises(InputDataError, match="cannot read the file of trials"):
        made().within(max_bytes=limit, state=tmp_path)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows with every run of the samples."""
    trials: list[int] = []
    ran = Simulation.run

    def counting(self: Simulation, *given: Any, **named: Any) -> Any:
        trials.append(1)
        return ran(self, *given, **named)

    monkeypatch.setattr(Simulation, "run", counting)
    return trials


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "x.npz", tmp_path / "out.onnx"
    np.savez(data, input=IMAGES)
    plain = ["quantize", str(MODEL), "--data", str(data), "-o", str(out), "--repair", "none"]
    plain += ["--chooser", "minmax", "--force"]
    assert run([*plain, "--max-size", "32KB", "--trials", str(tmp_path / "t.json")]) == 0
    assert "in int4 weights" in capfd.readouterr().out
    assert out.stat().st_size <= 32_000
    assert run([*plain, "--smallest", "--max-drop", "0.05"]) == 0
    for wrong in (["--smallest"], ["--max-size", "small"], ["--max-size", "0"]):
        assert run([*plain, *wrong]) == 3
