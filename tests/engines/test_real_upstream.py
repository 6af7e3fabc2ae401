"""The files of ``docs/upstream`` show what is said of them, on the versions that are pinned."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import qdqbridge
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.pipeline import check

FOLDER = Path(__file__).parents[2] / "docs" / "upstream"
with (FOLDER / "faults.csv").open(encoding="utf-8", newline="") as _file:
    FAULTS = list(csv.DictReader(_file))
PROFILES = {"qnn-htp": "qnn", "openvino": "openvino"}


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row["file"].removesuffix(".onnx"))
def test_the_fault_is_there_and_the_profile_says_so(row: dict[str, str]) -> None:
    path = FOLDER / row["file"]
    graph = qdqbridge.load(path)
    chance, data = np.random.default_rng(1), {}
    for value in graph.inputs:
        info = np.iinfo(value.type.dtype.numpy)
        shape = [dim for dim in value.type.shape or () if isinstance(dim, int)]
        data[value.name] = chance.integers(info.min, info.max + 1, shape).astype(info.dtype)
    with qdqbridge.open_engine(row["engine"], path) as engine:
        if row["fault"] in ("refused", "crash"):
            with pytest.raises(UnsupportedTargetError) as caught:
                engine.taken()
            assert ("crashed (SIG" in caught.value.why) == (row["fault"] == "crash")
        elif row["fault"] == "left":
            assert engine.taken().left
        else:
            assert engine.taken().takes_all or row["engine"] == "openvino"  # floats are wrong, too
            found, meant = engine.run(data, engine.outputs), qdqbridge.evaluate(graph, data)
            steps = [np.abs(found[n].astype(int) - meant[n].astype(int)) for n in engine.outputs]
            assert max(step.max() for step in steps) > 2
    assert check(path, PROFILES[row["engine"]])
