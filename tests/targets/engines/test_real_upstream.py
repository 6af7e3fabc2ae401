"""The files of ``docs/upstream`` show what is said of them, on the versions that are pinned."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import qdqbridge
from qdqbridge.app.pipeline import check
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.options import EngineName, ProfileName
from qdqbridge.targets.engines.kinds import Judge
from qdqbridge.targets.profiles import Effect
from tests.places import ROOT
from tests.targets.engines.processor import PAIRS_SATURATE

FOLDER = ROOT / "docs" / "upstream"
with (FOLDER / "faults.csv").open(encoding="utf-8", newline="") as _file:
    FAULTS = list(csv.DictReader(_file))
PROFILES: dict[str, ProfileName] = {
    "qnn-htp": "qnn", "qnn-htp-v73": "qnn-v73", "openvino": "openvino",
    "onnxruntime-optimized": "ort",
}  # fmt: skip
FLOATS = ("openvino", "onnxruntime-optimized")
"""Engines that compute floats, too, and may have them wrong."""


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row["file"].removesuffix(".onnx"))
def test_the_fault_is_there_and_the_profile_says_so(
    row: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenVINO's kernels for AMX do not have one of its faults; those for vectors have all.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")
    path = FOLDER / row["file"]
    graph = qdqbridge.load(path)
    data = random_data(graph)
    with qdqbridge.open_engine(cast("EngineName", row["engine"]), path) as engine:
        if row["fault"] in ("refused", "crash"):
            with pytest.raises(UnsupportedTargetError) as caught:
                loaded_and_run(engine, data)
            assert ("crashed (SIG" in caught.value.why) == (row["fault"] == "crash")
        elif row["fault"] == "left":
            assert engine.taken().left
        else:
            assert engine.taken().takes_all or row["engine"] in FLOATS
            assert steps_off(engine, graph, data) > 2
    assert check(path, PROFILES[row["engine"]])


@pytest.mark.parametrize(
    "row",
    [row for row in FAULTS if row["engine"] in FLOATS],
    ids=lambda row: row["file"].removesuffix(".onnx"),
)
def test_what_is_exported_does_not_have_the_fault(row: dict[str, str], tmp_path: Path) -> None:
    graph, profile = qdqbridge.load(FOLDER / row["file"]), PROFILES[row["engine"]]
    written = tmp_path / "written.onnx"
    qdqbridge.save(graph, written, profile)
    assert not [f for f in check(written, profile) if f.effect in (Effect.REFUSED, Effect.OTHER)]
    with qdqbridge.open_engine(cast("EngineName", row["engine"]), written) as engine:
        assert steps_off(engine, graph, random_data(graph, half=PAIRS_SATURATE)) <= 2


def loaded_and_run(engine: Judge, data: Mapping[str, NDArray[Any]]) -> None:
    """Asks for what engines crash at: when a file is loaded, or when it runs."""
    engine.taken()
    engine.run(data, engine.outputs)


def random_data(graph: Graph, *, half: bool = False) -> dict[str, NDArray[Any]]:
    """Returns codes of all inputs, or the lower half of them: two products fit in 16 bits."""
    chance, data = np.random.default_rng(1), dict[str, NDArray[Any]]()
    for value in graph.inputs:
        info = np.iinfo(value.type.dtype.numpy)
        shape = [dim for dim in value.type.shape or () if isinstance(dim, int)]
        end = (info.min + info.max + 1) // 2 if half else info.max + 1
        data[value.name] = chance.integers(info.min, end, shape).astype(info.dtype)
    return data


def steps_off(engine: Judge, graph: Graph, data: Mapping[str, NDArray[Any]]) -> int:
    """Returns how many steps results are off, at most."""
    found, meant = engine.run(data, engine.outputs), qdqbridge.evaluate(graph, data)
    each = [np.abs(found[n].astype(int) - meant[n].astype(int)) for n in engine.outputs]
    return max(int(steps.max()) for steps in each)
