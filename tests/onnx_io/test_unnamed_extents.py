"""Extents that a file does not name: of graph inputs, and of what is counted from shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.errors import QdqBridgeError
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Builder, canonical

CASES: dict[str, tuple[list[int | None], dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "Concat": ([None, 3], {"a": (2, 3), "b": (5, 3)}, {"axis": 0}),
    "Add": ([None, 3], {"a": (2, 3), "b": (1, 3)}, {}),
    "MatMul": ([None, None], {"a": (2, 3), "b": (3, 4)}, {}),
}


@pytest.mark.parametrize("op_type", CASES)
def test_two_inputs_of_different_sizes(op_type: str, tmp_path: Path) -> None:
    declared, shapes, attributes = CASES[op_type]
    b = Builder(17)
    y = b.op(op_type, *(b.input(name, declared) for name in shapes), **attributes)
    b.output(y, None)
    model = b.model()
    graph, rng = canonical(model), np.random.default_rng(0)
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    (wanted,) = ort_run(model, given)
    (found,) = qb.evaluate(graph, given).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)  # float sums in another order
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest
    with pytest.raises(QdqBridgeError):
        qb.evaluate(graph, given | {"b": np.zeros((7, 9), np.float32)})


def length(b: Builder, x: str, axis: int) -> str:
    return b.op("Gather", b.op("Shape", x), b.init(np.array(axis)))


def test_what_is_counted_from_shapes_has_extents() -> None:
    """As exporters of transformers write positions, masks, and shapes in which -1 becomes 1."""
    b = Builder(17)
    x, past = b.input("x", ["batch", "new"]), b.input("past", ["batch", "old"])
    old, one, zero = length(b, past, 1), b.init(np.array(1)), b.init(np.array([0]))
    total = b.op("Add", old, length(b, x, 1))
    own = b.op("Range", old, total, one)
    whole = b.op("Range", b.init(np.array(0)), total, one)
    end = b.op("Unsqueeze", total, zero)
    part = b.op("Slice", whole, zero, b.op("Unsqueeze", old, zero), zero)
    extents = b.op("Concat", b.init(np.array([-1])), end, axis=0)
    ones = b.init(np.array([1, 1]))
    gone = b.op("Equal", extents, b.op("Mul", ones, b.init(np.array(-1))))
    spread = b.op("Expand", whole, b.op("Where", gone, ones, extents))
    for name in (own, whole, part, b.op("Slice", whole, zero, end, zero), spread):
        b.output(name, None, TensorProto.INT64)
    b.output(b.op("Range", old, length(b, x, 1), one), None, TensorProto.INT64)
    graph = canonical(b.model())
    both = "(new+old)"
    shapes = [value.type.shape for value in graph.outputs]
    assert shapes[:5] == [("new",), (both,), ("old",), (both,), (1, both)]
    last = shapes[-1]
    assert last is not None and str(last[0]).startswith("?")  # there may be none of these
    feeds = {"x": np.zeros((2, 3), np.float32), "past": np.zeros((2, 4), np.float32)}
    found, wanted = list(qb.evaluate(graph, feeds).values()), ort_run(b.model(), feeds)
    for array, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_one_extent_of_two_names_is_written_in_one_way(tmp_path: Path) -> None:
    """A part of a table has as many rows as there are tokens, up to the table's."""
    b = Builder(17)
    x, zero = b.input("x", ["batch", "new", 4]), b.init(np.array([0]))
    end = b.op("Unsqueeze", length(b, x, 1), zero)
    table = b.init(np.ones((1, 8, 4), np.float32))
    y = b.op("Add", x, b.op("Slice", table, zero, end, b.init(np.array([1]))))
    first = b.op("Unsqueeze", length(b, x, 0), zero)
    target = b.op("Concat", first, end, b.init(np.array([2])), b.init(np.array([2])), axis=0)
    heads = b.op("Transpose", b.op("Reshape", y, target), perm=[0, 1, 3, 2])
    back = b.op("Concat", first, end, b.init(np.array([4])), axis=0)
    b.output(b.op("Reshape", b.op("Relu", heads), back), None)
    graph = canonical(b.model())
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").text() == graph.text()


@pytest.mark.relax
def test_two_inputs_of_different_sizes_on_tvm() -> None:
    pytest.importorskip("tvm")
    declared, shapes, _ = CASES["MatMul"]
    b = Builder(17)
    b.output(b.op("MatMul", *(b.input(name, declared) for name in shapes)), None)
    graph = canonical(b.model())
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    (found,) = qb.compile(graph).run(given).values()
    np.testing.assert_array_equal(found, np.full((2, 4), 3, np.float32))
