"""Regions as programs: records in order, values by number, on every operator of the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import GraphError
from qdqbridge.tvm.byoc import canonical, partition
from qdqbridge.tvm.byoc.program import Program, program
from tests.tvm.relax.single_ops import Model, X, codes, const, params

pytestmark = pytest.mark.relax

TABLE = canonical("npu")
S8 = params("int8", 0.5, 3)


def programs(graph: qb.Graph, table: Any = TABLE) -> list[Program]:
    """Returns the regions of a graph."""
    module, _ = partition(qb.to_relax(graph)[0], table)
    functions: list[Any] = [
        f for f in module.functions.values() if f.attrs and "Codegen" in f.attrs
    ]
    return [program(function, table) for function in functions]


@pytest.mark.parametrize("path", sorted(MODELS.glob("*s8*.onnx")), ids=lambda path: path.stem)
def test_steps_read_what_was_computed_before(path: Path) -> None:
    graph = qb.load(path)
    (whole,) = programs(graph)
    _, coverage = partition(qb.to_relax(graph)[0], TABLE)
    assert [step.entry for step in whole.steps] == [taken.entry for taken in coverage.taken]
    known = set(range(whole.inputs))
    for step in whole.steps:
        assert len(step.operands) == len(step.record.inputs)
        assert {number for number in step.operands if number is not None} <= known
        known |= set(step.results)
    assert len(known) == whole.inputs + sum(len(step.results) for step in whole.steps)
    assert set(whole.outputs) <= known


def test_operands_are_in_the_order_of_the_record() -> None:
    m = Model()
    b = m.builder
    left, right = (m.operand(X(codes((4,), "int8", seed), S8)) for seed in (1, 2))
    fixed = codes((4,), "int8", 3)
    first = b.qdq(b.op("Sub", right, left), 0.5, 3, np.int8)
    twice = b.qdq(b.op("Mul", first, first), 0.5, 3, np.int8)
    m.finish(b.op("Sub", m.operand(X(fixed, S8, fixed=True)), twice), S8)
    graph = m.load()
    (whole,) = programs(graph)
    subtract, square, last = whole.steps
    assert set(subtract.operands) == {0, 1} and square.operands == (2, 2)
    assert last.operands == (None, 3) and whole.outputs == (4,)

    def compute(record: Any, operands: Any) -> Any:
        return operands[0] - operands[1] if "sub" in record.op else operands[0] * operands[1]

    (x, y) = (m.inputs[value.name] for value in graph.inputs)
    first_input = subtract.operands.index(0)  # regions number their inputs as they meet them
    inputs = (y, x) if first_input == 0 else (x, y)
    (result,) = whole.run(compute, inputs)
    np.testing.assert_array_equal(result, fixed - (y - x) * (y - x))


def test_a_split_has_several_results() -> None:
    m = Model()
    data = X(codes((4, 6), "int8"), S8)
    m.add("Split", [data, const(np.array([1, 3]))], S8, S8, axis=0)
    graph = m.load()
    (whole,) = programs(graph)
    (step,) = whole.steps
    assert step.results == (1, 2) == whole.outputs
    first, second = whole.run(lambda _, x: np.split(x[0], [1]), [data.values])
    assert first.shape == (1, 6) and second.shape == (3, 6)


def test_a_function_that_is_no_region_is_refused() -> None:
    module: Any = qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))[0]
    with pytest.raises(GraphError, match="not a composite"):
        program(module["main"], TABLE)
