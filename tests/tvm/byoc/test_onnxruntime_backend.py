"""The reference backend: what onnxruntime computes from the file, inside TVM's virtual machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import tvm
import tvm_ffi
from tvm import ir, relax

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.byoc import canonical, partition
from qdqbridge.tvm.byoc import onnxruntime_backend as backend
from tests.exact_sessions import exact_session
from tests.tvm.relax.single_ops import Array, Model, X, codes, const, params

pytestmark = pytest.mark.relax

NAMES = (
    "digits_cnn_u8s8_per_channel",
    "digits_cnn_s8s8_per_tensor",
    "digits_attention_u8s8_per_channel",
)
CNN = MODELS / f"{NAMES[0]}.onnx"


def images(count: int) -> dict[str, Array]:
    return {"input": np.load(MODELS / "digits_test.npz")["x"][:count].astype(np.float32)}


def onnxruntime(model: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    """Returns what onnxruntime computes, all of its optimizations on."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = exact_session(model, options)
    names = [value.name for value in session.get_outputs()]
    results: Any = session.run(names, inputs)
    return dict(zip(names, results, strict=True))


def same(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def externs(executable: qb.Executable, **fields: Any) -> list[str]:
    """Returns the names of the regions that the main function calls."""
    divided, _ = partition(executable.module, fields.get("taken", backend.table()))
    module = backend.offload(divided, threads=fields.get("threads", 0))
    main: Any = module["main"]
    calls: list[Any] = [b.value for block in main.body.blocks for b in block.bindings]
    external = ir.Op.get("relax.call_dps_packed")
    return [str(c.args[0].global_symbol) for c in calls if getattr(c, "op", None) == external]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_one_region_and_equals_onnxruntime_on_the_file(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    executable, coverage = backend.compile(qb.load(path))
    assert len(coverage.regions) == 1 and not coverage.left
    for count in (1, 7):  # the batch is symbolic
        same(executable.run(images(count)), onnxruntime(path, images(count)))


def test_several_regions_with_tvm_in_between() -> None:
    taken = backend.table().without("max_pool2d", "reshape")
    executable, coverage = backend.compile(qb.load(CNN), taken=taken)
    assert len(coverage.regions) == 3
    assert {left.operator for left in coverage.left} == {"nn.max_pool2d", "reshape"}
    assert len(set(externs(executable, taken=taken))) == 3
    same(executable.run(images(5)), onnxruntime(CNN, images(5)))


def with_island() -> Model:
    """``Q -> Softmax`` whose result stays float for a Mul with two readers."""
    m = Model()
    b = m.builder
    first = b.op("Softmax", m.operand(X(codes((2, 8), "int8"), params("int8", 0.1))), axis=-1)
    other = m.operand(X(codes((2, 8), "uint8", 1), params("uint8", 0.02, 7)))
    product = b.op("Mul", first, b.op("Exp", first))
    m.finish(b.op("Add", product, other), params("int8", 0.05, -3))
    m.finish(b.op("Add", other, m.operand(const(np.float32(0.7)))), params("uint8", 0.03, 1))
    b.output(product, [2, 8], 1)
    return m


def test_float_islands_and_several_results() -> None:
    m = with_island()
    graph = m.load()
    wanted = onnxruntime(m.proto(), m.inputs)
    executable, coverage = backend.compile(graph)
    assert not coverage.left
    same(executable.run(m.inputs), wanted)
    only_integers = canonical(backend.NAME)  # TVM computes the floats, in its own way
    divided, coverage = backend.compile(graph, taken=only_integers)
    assert {left.kind for left in coverage.left} == {"float"}
    got = divided.run(m.inputs)
    for name, array in wanted.items():
        if array.dtype.kind == "f":  # a float operator of TVM's: within some ulp
            np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(got[name], array)


def test_equal_regions_have_one_session_and_others_their_own() -> None:
    (first,), (again,) = (externs(backend.compile(qb.load(CNN))[0]) for _ in range(2))
    (other,) = externs(backend.compile(qb.load(MODELS / f"{NAMES[1]}.onnx"))[0])
    (threads,) = externs(backend.compile(qb.load(CNN))[0], threads=1)
    assert first == again and len({first, other, threads}) == 3
    assert tvm_ffi.get_global_func(first) is not None


def test_threads_share_a_session() -> None:
    module, _ = qb.to_relax(qb.load(CNN))
    divided, _ = partition(module, backend.table())
    library = tvm.compile(backend.offload(divided, threads=1), tvm.target.Target("llvm"))
    device: Any = tvm.cpu()
    wrong: list[int] = []

    def work(count: int) -> None:
        inputs = images(count)
        machine = relax.VirtualMachine(library, device)
        wanted = onnxruntime(CNN, inputs)["logits"]
        tensor = tvm.runtime.tensor(inputs["input"])
        for _ in range(20):
            wrong.append(int((machine["main"](tensor).numpy() != wanted).sum()))

    workers = [threading.Thread(target=work, args=(count,)) for count in (1, 2, 3, 8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == [0] * 80


LOADER = """
import sys
import numpy as np, tvm
from tvm import relax
from qdqbridge.tvm.byoc import onnxruntime_backend as backend
library = tvm.runtime.load_module(sys.argv[1])
if sys.argv[4] == "restore":
    backend.restore(library)
machine = relax.VirtualMachine(library, tvm.cpu())
result = machine["main"](tvm.runtime.tensor(np.load(sys.argv[2])))
np.save(sys.argv[3], result.numpy())
"""


@pytest.mark.parametrize("taken", [
    backend.table().without("max_pool2d"),  # several regions
    pytest.param(backend.table(), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_library_runs_in_another_process(tmp_path: Path, taken: Any) -> None:
    executable, _ = backend.compile(qb.load(CNN), taken=taken)
    executable.library.export_library(str(tmp_path / "model.so"))
    np.save(tmp_path / "x.npy", images(3)["input"])
    files = [str(tmp_path / name) for name in ("model.so", "x.npy", "y.npy")]
    command = [sys.executable, "-c", LOADER, *files]
    subprocess.run([*command, "restore"], check=True, timeout=240, capture_output=True)
    np.testing.assert_array_equal(
        np.load(tmp_path / "y.npy"), onnxruntime(CNN, images(3))["logits"]
    )
    refused = subprocess.run(
        [*command, "forget"], check=False, timeout=240, capture_output=True, text=True
    )
    assert refused.returncode != 0 and backend.NAME in refused.stderr


def test_a_library_without_regions_can_be_restored() -> None:
    executable, coverage = backend.compile(qb.load(CNN), taken=backend.table().only("softmax"))
    assert not coverage.regions
    backend.restore(executable.library.mod)
    graph = executable.graph
    same(executable.run(images(2)), qb.evaluate(graph, images(2)))


def test_what_onnxruntime_refuses_says_which_region() -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot load a region") as caught:
        backend.load("some_region", b"no model", 1)
    assert "some_region" in str(caught.value) and "without" in caught.value.fix
    with pytest.raises(UnsupportedTargetError, match="no target"):
        backend.compile(qb.load(CNN), "no-such-target")
