"""ONNX's backend tests of quantization: interpreter, round trip through a file, and TVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qdqbridge.app.pipeline import load
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.targets.profiles.export import export
from tests.conformance.node_tests import NodeTest, node_tests
from tests.onnx_models import canonical

PARTS = [(as_inputs, part) for as_inputs in (False, True) for part in range(3)]
"""The cases in parts, also with scales and zero points (and weights) of run time.

Not one test for each: to name them, onnx has to make all of its cases, which takes seconds.
"""


def cases(as_inputs: bool, part: int) -> Iterator[tuple[NodeTest, Graph]]:
    """Yields the cases of a part, and their graphs."""
    for case in node_tests(as_inputs=as_inputs)[part::3]:
        yield case, canonical(case.model)


def test_the_installed_onnx_makes_the_tests_that_were_counted() -> None:
    """45 with onnx 1.23; int2 and float4 are younger than the oldest onnx that is supported."""
    assert len(node_tests()) >= 35


@pytest.mark.parametrize(("as_inputs", "part"), PARTS)
def test_interpreter_and_written_file(as_inputs: bool, part: int, tmp_path: Path) -> None:
    for case, graph in cases(as_inputs, part):
        case.check(evaluate(graph, case.inputs)[0])
        export(graph, tmp_path / f"{case.name}.onnx")
        again = load(tmp_path / f"{case.name}.onnx")
        assert again.digest == graph.digest, case.name
        case.check(evaluate(again, case.inputs)[0])


@pytest.mark.relax
@pytest.mark.parametrize("part", range(3))
def test_tvm(part: int) -> None:
    executable = pytest.importorskip("qdqbridge.tvm.relax.executable")
    for case, graph in cases(False, part):
        found = executable.compile_relax(graph).run(case.inputs)
        case.check(found)
        for name, array in evaluate(graph, case.inputs)[0].items():
            wide = found[name].astype(np.float64), array.astype(np.float64)
            np.testing.assert_array_equal(*wide, err_msg=case.name)


@pytest.mark.relax
@pytest.mark.parametrize("part", range(3))
def test_through_relax_with_parameters_of_run_time(part: int) -> None:
    hosting = pytest.importorskip("qdqbridge.app.hosting")
    for case, graph in cases(True, part):
        assert hosting.from_relax(hosting.to_relax(graph)[0]).digest == graph.digest, case.name


@pytest.mark.relax
@pytest.mark.parametrize(
    "name", ["quantizelinear_axis", "quantizelinear_blocked_asymmetric", "dequantizelinear_blocked",
             "dequantizelinear_int4", "qlinearmatmul_3D_int8_float32", "qlinearconv",
             "qlinearmatmul_2D_uint8_float16", "convinteger_with_padding",
             "convinteger_without_padding", "dynamicquantizelinear"],
)  # fmt: skip
def test_tvm_with_parameters_of_run_time(name: str) -> None:
    executable = pytest.importorskip("qdqbridge.tvm.relax.executable")
    (case,) = (case for case in node_tests(as_inputs=True) if case.name == f"test_{name}")
    case.check(executable.compile_relax(canonical(case.model)).run(case.inputs))
