"""Extents that a file does not name: of graph inputs, and of what is counted from shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

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


def counted(name: str | None) -> ModelProto:
    """Results whose extents are computed: from a name of the file, from none, and from both."""
    b = Builder(17)
    x, places = b.input("x", [name, 4]), b.input("i", [2, name], TensorProto.INT64)
    b.output(b.op("Relu", x), None)
    b.output(b.op("Concat", x, x, axis=0), None)
    found = b.op("NonZero", x)
    twice = b.op("Concat", found, found, axis=1)
    b.output(twice, None, TensorProto.INT64)
    b.output(b.op("Concat", twice, places, axis=1), None, TensorProto.INT64)
    return b.model()


def saved_extents(model: ModelProto, path: Path) -> list[list[Any]]:
    """Saves what is read of a model; returns the extents of inputs and outputs, None if open."""
    graph = canonical(model)
    qb.save(graph, path)
    assert qb.load(path).digest == graph.digest
    assert qb.parse(graph.text(weights="inline")).digest == graph.digest
    saved = onnx.load(path)
    onnx.checker.check_model(saved, full_check=True)
    feeds = {"x": np.ones((3, 4), np.float32), "i": np.zeros((2, 3), np.int64)}
    for array, wanted in zip(ort_run(saved, feeds), ort_run(model, feeds), strict=True):
        np.testing.assert_array_equal(array, wanted)
    return [
        [dim.dim_param or dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
        for value in (*saved.graph.input, *saved.graph.output)
    ]


NAMES = {
    "n": "(n*2)", "1": "('1'*2)", "-3": "('-3'*2)", "1.5": "(1.5*2)", "past + 1": "('past + 1'*2)",
    "n*2": "('n*2'*2)", "batch:0": "(batch:0*2)", "é": "(é*2)", "it's": None, "a+'b'": None,
    "(n*2)": None, "(n": None, "?0": None, "?r0": None, "\\n": None, "": None, "??": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_extents_are_saved_as_they_are(name: str, tmp_path: Path) -> None:
    """What is computed from them has a name that says so, or is left open; nothing internal."""
    kept = name if name.strip("?") else None
    assert saved_extents(counted(name), tmp_path / "saved.onnx") == [
        [kept, 4], [2, kept], [kept, 4], [NAMES[name], 4], [2, None], [2, None],
    ]  # fmt: skip


def test_names_that_differ_in_a_parenthesis_are_two(tmp_path: Path) -> None:
    """So is a name that looks like what is computed here, beside what is computed."""
    b = Builder(17)
    inputs = [
        b.input(name, [extent, 4]) for name, extent in zip("abc", ("n", "(n", "(n*2)"), strict=True)
    ]
    b.output(b.op("Concat", inputs[0], inputs[0], axis=0), None)
    b.output(b.op("Concat", *inputs, axis=0), None)
    graph = canonical(b.model())
    feeds = {name: np.ones((n, 4), np.float32) for name, n in zip("abc", (2, 3, 5), strict=True)}
    assert [array.shape for array in qb.evaluate(graph, feeds).values()] == [(4, 4), (10, 4)]
    qb.save(graph, tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx").graph
    first = [value.type.tensor_type.shape.dim[0].dim_param for value in saved.input]
    assert first == ["n", "(n", "(n*2)"]
    assert not any(value.type.tensor_type.shape.dim[0].dim_param for value in saved.output)


@pytest.mark.relax
@pytest.mark.parametrize("name", ["1", "past + 1", "(n*2)", "?r0"])
def test_odd_names_on_tvm(name: str) -> None:
    pytest.importorskip("tvm")
    graph = canonical(counted(name))
    feeds = {"x": np.ones((3, 4), np.float32), "i": np.zeros((2, 3), np.int64)}
    found, wanted = qb.compile(graph).run(feeds), qb.evaluate(graph, feeds)
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array)
    module, _ = qb.to_relax(graph)
    assert qb.from_relax(module).digest == graph.digest


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
