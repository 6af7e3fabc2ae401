"""MatMulInteger as opaque node: onnxruntime, interpreter, TVM, Relax and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.options import Kernels
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.integer_product_models import integer_products, wrong

pytestmark = pytest.mark.relax


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_random_products(kernels: Kernels) -> None:
    b, feeds = integer_products(5, 12)
    assert len(b.outputs) == 12
    assert wrong(b, feeds, kernels) == []


@pytest.mark.parametrize("count", [1, 3])
def test_every_extent_open(count: int, tmp_path: Path) -> None:
    """One executable for one zero point and for one of each column."""
    b = Builder(19)
    kinds = {"a": ["m", "k"], "b": ["k", "n"], "za": [1], "zb": ["c"]}
    names = [b.input(name, shape, TensorProto.UINT8) for name, shape in kinds.items()]
    real = b.op("Cast", b.op("MatMulInteger", *names), to=TensorProto.FLOAT)
    b.output(b.op("Mul", real, b.input("s", ["c"])), ["m", "n"])
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest
    rng = np.random.default_rng(count)
    shapes = {"a": (2, 4), "b": (4, 3), "za": (1,), "zb": (count,)}
    feeds: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        feeds[name] = rng.integers(0, 256, shape).astype(np.uint8)
    feeds["s"] = rng.uniform(0.001, 0.01, count).astype(np.float32)
    (meant,) = qb.evaluate(graph, feeds).values()
    (got,) = qb.compile(graph).run(feeds).values()
    integers = (feeds[name].astype(np.int32) for name in ("a", "b", "za", "zb"))
    x, w, zx, zw = integers
    np.testing.assert_array_equal(meant, ((x - zx) @ (w - zw)).astype(np.float32) * feeds["s"])
    np.testing.assert_array_equal(got, meant)


def test_large_constants_of_carried_nodes_are_read_back() -> None:
    """They are handed over in the call: a span carries small ones only."""
    b = Builder(17)
    table = b.init(np.arange(400 * 400, dtype=np.uint8).reshape(400, 400))
    bounds = b.input("begin", [1], TensorProto.INT64), b.input("end", [1], TensorProto.INT64)
    y = b.op("Slice", table, *bounds, b.init(np.array([1])))
    b.output(y, [400, "n"], TensorProto.UINT8)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    feeds = {"begin": np.array([3]), "end": np.array([7])}
    (meant,) = qb.evaluate(graph, feeds).values()
    (got,) = qb.compile(graph).run(feeds).values()
    np.testing.assert_array_equal(got, meant)


def test_extents_that_only_the_run_knows_are_read_back() -> None:
    """A Concat of an open batch beside a known one, and what reads it."""
    b = Builder(17)
    x, y = b.qdq(b.input("x", ["n", 3, 4]), 0.1, 3), b.qdq(b.input("y", [2, 5, 4]), 0.1, 3)
    joined = b.qdq(b.op("Concat", x, y, x, axis=1), 0.2, 5)
    b.output(b.op("Transpose", joined, perm=[0, 2, 1]), None)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest


def test_quantized_constants_that_are_outputs(tmp_path: Path) -> None:
    """Nothing in a file says what they stand for, but where a node reads them too."""
    b = Builder(13)
    codes = b.dq(b.init(np.array([[0, 7]], np.uint8)), 0.25, 255)
    stored = b.q(b.op("Transpose", codes, perm=[1, 0]), 0.25, 255)
    real = b.dq(stored, 0.25, 255)
    b.output(b.op("Add", b.qdq(b.input("x", [2, 2]), 0.5), real), [2, 2])
    b.output(stored, [2, 1], TensorProto.UINT8)
    graph = canonical(b.model())
    assert graph.outputs[1].quant is None
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
