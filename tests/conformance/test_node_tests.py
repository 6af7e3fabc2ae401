"""ONNX's backend tests of quantization: interpreter, round trip through a file, and TVM."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import evaluate
from qdqbridge.onnx_io.writer import write
from qdqbridge.pipeline import load
from tests.conformance.node_tests import NodeTest, node_tests
from tests.onnx_models import canonical

CASES = [pytest.param(case, id=case.name) for case in node_tests()]
NOT_IN_TVM = {
    DType.FLOAT8_E4M3FN, DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2, DType.FLOAT8_E5M2FNUZ,
    DType.FLOAT4_E2M1,
}  # fmt: skip
"""Element types that TVM 0.27 compiles for GPUs only, or not at all."""


def graph_of(case: NodeTest) -> Graph:
    try:
        return canonical(case.model)
    except UnsupportedModelError as error:  # pragma: no cover
        pytest.fail(str(error))


def test_the_installed_onnx_makes_the_tests_that_were_counted() -> None:
    """45 with onnx 1.23; int2 and float4 are younger than the oldest onnx that is supported."""
    assert len(CASES) >= 35


@pytest.mark.parametrize("case", CASES)
def test_interpreter(case: NodeTest) -> None:
    case.check(evaluate(graph_of(case), case.inputs)[0])


@pytest.mark.parametrize("case", CASES)
def test_written_and_read_again(case: NodeTest, tmp_path) -> None:
    graph = graph_of(case)
    write(graph, tmp_path / "again.onnx")
    again = load(tmp_path / "again.onnx")
    assert again.digest == graph.digest
    case.check(evaluate(again, case.inputs)[0])


@pytest.mark.relax
@pytest.mark.parametrize("case", CASES)
def test_tvm(case: NodeTest) -> None:
    executable = pytest.importorskip("qdqbridge.relax.executable")
    graph = graph_of(case)
    if any(value.type.dtype in NOT_IN_TVM for value in graph.values()):
        with pytest.raises(UnsupportedTargetError, match="TVM cannot hold tensors of float"):
            executable.build(graph)
        return
    found = executable.build(graph).run(case.inputs)
    case.check(found)
    for name, array in evaluate(graph, case.inputs)[0].items():
        np.testing.assert_array_equal(found[name].astype(np.float64), array.astype(np.float64))
