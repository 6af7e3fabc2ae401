"""Kernels of products of two activations, with the transposes around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape
from qdqbridge.core.ops.attributes import ReshapeAttrs, TransposeAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from qdqbridge.tvm.relax.kernels.products.matmul import match_matmul
from tests.combinations import each_once
from tests.core.graph.graphs import apply, plain, stored, typed
from tests.core.graph.graphs import graph as small
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels import random_products
from tests.tvm.relax.kernels.kernel_cases import CPUS, DOT_CPUS, HOST, Cases, target_of

HEADS, DEPTH, TOKENS = 3, 20, 18


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_random(cpu: Cpu) -> None:
    rng, cases = np.random.default_rng(8), Cases(match_matmul, cpu)
    for _ in range(20 if cpu == HOST else 8):
        name, attributes, operands, out = random_products.activations(rng)
        cases.add(name, attributes, operands, out)
    cases.check()


def _typed(own: QuantParams, shape: Shape) -> QuantType:
    return QuantType(own, shape)


def _heads(x: Value, own: QuantParams, batch: Any, tokens: Any, *perm: int) -> Value:
    shape = (batch, tokens, HEADS, DEPTH)
    target = ReshapeAttrs((0, 0, HEADS, DEPTH))
    split = apply("Reshape", x, type_=_typed(own, shape), attributes=target)
    permuted = tuple(shape[axis] for axis in perm)
    return apply("Transpose", split, type_=_typed(own, permuted), attributes=TransposeAttrs(perm))


def _attention(
    batch: Any, tokens: Any = TOKENS, fed: tuple[int, int] = (2, TOKENS)
) -> tuple[Graph, dict[str, Any]]:
    """Scores of queries and keys, and their product with values, heads apart."""
    rng, inputs, feeds = np.random.default_rng(1), [], {}
    codes = [params("uint8", 0.02, 140), params("int8", 0.02, -3), params("uint8", 0.03, 0)]
    for name, own in zip("qkv", codes, strict=True):
        inputs.append(stored(name, own, (batch, tokens, HEADS * DEPTH)))
        dtype = own.storage_dtype.label
        feeds[name] = every_code(rng, dtype, (*fed, HEADS * DEPTH))
    q, k, v = (
        _heads(x, own, batch, tokens, *perm)
        for x, own, perm in zip(
            inputs, codes, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], strict=True
        )
    )
    middle, out = params("uint8", 0.9, 128), params("int8", 3.0, 5)
    scores = apply("MatMul", q, k, type_=_typed(middle, (batch, HEADS, tokens, tokens)))
    mixed = apply("MatMul", scores, v, type_=_typed(out, (batch, HEADS, tokens, DEPTH)))
    back = apply(
        "Transpose",
        mixed,
        type_=_typed(out, (batch, tokens, HEADS, DEPTH)),
        attributes=TransposeAttrs((0, 2, 1, 3)),
    )
    flat = apply(
        "Reshape",
        back,
        type_=_typed(out, (batch, tokens, HEADS * DEPTH)),
        attributes=ReshapeAttrs((0, 0, HEADS * DEPTH)),
    )
    graph = Graph(inputs, [flat], ["y"], [])
    Editor(graph).finish()
    return graph, feeds


@pytest.mark.parametrize("batch", [2, "batch"])
def test_transposes_are_read_and_written_through(batch: Any) -> None:
    graph, feeds = _attention(batch)
    made = plan(graph, HOST)
    assert sorted(node.op.name for node in made.needed) == [
        "MatMul", "Reshape", "Transpose",
    ]  # fmt: skip
    (wanted,) = evaluate(graph, feeds)[0].values()
    for cpu in CPUS if batch == 2 else CPUS[:1]:
        (got,) = compile_relax(graph, target_of(cpu)).run(feeds).values()
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("cpu", "threads"), each_once(CPUS, [2, 1]))
def test_open_extents_have_the_kernels_and_codes_of_known_ones(cpu: Cpu, threads: int) -> None:
    open_graph, _ = _attention("batch", "tokens")
    needed = plan(open_graph, HOST).needed
    assert sorted(node.op.name for node in needed) == ["MatMul", "Reshape", "Transpose"]
    executable = compile_relax(open_graph, target_of(cpu), threads=threads)
    # tiles of 14, 4 and 1 rows, of two blocks and parts of one, and steps of four that end inside
    for fed in ((1, 1), (3, 3), (2, 5), (2, TOKENS), (1, 33), (1, 64), (1, 75), (0, 4), (2, 0)):
        _, feeds = _attention("batch", "tokens", fed)
        (wanted,) = evaluate(open_graph, feeds)[0].values()
        (got,) = executable.run(feeds).values()
        np.testing.assert_array_equal(got, wanted, err_msg=str(fed))


@pytest.mark.parametrize(("rows", "columns"), each_once(["rows", 1, 3, 6, 20], ["columns", 17]))
def test_some_extents_are_open(rows: Any, columns: Any) -> None:
    first, second = params("uint8", 0.02, 140), params("int8", 0.02, -3)
    a = stored("a", first, (rows, "inner"))
    b = stored("b", second, ("inner", columns))
    out = _typed(params("uint8", 0.9, 128), (rows, columns))
    y = apply("MatMul", a, b, type_=out)
    graph = Graph([a, b], [y], ["y"], [])
    Editor(graph).finish()
    assert len(plan(graph, HOST).kernels) == 1
    executable, rng = compile_relax(graph), np.random.default_rng(4)
    for high, k, wide in ((1, 1, 1), (5, 6, 3), (14, 4, 32), (31, 9, 50)):
        n, m = high if rows == "rows" else rows, wide if columns == "columns" else columns
        feeds = {"a": every_code(rng, "uint8", (n, k)), "b": every_code(rng, "int8", (k, m))}
        (wanted,) = evaluate(graph, feeds)[0].values()
        np.testing.assert_array_equal(executable.run(feeds)["y"], wanted)


def test_a_transpose_that_others_read_stays() -> None:
    graph, feeds = _attention(2)
    mixed = graph.nodes[-3].output
    graph.outputs.append(mixed)
    graph.output_names.append("mixed")
    assert {node.op.name for node in plan(graph, HOST).needed} >= {"Transpose", "MatMul"}
    wanted, got = evaluate(graph, feeds)[0], compile_relax(graph).run(feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


FLOATS = [
    (1, 1, 1, 1), (2, 19, 7, 85), (3, 4, 64, 64), (1, 5, 3, 16), (2, 130, 33, 17), (1, 2, 0, 3),
    (0, 4, 4, 4), (2, 0, 3, 7), (2, 3, 5, 0), (1, 64, 65, 128),
]  # fmt: skip


def _floats(first: tuple[Any, ...], second: tuple[Any, ...]) -> Graph:
    a, b = plain("a", first), plain("b", second)
    return small([a, b], apply("MatMul", a, b, type_=typed((*first[:-1], second[-1]))))


OPEN_FLOATS = _floats(("n", 3, "rows", "inner"), ("n", 3, "inner", "columns"))


@pytest.mark.parametrize(("cpu", "threads"), each_once(DOT_CPUS, [2, 1]))
def test_floats_of_any_extents_have_the_bits_of_fixed_ones(cpu: Cpu, threads: int) -> None:
    executable = compile_relax(OPEN_FLOATS, target_of(cpu), threads=threads)
    rng = np.random.default_rng(threads)
    for n, rows, inner, columns in FLOATS:
        a = rng.normal(0, 1, (n, 3, rows, inner)).astype(np.float32)
        b = rng.normal(0, 1, (n, 3, inner, columns)).astype(np.float32)
        (got,) = executable.run({"a": a, "b": b}).values()
        assert got.shape == (n, 3, rows, columns)
        exact = a.astype(np.float64) @ b
        # sums of at most 65 products of normal numbers, rounded once per step
        assert np.abs(got - exact).max(initial=0) < 65 * 2.0**-24 * 65
        if min(n, rows, inner, columns) and inner % 2:
            fixed = compile_relax(_floats(a.shape, b.shape), target_of(cpu), threads=1)
            assert np.array_equal(got, next(iter(fixed.run({"a": a, "b": b}).values())))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("n", 2, "s", 8), ("n", 2, 8, "s")),
        (("s", "t"), ("t", 5)),
        (("n", 2, "s", 8), (1, 2, 8, "s")),  # a matrix for all
        ((2, 4, 8), (2, 8, 3)),
    ],
)
def test_products_of_floats_have_a_kernel(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    (kernel,) = plan(_floats(first, second), HOST).kernels.values()
    assert kernel.name.startswith("float_matmul")
