"""Single Relax operators: what TVM's virtual machine computes, onnxruntime computes on the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import onnxruntime as ort
import tvm
from tvm import relax

import qdqbridge as qb
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.relax.dialect import tensor_type

op: Any = relax.op
const: Any = relax.const
ROW = np.arange(3, dtype=np.float32)
PLANE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
OUTSIDE = np.array([-4, -1, 0, 1, 2, 5])
PAIR = np.array([5, 6], np.float32)

CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "take clip": (lambda a: op.take(a, const(OUTSIDE, "int64"), axis=0, mode="clip"), [ROW]),
    "take wrap": (lambda a: op.take(a, const(OUTSIDE, "int64"), axis=0, mode="wrap"), [ROW]),
    "take clip, run time": (lambda a, i: op.take(a, i, axis=0, mode="clip"), [ROW, OUTSIDE]),
    "tile to more axes": (lambda a: op.tile(a, [2, 1, 2]), [ROW]),
    "scatter_nd by int32": (
        lambda a: op.scatter_nd(a, const(np.array([[1], [0]]), "int32"), const(PAIR), "add"),
        [ROW],
    ),
    "cast matrix of indices": (
        lambda a: op.take(a, op.astype(const(np.array([[1], [0]]), "int32"), "int64"), axis=0),
        [ROW],
    ),
    "linear resize with cubic_exclude": (
        lambda a: op.image.resize2d(
            a, (8, 8), layout="NCHW", method="linear",
            coordinate_transformation_mode="half_pixel", cubic_exclude=1,
        ),
        [PLANE],
    ),
    "TopK of opset 11 behind Swish of 24": (
        lambda a: op.topk(op.sinh(op.nn.silu(a)), k=2, axis=0, ret_type="indices", dtype="int64"),
        [ROW],
    ),
}  # fmt: skip


def module_of(make: Callable[..., Any], arrays: list[Any]) -> Any:
    inputs = [relax.Var(f"x{i}", tensor_type(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        builder.emit_func_output(builder.emit(make(*inputs)))
    return builder.finalize()


@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_what_the_module_does(name: str, tmp_path: Path) -> None:
    make, arrays = CASES[name]
    module = module_of(make, arrays)
    lowered: Any = relax.get_pipeline("zero")(module)
    device: Any = tvm.cpu()
    build: Any = tvm.compile
    machine: Any = relax.VirtualMachine(build(lowered, target="llvm"), device)
    expected = machine["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()
    path = tmp_path / "m.onnx"
    qb.save(qb.from_relax(module), path)
    session: Any = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]
    np.testing.assert_array_equal(found, expected, strict=True)


def test_indices_that_wrap_at_run_time_are_refused() -> None:
    module = module_of(lambda a, i: op.take(a, i, axis=0, mode="wrap"), [ROW, OUTSIDE])
    with pytest.raises(UnsupportedModelError) as error:
        qb.from_relax(module)
    assert "wraps" in error.value.why
