"""Tiles are right on every class of CPUs, and indices out of bounds read no memory of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.executable import lowered
from qdqbridge.tvm.relax.kernels.codegen.processors import target_of
from tests.onnx_models import Builder, canonical, run


def tiled(shape: list[int | str], repeats: list[int], dtype: int) -> Builder:
    b = Builder(17)
    b.output(b.op("Tile", b.input("x", shape, dtype), b.init(np.array(repeats))), elem_type=dtype)
    return b


@pytest.mark.parametrize("target", ["host", "llvm", {"kind": "llvm", "mcpu": "core-avx2"}])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_extents_that_are_powers_of_two(target: object, dtype: str) -> None:
    """LLVM 22 takes ``i % 4`` for consecutive behind an unrolled loop: wrong elements were read."""
    if target == {"kind": "llvm", "mcpu": "core-avx2"} and not _has_avx2():
        target = "llvm"
    elem_type = TensorProto.FLOAT if dtype == "float32" else TensorProto.INT8
    for shape, repeats in (
        ([2, 3, 4, 5], [7, 6, 4, 2]), ([3, 4, 2], [6, 4, 2]), ([3, 16, 3], [5, 8, 2]),
    ):  # fmt: skip
        g = canonical(tiled([*shape], repeats, elem_type).model())
        x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        (want,) = run(g, {"x": x})
        (got,) = qb.compile(g, target).run({"x": x}).values()  # pyright: ignore[reportArgumentType]
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(want, np.tile(x, repeats))


def _has_avx2() -> bool:
    features = tvm.target.codegen.llvm_get_cpu_features(target_of("host"))
    return "avx2" in map(str, features)


def test_symbolic_extents_keep_their_tile() -> None:
    g = canonical(tiled(["n", 4], [3, 2], TensorProto.FLOAT).model())
    module, _ = qb.to_relax(g)
    main: Any = lowered(module)["main"]
    values = [b.value for block in main.body.blocks for b in block.bindings]
    calls: list[Any] = [value for value in values if isinstance(value, relax.Call)]
    left = [str(call.op.name) for call in calls]
    assert left == ["relax.take", "relax.tile"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (got,) = qb.compile(g).run({"x": x}).values()
    np.testing.assert_array_equal(got, np.tile(x, (3, 2)))


@pytest.mark.parametrize("index", [10**9, -(10**9)])
def test_an_index_out_of_bounds_ends_the_run(index: int) -> None:
    """What ONNX forbids is told, and does not end the process."""
    b = Builder(17)
    table = b.weight(np.arange(8, dtype=np.int8).reshape(8, 1), 1.0)
    row = b.op("Gather", table, b.input("i", [1], TensorProto.INT64))
    b.output(b.qdq(row, 1.0, 0, np.int8), [1, 1])
    executable = qb.compile(canonical(b.model()))
    with pytest.raises(InputDataError, match="beyond its data"):
        executable.run({"i": np.array([index])})


def test_compiling_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM warns of its fast way to take elements, which it is not told to go."""
    b = Builder(17)
    picked = b.op("Gather", b.qdq(b.input("x", [2, 8]), 0.5), b.init(np.array([3, -1])), axis=1)
    b.output(b.qdq(picked, 0.5), [2, 2])
    qb.compile(canonical(b.model()))
    assert capfd.readouterr().err == ""
