"""ReverseSequence on TVM, beside onnxruntime's kernel, which the interpreter runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_])
def test_first_elements_are_reversed(time: int, dtype: type[Any]) -> None:
    b = Builder(opset=17)
    kind = TensorProto.DataType.Value(
        {"float32": "FLOAT", "float16": "FLOAT16", "bool": "BOOL"}.get(
            np.dtype(dtype).name, np.dtype(dtype).name.upper()
        )
    )
    b.input("x", ["n", "m", 3], kind)
    b.input("lengths", ["k"], TensorProto.INT64)
    b.output(b.op("ReverseSequence", "x", "lengths", time_axis=time, batch_axis=1 - time),
             elem_type=kind)  # fmt: skip
    graph = canonical(b.model())
    run = qb.compile(graph, threads=1).run
    for steps, rows in ((4, 2), (7, 5)):
        shape = (steps, rows, 3) if time == 0 else (rows, steps, 3)
        rng = np.random.default_rng(steps)
        feeds = {
            "x": rng.integers(0, 50, shape).astype(dtype),
            "lengths": rng.integers(1, steps + 1, rows).astype(np.int64),
        }
        (found,), (wanted,) = run(feeds).values(), qb.evaluate(graph, feeds).values()
        np.testing.assert_array_equal(found, wanted)
    assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest
