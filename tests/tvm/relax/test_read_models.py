"""Whole networks: emitted for Relax and read back, they are the same graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import ROOT

pytest.importorskip("tvm")

import tvm
from tvm import relax

import qdqbridge as qb
from qdqbridge.tvm.relax.read import module as reading
from qdqbridge.tvm.relax.read import read_function
from tests.tvm.relax.read_cases import kept, read_back, same

pytestmark = pytest.mark.relax

FOLDER = ROOT / "models"
MODELS = sorted(FOLDER.glob("*.onnx"))
CNN = FOLDER / "digits_cnn_u8s8_per_channel.onnx"
ATTENTION = FOLDER / "digits_attention_u8s8_per_channel.onnx"
PASSES = (
    relax.transform.CanonicalizeBindings,
    relax.transform.DeadCodeElimination,
    relax.transform.EliminateCommonSubexpr,
    relax.transform.FoldConstant,
    relax.transform.Normalize,
    relax.transform.ConvertToDataflow,
)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", ["qnn", "qdq"])
def test_digest_is_kept(path: Path, variant: str) -> None:
    kept(qb.load(path), variant=variant)


def test_names_are_kept() -> None:
    graph = qb.load(CNN)
    again = read_back(graph)
    assert [v.name for v in again.inputs] == [v.name for v in graph.inputs]
    assert again.output_names == graph.output_names
    assert [n.output.name for n in again.nodes] == [n.output.name for n in graph.nodes]
    assert [n.origin.nodes for n in again.nodes] == [n.origin.nodes for n in graph.nodes]


@pytest.mark.parametrize("apply", PASSES, ids=lambda apply: apply.__name__)
def test_after_passes(apply: Callable[..., Any]) -> None:
    for path in (CNN, ATTENTION):
        graph = qb.load(path)
        module, _ = qb.to_relax(graph)
        same(qb.from_relax(apply()(module)), graph)


def test_after_saving() -> None:
    graph = qb.load(ATTENTION)
    module, _ = qb.to_relax(graph)
    same(qb.from_relax(tvm.ir.load_json(tvm.ir.save_json(module))), graph)


@pytest.mark.parametrize("regions", [True, False])
@pytest.mark.parametrize("path", [CNN, ATTENTION], ids=lambda path: path.stem)
def test_composites_and_regions_are_read_through(path: Path, *, regions: bool) -> None:
    byoc = pytest.importorskip("qdqbridge.tvm.byoc")
    graph = qb.load(path)
    module, _ = byoc.partition(qb.to_relax(graph)[0], byoc.canonical("npu"), regions=regions)
    assert len(module.functions) > 1
    same(qb.from_relax(module), graph)


def test_a_region_alone_is_a_graph() -> None:
    byoc = pytest.importorskip("qdqbridge.tvm.byoc")
    graph = qb.load(CNN)
    module, _ = byoc.partition(qb.to_relax(graph)[0], byoc.canonical("npu"))
    (region,) = (f for f in module.functions.values() if "Codegen" in (f.attrs or {}))
    part = read_function(region, module)
    assert [v.name for v in part.inputs] == [str(p.name) for p in region.params]
    assert {n.op.name for n in part.nodes} >= {"Conv", "Dense", "MaxPool", "Add"}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_without_spans_the_meaning_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose spans are lost computes the same, whatever its operators are called."""
    monkeypatch.setattr(reading, "_provenance", lambda expr: None)
    graph = qb.load(path)
    again = read_back(graph)
    images = np.load(FOLDER / "digits_test.npz")["x"][:8]
    data = {graph.inputs[0].name: images}
    ours, theirs = qb.evaluate(again, data), qb.evaluate(graph, data)
    for name, array in theirs.items():
        assert array.tobytes() == ours[name].tobytes()
