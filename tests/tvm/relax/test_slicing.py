"""Slices whose places the run computes, beside onnxruntime."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.onnx_models import Builder

LEAST, MOST = -(2**63) + 1, 2**63 - 1
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,m] x, int64[2] b, int64[2] e, int64[2] s) => (float[u,v] y) {
    a = Constant<value_ints = [0, 1]>()
    y = Slice(x, b, e, a, s)
}"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slice") / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return path


def test_random_places(file: Path) -> None:
    """Empty ones, ones that begin in front of the data or behind them, and long steps."""
    executable, session = qb.compile(qb.load(file)), onnxruntime.InferenceSession(file)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        x = rng.normal(size=rng.integers(0, 6, 2)).astype(np.float32)
        b, e = (rng.choice([*range(-8, 9), LEAST, MOST], 2) for _ in range(2))
        s = rng.choice([-7, -3, -2, -1, 1, 2, 3, 5, LEAST, MOST], 2)
        # onnxruntime takes the greatest end for none, which ONNX's text says of forward steps alone
        e = np.where((s < 0) & (e == MOST), 99, e)
        feeds = {"x": x, "b": b, "e": e, "s": s}
        (wanted,) = session.run(None, feeds)
        np.testing.assert_array_equal(executable.run(feeds)["y"], wanted, str((x.shape, b, e, s)))


def test_steps_of_nothing_end_the_run(file: Path) -> None:
    executable = qb.compile(qb.load(file))
    x, places = np.ones((3, 3), np.float32), {"b": np.array([0, 0]), "e": np.array([3, 3])}
    with pytest.raises(qb.QdqBridgeError):
        executable.run({"x": x, **places, "s": np.array([0, 1])})
    found = executable.run({"x": x, **places, "s": np.array([1, 2])})["y"]
    assert found.shape == (3, 2)


@pytest.mark.parametrize("step", [1, -1, -3])
def test_codes_of_known_places(step: int, tmp_path: Path) -> None:
    """A copy backwards from before the first element began in the memory before it."""
    b, places = Builder(17), (-(1 << 31), -6, -5, -4, -3, -1, 0, 1, 3, 4, 1 << 31)
    x = b.qdq(b.input("x", [4, 2]), 1.0, 3)
    for start, end in product(places, places):
        cut = b.op("Slice", x, *(b.init(np.array([each])) for each in (start, end, 0, step)))
        b.output(b.qdq(cut, 1.0, 3), None)
    onnx.save(b.model(), path := tmp_path / "model.onnx")
    data = {"x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    found = qb.compile(qb.load(path)).run(data)
    for one, other in zip(
        found.values(), onnxruntime.InferenceSession(path).run(None, data), strict=True
    ):
        np.testing.assert_array_equal(one, other)
