"""What is rewritten before TVM compiles a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.emit import emit
from qdqbridge.tvm.relax.lowering import lowered
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax

SUMMANDS = 12


def sum_of_matrices() -> Graph:
    """Sums matrices of which each has one row, or as many as the others."""
    b = Builder(opset=17)
    total = b.input("x0", ["n0", 4], 1)
    for i in range(1, SUMMANDS):
        total = b.op("Add", total, b.input(f"x{i}", [f"n{i}", 4], 1))
    b.output(b.op("Relu", total), ["m", 4])
    return canonical(b.model())


def matrices(*rows: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    counts = (*rows, *[1] * (SUMMANDS - len(rows)))
    shapes = {f"x{i}": (count, 4) for i, count in enumerate(counts)}
    return {name: generator.normal(size=s).astype(np.float32) for name, s in shapes.items()}


def test_an_extent_keeps_its_name_where_tvm_would_write_out_what_it_is_computed_from() -> None:
    """Each sum's rows are chosen by the rows before: written out they double with every sum."""
    module = lowered(emit(sum_of_matrices())[0])
    for one in (
        relax.transform.LegalizeOps(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ):
        module = one(module)
    assert max(map(len, module["main"].script().splitlines())) < 1000


@pytest.mark.parametrize("rows", [(1,), (3,), (1, 3), (3, 1, 1, 3)])
def test_rows_are_found_out_by_the_run(rows: tuple[int, ...]) -> None:
    graph = sum_of_matrices()
    (name,) = graph.output_names
    data = matrices(*rows)
    found = qb.compile(graph, kernels="reference").run(data)[name]
    np.testing.assert_array_equal(found, qb.evaluate(graph, data)[name])


def test_rows_that_do_not_fit_end_the_run() -> None:
    with pytest.raises(InputDataError, match="an extent is 3 where 2 is needed"):
        qb.compile(sum_of_matrices(), kernels="reference").run(matrices(1, 3, 2))


@pytest.mark.parametrize(("mode", "meant"), [("fast", "clip"), ("clip", "clip"), ("wrap", "wrap")])
def test_no_index_leaves_its_axis(mode: str, meant: str) -> None:
    tensor: Any = relax.TensorType
    x, index = relax.Var("x", tensor((5, 4), "float32")), relax.Var("i", tensor((3,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, index]):
        with builder.dataflow():
            taken = builder.emit_output(relax.op.take(x, index, axis=0, mode=mode))
        builder.emit_func_output(taken)
    (binding, *_) = lowered(builder.get())["main"].body.blocks[0].bindings
    assert binding.value.attrs.mode == meant
