"""What moves stored integers between a Q and its DQ, with a scale per tensor, axis or block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import qdqbridge as qb
from tests.onnx_io.stored_movers import MOVES, case
from tests.onnx_models import Array, Builder, canonical, run

SCALES = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
ZEROS = np.arange(100, 104, dtype=np.uint8)


def codes(x: Array) -> Array:
    return np.clip(np.rint(x / SCALES[:, None]) + ZEROS[:, None], 0, 255).astype(np.uint8)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_scales_per_axis_are_not_those_of_what_is_joined(axis: int, tmp_path: Path) -> None:
    b = Builder(18)
    stored = b.q(b.input("x", [4, 3]), SCALES, ZEROS, np.uint8, axis=0)
    joined = b.op("Concat", stored, stored, axis=axis)
    b.output(joined, None, TensorProto.UINT8)
    twice = np.concatenate([SCALES, SCALES])
    real = b.dq(
        joined, *((twice, [*ZEROS, *ZEROS]) if axis in (0, -2) else (SCALES, ZEROS)), axis=0
    )
    b.output(real)
    graph = canonical(b.model())
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    wanted = np.concatenate([codes(x)] * 2, axis=axis)
    rows = np.resize(np.arange(4), wanted.shape[0])[:, None]
    reals = (wanted.astype(np.float32) - ZEROS[rows]) * SCALES[rows]
    qb.save(graph, tmp_path / "saved.onnx")
    for g in (graph, qb.load(tmp_path / "saved.onnx"), qb.parse(graph.text("inline"))):
        assert g.digest == graph.digest
        for got, want in zip(run(g, {"x": x}), (wanted, reals), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_clip_of_scales_per_axis_is_no_range_of_theirs(tmp_path: Path) -> None:
    b = Builder(18)
    stored = b.q(b.input("x", [4, 3]), SCALES, ZEROS, np.uint8, axis=0)
    bounds = (b.init(np.uint8(98)), b.init(np.uint8(110)))
    b.output(b.op("Clip", stored, *bounds), None, TensorProto.UINT8)
    graph = canonical(b.model())
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    qb.save(graph, tmp_path / "saved.onnx")
    for g in (graph, qb.load(tmp_path / "saved.onnx")):
        assert g.digest == graph.digest
        np.testing.assert_array_equal(run(g, {"x": x})[0], codes(x).clip(98, 110))


@pytest.mark.parametrize("first", range(0, 100, len(MOVES)))
def test_random_movers(first: int, tmp_path: Path) -> None:
    found = {seed: case(seed, tmp_path) for seed in range(first, first + len(MOVES))}
    assert {seed: problem for seed, problem in found.items() if problem} == {}
    assert list(found.values()).count("") > len(MOVES) / 2


@pytest.mark.slow
@pytest.mark.relax
def test_many_random_movers(tmp_path: Path) -> None:
    found = {seed: case(seed, tmp_path, compiled=True) for seed in range(1000, 1400)}
    assert {seed: problem for seed, problem in found.items() if problem} == {}
