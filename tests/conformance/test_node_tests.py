"""ONNX's backend tests of quantization: interpreter, round trip through a file, and TVM."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.errors import UnsupportedModelError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import evaluate
from qdqbridge.onnx_io.writer import write
from qdqbridge.pipeline import load
from tests.conformance.node_tests import NodeTest, node_tests
from tests.onnx_models import canonical

CASES = [pytest.param(case, id=case.name) for case in node_tests()]
AS_INPUTS = [pytest.param(case, id=case.name) for case in node_tests(as_inputs=True)]
"""The same cases with scales and zero points (and weights) of run time."""


def graph_of(case: NodeTest) -> Graph:
    try:
        return canonical(case.model)
    except UnsupportedModelError as error:  # pragma: no cover
        pytest.fail(str(error))


def test_the_installed_onnx_makes_the_tests_that_were_counted() -> None:
    """45 with onnx 1.23; int2 and float4 are younger than the oldest onnx that is supported."""
    assert len(CASES) >= 35


@pytest.mark.parametrize("case", [*CASES, *AS_INPUTS])
def test_interpreter(case: NodeTest) -> None:
    case.check(evaluate(graph_of(case), case.inputs)[0])


@pytest.mark.parametrize("case", [*CASES, *AS_INPUTS])
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
    found = executable.build(graph).run(case.inputs)
    case.check(found)
    for name, array in evaluate(graph, case.inputs)[0].items():
        np.testing.assert_array_equal(found[name].astype(np.float64), array.astype(np.float64))


@pytest.mark.relax
@pytest.mark.parametrize("case", AS_INPUTS)
def test_through_relax_with_parameters_of_run_time(case: NodeTest) -> None:
    hosting = pytest.importorskip("qdqbridge.hosting")
    graph = graph_of(case)
    assert hosting.from_relax(hosting.to_relax(graph)[0]).digest == graph.digest


@pytest.mark.relax
@pytest.mark.parametrize(
    "name", ["quantizelinear_axis", "quantizelinear_blocked_asymmetric", "dequantizelinear_blocked",
             "dequantizelinear_int4", "qlinearmatmul_3D_int8_float32", "qlinearconv",
             "qlinearmatmul_2D_uint8_float16", "convinteger_with_padding",
             "convinteger_without_padding", "dynamicquantizelinear"],
)  # fmt: skip
def test_tvm_with_parameters_of_run_time(name: str) -> None:
    executable = pytest.importorskip("qdqbridge.relax.executable")
    (case,) = (case for case in node_tests(as_inputs=True) if case.name == f"test_{name}")
    case.check(executable.build(graph_of(case)).run(case.inputs))
