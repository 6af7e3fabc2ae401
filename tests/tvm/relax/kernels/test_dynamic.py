"""Kernels of products of activations that are quantized while the model runs: bit for bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from qdqbridge import from_relax, to_relax
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.dynamic import DynamicAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.combinations import each_once
from tests.core.graph.graphs import apply, const, graph, plain, quant, typed
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, target_of

Shape = tuple["int | str", ...]


def product(
    x: Value, units: int, seed: int, *, zero_point: int = 0, bias: bool = True, rows: bool = False
) -> Value:
    rng, shape = np.random.default_rng(seed), x.type.shape
    assert shape is not None
    codes = rng.integers(-128, 128, (units, int(shape[-1])), np.int8)
    params = quant(
        DType.INT8, rng.uniform(1e-3, 1e-2, units).astype(np.float32), zero_point, axis=0
    )
    operands = [const(codes, params)]
    operands += [const(rng.normal(0, 1, units).astype(np.float32))] if bias else []
    type_, attributes = typed((*shape[:-1], units)), DynamicAttrs(rows)
    return apply("DynamicDense", x, *operands, type_=type_, attributes=attributes)


def check(found: Graph, *batches: tuple[int, ...], cpu: Cpu = HOST, threads: int = 1) -> None:
    """Compares all that a graph gives with the interpreter, for data of some shapes."""
    executable = compile_relax(found, target_of(cpu), threads=threads)
    for number, shape in enumerate(batches):
        rng = np.random.default_rng(number)
        x = rng.normal(rng.normal(), 1, shape).astype(np.float32)
        compare(executable, found, x)


def compare(executable: Any, found: Graph, x: np.ndarray) -> None:
    wanted, got = evaluate(found, {"x": x})[0], executable.run({"x": x})
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


def names(found: Graph, cpu: Cpu = HOST) -> list[str]:
    return sorted(kernel.name for kernel in plan(found, cpu).kernels.values())


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_products_share_the_codes_of_an_activation(cpu: Cpu) -> None:
    x = plain("x", (3, 7, 45))
    found = graph([x], product(x, 35, 1), product(x, 64, 2, bias=False, zero_point=5))
    assert names(found, cpu) == ["dynamic_codes", "dynamic_dense_45x35", "dynamic_dense_45x64"]
    check(found, (3, 7, 45), cpu=cpu)


@pytest.mark.parametrize(
    ("shape", "cpu"),
    each_once([["n", 64], ["n", "m", 64], [2, "m", 64], ["n", 3, "m", 30]], DOT_CPUS),
)
def test_one_kernel_for_any_number_of_rows(shape: list[Any], cpu: Cpu) -> None:
    x = plain("x", tuple(shape))
    found = graph([x], product(x, 40, 1))
    assert len(names(found, cpu)) == 2
    given = (*range(1, 32), 57, 112, 113, 125, 128, 129, 144, 161, 230)

    def sized(rows: int) -> tuple[int, ...]:
        opened = [rows if axis == "m" or "m" not in shape else 1 for axis in shape]
        return tuple(e if isinstance(e, int) else n for e, n in zip(shape, opened, strict=True))

    check(found, *map(sized, given), cpu=cpu)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_ones_on_several_threads(threads: int) -> None:
    x = plain("x", ("n", "m", 260))
    check(graph([x], product(x, 300, 1)), (2, 150, 260), (1, 1, 260), threads=threads)


@pytest.mark.parametrize(
    ("shape", "threads"),
    each_once([["n", 3, "h", "w"], ["n", 3, 9, "w"], [1, 3, "h", 7]], [1, 2]),
)
def test_convolutions_of_open_pictures(shape: list[Any], threads: int) -> None:
    """Of a picture that is open to its last extent the codes have a kernel, too."""
    rng, x = np.random.default_rng(2), plain("x", tuple(shape))
    own = quant(DType.INT8, rng.uniform(1e-3, 1e-2, 5).astype(np.float32), 0, axis=0)
    kernel = const(rng.integers(-128, 128, (5, 3, 3, 3), np.int8), own)
    opened: Shape = (shape[0], 5, *shape[2:])
    type_, attributes = typed(opened), ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))
    found = graph([x], apply("DynamicConv", x, kernel, type_=type_, attributes=attributes))
    assert names(found)[0] == "dynamic_codes"
    sizes = {"n": 2, "h": 9, "w": 7}
    check(found, tuple(sizes[e] if isinstance(e, str) else e for e in shape), threads=threads)


SPECIAL = {
    "zeros": [0.0, -0.0],
    "positive": [1.0, 2.0],
    "negative": [-1.0, -2.0],
    "tiny": [1e-42, -3e-43],
    "small": [3e-33, -2e-33],
    "huge": [3e38, -3e38],
    "no numbers": [np.nan, 1.0, -2.0],
    "infinite": [np.inf, 1.0, -2.0],
    "minus infinity": [-np.inf, 1.0, 2.0],
    "both infinities": [np.inf, -np.inf, 2.0],
    "nothing else": [np.nan],
}


@cache
def compiled(kernels: str) -> tuple[Any, Graph]:
    """One product, which every kind of data runs through."""
    x = plain("x", ("n", 97))
    found = graph([x], product(x, 20, 1, bias=False))
    return compile_relax(found, kernels=kernels), found


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_extremes(kind: str, kernels: str) -> None:
    data = np.random.default_rng(2).choice(np.array(SPECIAL[kind], np.float32), (6, 97))
    compare(*compiled(kernels), data)


def test_rows_by_themselves_are_plain_loops() -> None:
    x = plain("x", ("n", 30))
    found = graph([x], product(x, 20, 1, rows=True))
    assert not names(found)
    check(found, (5, 30))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_there_and_back(rows: bool, bias: bool) -> None:
    x = plain("x", ("n", "m", 30))
    found = graph([x], product(x, 20, 1, rows=rows, bias=bias))
    again = from_relax(to_relax(found)[0])
    canonicalize(found)
    assert again.digest == found.digest
