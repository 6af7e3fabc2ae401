"""EmbedLayerNormalization and TensorScatter on TVM beside onnxruntime, over open extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import qdqbridge as qb
from tests.onnx_models import Builder, canonical

MS = "com.microsoft"
Feeds = dict[str, np.ndarray]


def run(model: Any, feeds: Feeds) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(each) for each in session.run(None, feeds)]


@pytest.mark.parametrize("seed", range(8))
def test_an_embedding_with_its_norm(seed: int) -> None:
    rng, b = np.random.default_rng(seed), Builder(17)
    rows, length, width = int(rng.integers(1, 4)), int(rng.integers(1, 9)), 16
    ids, segments, masked, placed = seed % 2, seed % 4 < 2, seed % 3 < 2, seed % 5 < 3
    feeds: Feeds = {"ids": rng.integers(0, 20, (rows, length)).astype(np.int32)}
    shape = ["batch", "length"]
    names = [b.input("ids", shape, TensorProto.INT32), *[""] * 8]
    tables = {2: 20, 3: 12, **({4: 2} if segments else {})}
    for index, count in tables.items():
        names[index] = b.init(rng.normal(size=(count, width)).astype(np.float32))
    for index in (5, 6):
        names[index] = b.init(rng.normal(size=width).astype(np.float32))
    if segments:
        names[1] = b.input("segments", shape, TensorProto.INT32)
        feeds["segments"] = rng.integers(0, 2, (rows, length)).astype(np.int32)
    if masked:
        names[7] = b.input("mask", shape, TensorProto.INT32)
        feeds["mask"] = np.sort(rng.integers(0, 2, (rows, length)), axis=1)[:, ::-1].astype(
            np.int32
        )
    if placed:
        names[8] = b.input("places", [1 if ids else "batch", "length"], TensorProto.INT32)
        feeds["places"] = rng.integers(0, 12, (1 if ids else rows, length)).astype(np.int32)
    while not names[-1]:
        names.pop()
    y = b.op("EmbedLayerNormalization", *names, domain=MS, outputs=2, epsilon=1e-6)
    b.output(y, [*shape, width])
    b.output(f"{y}:1", ["batch"], TensorProto.INT32)
    model = b.model()
    wanted = run(model, feeds)
    found = list(qb.compile(canonical(model)).run(feeds).values())
    np.testing.assert_array_equal(found[1], wanted[1])
    # 16 float32 additions in another order, of numbers up to 4 after the division.
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, -1, 1])
@pytest.mark.parametrize("placed", [True, False])
def test_rows_written_into_a_cache(mode: str, axis: int, placed: bool) -> None:
    rng, b = np.random.default_rng(3), Builder(24)
    shape, new = [3, 6, 7, 8], [3, 6, 7, 8]
    new[axis] = 3
    opened: list[Any] = ["n", *shape[1:]]
    feeds: Feeds = {
        "past": rng.normal(size=shape).astype(np.float32),
        "update": rng.normal(size=new).astype(np.float32),
    }
    names = [b.input("past", opened), b.input("update", ["n", *new[1:]])]
    if placed:
        most = shape[axis] - (0 if mode == "circular" else 3)
        names.append(b.input("w", ["n"], TensorProto.INT64))
        feeds["w"] = rng.integers(0, most, 3).astype(np.int64)
    b.output(b.op("TensorScatter", *names, axis=axis, mode=mode), opened)
    model = b.model()
    (found,) = qb.compile(canonical(model)).run(feeds).values()
    np.testing.assert_array_equal(found, run(model, feeds)[0])
