"""Times of kernels: all of a run, operations that are right, the limit that was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.kernel_times import kernel_times, node_times
from qdqbridge.tvm.relax.kernels.codegen.processors import cpu_of, host_target
from qdqbridge.tvm.relax.kernels.tiles.limit import limit
from tests.tvm.relax.digits import digits


@pytest.mark.parametrize("threads", [1, 2])
def test_every_kernel_of_a_run_is_timed(threads: int, tmp_path: Path) -> None:
    executable = digits(threads)
    (value,) = executable.graph.inputs
    shape = [e if isinstance(e, int) else 1 for e in value.type.shape or ()]
    data = {value.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    before = executable.run(data)
    times = kernel_times(executable, data, repeats=3)
    assert sum(entry.calls for entry in times) >= 4
    assert [entry.seconds for entry in times] == sorted((e.seconds for e in times), reverse=True)
    assert all(entry.seconds > 0 for entry in times)
    assert not any(entry.name.startswith("vm.") for entry in times)
    for name, array in executable.run(data).items():
        np.testing.assert_array_equal(array, before[name])
    if threads == 1:
        executable.save(tmp_path / "digits.so")
        loaded = kernel_times(qb.load_executable(tmp_path / "digits.so"), data, repeats=1)
        assert {entry.name for entry in loaded} == {entry.name for entry in times}
        assert all(entry.rate is None for entry in loaded)


@pytest.mark.parametrize("batch", [1, 5])
def test_open_batches_count_as_they_are_fed(batch: int) -> None:
    graph = digits().graph
    (value,) = graph.inputs
    assert any(isinstance(extent, str) for extent in value.type.shape or ())
    shape = [e if isinstance(e, int) else batch for e in value.type.shape or ()]
    times = kernel_times(digits(), {value.name: np.zeros(shape, np.float32)}, repeats=1)
    convolution = next(node for node in graph.nodes if node.op.name == "Conv")
    weight, result = convolution.operand(1).constant, convolution.output.type.shape
    assert weight is not None and result is not None
    pixels = np.prod([e for e in result[2:] if isinstance(e, int)])
    expected = 2 * batch * pixels * np.prod(weight.shape)
    assert expected in [entry.operations for entry in times if entry.name.startswith("conv")]
    dense = next(node for node in graph.nodes if node.op.name == "Dense").operand(1).constant
    assert dense is not None
    counted = [entry.operations for entry in times if entry.name.startswith("dense")]
    assert counted == [2 * batch * np.prod(dense.shape)]


def test_two_open_extents_count_as_they_are_fed(tmp_path: Path) -> None:
    graph = onnx.parser.parse_graph("g (float[n,m,16] x) => (float[n,m,8] y) { y = MatMul(x, w) }")
    weight = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "rows.onnx")
    executable = qb.compile(qb.load(tmp_path / "rows.onnx"))
    times = kernel_times(executable, {"x": np.zeros((3, 5, 16), np.float32)}, repeats=1)
    assert [entry.operations for entry in times if entry.operations] == [2 * 3 * 5 * 16 * 8]


def test_inputs_are_checked() -> None:
    with pytest.raises(InputDataError):
        kernel_times(digits(), {})


def test_the_limit_is_a_rate() -> None:
    target = host_target()
    found = limit(cpu_of(target), target)
    assert 1e9 < found < 1e14
    assert limit(cpu_of(target), target) == found


def test_of_branches_the_one_that_is_taken_is_timed(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n,4] x, bool c) => (float[n,4] y) {
        a = Tanh(x)
        z = If(c) <
            then_branch = t () => (float[n,4] p) { p = Sigmoid(a) },
            else_branch = e () => (float[n,4] q) { u = Floor(x) q = Ceil(u) }
        >
        y = Neg(z)
    }"""
    (tmp_path / "branches.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    executable = qb.compile(qb.load(tmp_path / "branches.onnx"))
    for condition, branch in ((True, {"sigmoid"}), (False, {"floor", "ceil"})):
        data = {"x": np.ones((3, 4), np.float32), "c": np.array(condition)}
        names = " ".join(entry.name for entry in kernel_times(executable, data, repeats=1))
        assert {name for name in ("sigmoid", "floor", "ceil") if name in names} == branch
        assert "tanh" in names and "negative" in names
        times = node_times(executable, data, repeats=1)
        assert times.kernels == {"a": "tir_tanh", "z": "onnx_if", "y": "tir_negative"}
        assert min(times.seconds.values()) > 0
