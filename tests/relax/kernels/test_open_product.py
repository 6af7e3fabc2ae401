"""Products of two float32 activations with open extents: the bits of fixed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.graph.graph import Graph
from qdqbridge.relax.executable import build
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.plan import plan
from tests.graph.graphs import apply, graph, plain, typed
from tests.relax.kernels.kernel_cases import DOT_CPUS, HOST, target_of

EXTENTS = [
    (1, 1, 1, 1), (2, 19, 7, 85), (3, 4, 64, 64), (1, 5, 3, 16), (2, 130, 33, 17), (1, 2, 0, 3),
    (0, 4, 4, 4), (2, 0, 3, 7), (2, 3, 5, 0), (1, 64, 65, 128),
]  # fmt: skip


def product(first: tuple[Any, ...], second: tuple[Any, ...]) -> Graph:
    a, b = plain("a", first), plain("b", second)
    return graph([a, b], apply("MatMul", a, b, type_=typed((*first[:-1], second[-1]))))


OPEN = product(("n", 3, "rows", "inner"), ("n", 3, "inner", "columns"))


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_any_extents_have_the_bits_of_fixed_ones(cpu: Cpu, threads: int) -> None:
    executable = build(OPEN, target_of(cpu), threads=threads)
    rng = np.random.default_rng(threads)
    for n, rows, inner, columns in EXTENTS:
        a = rng.normal(0, 1, (n, 3, rows, inner)).astype(np.float32)
        b = rng.normal(0, 1, (n, 3, inner, columns)).astype(np.float32)
        (got,) = executable.run({"a": a, "b": b}).values()
        assert got.shape == (n, 3, rows, columns)
        exact = a.astype(np.float64) @ b
        # sums of at most 65 products of normal numbers, rounded once per step
        assert np.abs(got - exact).max(initial=0) < 65 * 2.0**-24 * 65
        if min(n, rows, inner, columns) and inner % 2:
            fixed = build(product(a.shape, b.shape), target_of(cpu), threads=1)
            assert np.array_equal(got, next(iter(fixed.run({"a": a, "b": b}).values())))


def test_which_products_have_it() -> None:
    def kernels(first: tuple[Any, ...], second: tuple[Any, ...]) -> list[bool]:
        found = plan(product(first, second), HOST)
        return [kernel.name == "float_matmul_open" for kernel in found.kernels.values()]

    assert kernels(("n", 2, "s", 8), ("n", 2, 8, "s")) == [True]
    assert kernels(("s", "t"), ("t", 5)) == [True]
    assert kernels(("n", 2, "s", 8), (1, 2, 8, "s")) == []  # a matrix for all
    assert kernels((2, 4, 8), (2, 8, 3)) == [False]
