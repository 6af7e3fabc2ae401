"""Extents of graph inputs that a file does not name are independent of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
