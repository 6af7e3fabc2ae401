"""Building in parts: the same results, in the file too, for this machine and for others."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.dynamic import DynamicAttrs
from qdqbridge.tvm.relax import executable as building
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import WORK
from tests.core.graph.graphs import apply, const, plain, quant, typed
from tests.core.graph.graphs import graph as graph_of
from tests.places import MODELS
from tests.tvm.relax.kernels.kernel_cases import CPUS, target_of

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
ONE, TWO = [0], [0, 1]


@pytest.fixture
def graph() -> qb.Graph:
    return qb.load(MODEL)


def _parts(executable: qb.Executable) -> int:
    """How many libraries TVM linked."""
    return len(executable.library.mod.imports)


@pytest.mark.parametrize("cores, parts", [(ONE, 1), (TWO, 3)])
def test_parts_run_as_one_does(
    graph: qb.Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: list[int], parts: int
) -> None:
    monkeypatch.setattr(building, "cores", lambda: cores)
    monkeypatch.setattr(building, "_LEAST", 1)
    executable = qb.compile(graph, threads=1)
    assert _parts(executable) == parts
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=(3, *map(int, (value.type.shape or ())[1:]))).astype(np.float32)
        for value in graph.inputs
    }
    expected = qb.evaluate(graph, feeds)
    executable.save(tmp_path / "saved.so")
    for made in (executable, qb.load_executable(tmp_path / "saved.so")):
        for name, array in made.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_kernels_of_several_results(monkeypatch: pytest.MonkeyPatch, cpu: Cpu) -> None:
    """Codes of activations that are quantized while the model runs: they, a scale, a zero point."""
    monkeypatch.setattr(building, "cores", lambda: TWO)
    monkeypatch.setattr(building, "_LEAST", 1)
    rng = np.random.default_rng(1)
    own = quant(DType.INT8, rng.uniform(1e-3, 1e-2, 5).astype(np.float32), 0, axis=0)
    x = plain("x", (2, 3, 6, 6))
    kernel = const(rng.integers(-128, 128, (5, 3, 3, 3), np.int8), own)
    type_, attributes = typed((2, 5, 4, 4)), ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0))
    made = apply("DynamicConv", x, kernel, type_=type_, attributes=attributes)
    weight = const(rng.integers(-128, 128, (5, 4), np.int8), own)
    type_, rows = typed((2, 5, 4, 5)), DynamicAttrs(rows=False)
    found = graph_of([x], apply("DynamicDense", made, weight, type_=type_, attributes=rows))
    executable = qb.compile(found, target_of(cpu), threads=1)
    assert _parts(executable) == 3
    feeds = {"x": rng.normal(0, 2, (2, 3, 6, 6)).astype(np.float32)}
    ((name, array),) = executable.run(feeds).items()
    np.testing.assert_array_equal(array, qb.evaluate(found, feeds)[name])


def test_for_another_machine(graph: qb.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that this machine may not run is made for a file, never made ready."""
    monkeypatch.setattr(building, "cores", lambda: TWO)
    monkeypatch.setattr(building, "_LEAST", 1)
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    assert _parts(qb.compile(graph, target)) == 3


def test_settings_of_the_caller_hold_in_every_part(
    graph: qb.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "cores", lambda: TWO)
    monkeypatch.setattr(building, "_LEAST", 1)
    seen: list[int] = []
    build = tvm.tirx.build

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(int(tvm.transform.PassContext.current().opt_level))
        return build(*args, **options)

    monkeypatch.setattr(tvm.tirx, "build", watched)
    with tvm.transform.PassContext(opt_level=1):
        qb.compile(graph, kernels="reference")  # plain loops are no kernels: one module
        assert seen == [1]
        qb.compile(graph)
    assert seen == [1] * 4


def test_threads_that_compile_at_once(graph: qb.Graph) -> None:
    """TVM's list of open block builders is one for all threads."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda _: qb.compile(graph, threads=1), range(2)))
    finally:
        sys.setswitchinterval(interval)
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    feeds = {graph.inputs[0].name: x}
    expected = qb.evaluate(graph, feeds)
    for executable in made:
        for name, array in executable.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name])


def _adding(number: float) -> Any:
    given: Any = te.placeholder((4,), "float32", "given")
    made: Any = te.compute((4,), lambda i: given[i] + number, "made")
    return te.create_prim_func([given, made])


def test_what_tvm_adds_may_be_called_as_a_kernel_of_a_part_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM looks a name up in all libraries, and called its own ``add`` for the kernel, or it."""
    monkeypatch.setattr(building, "cores", lambda: TWO)
    monkeypatch.setattr(building, "_LEAST", 1)
    builder = relax.BlockBuilder()
    shape: Any = [4]
    x: Any = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        y: Any = x
        for name, number in (("kept", 1.0), ("add", 10.0), ("other", 100.0)):
            kernel = _adding(number).with_attr(WORK, 1)
            called = builder.add_func(kernel.without_attr("global_symbol"), name)
            y = builder.emit(relax.call_tir(called, y, x.ty))
        builder.emit_func_output(builder.emit(relax.op.add(y, y)))
    built = building.built(builder.get(), tvm.target.Target("llvm"), runs_here=True)
    cpu: Any = tvm.cpu()
    machine: Any = relax.VirtualMachine(built, cpu)
    found = machine["main"](tvm.runtime.tensor(np.arange(4, dtype=np.float32)))
    np.testing.assert_array_equal(found.numpy(), [222, 224, 226, 228])


WRONG = [np.zeros((2, 3), np.float32), np.zeros((3, 2), np.int32), np.zeros(6, np.float32)]


@pytest.mark.parametrize("rows, asked", [(3, False), ("n", True)])
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_what_the_machine_knows_is_not_asked_again(kernels: Any, rows: Any, asked: bool) -> None:
    """TVM's machine looks at what a model is given; functions at extents that a run decides."""
    x = plain("x", (rows, 2))
    made = apply("Add", x, const(np.ones(2, np.float32)), type_=typed((rows, 2)))
    executable = qb.compile(graph_of([x], made), kernels=kernels, threads=1)
    assert ("Mismatched " in executable.library.mod.imports[0].inspect_source("ll")) == asked
    cpu: Any = tvm.cpu()
    machine: Any = relax.VirtualMachine(executable.library, cpu)
    for wrong in WRONG[asked:]:  # any number of rows is right where it is open
        with pytest.raises(Exception, match=r"main|x"):
            machine["main"](tvm.runtime.tensor(wrong))
