"""Products of float32 with weights in blocks on dot products of bytes: as exact as float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.dynamic import BlockAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import AVX2, Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from qdqbridge.tvm.relax.kernels.weight_only import dots
from tests.combinations import each_once
from tests.core.graph.graphs import apply, const, graph, plain, quant, typed
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, target_of

BYTES = [cpu for cpu in DOT_CPUS if cpu.dot.code_bits == 8]
pytestmark = pytest.mark.skipif(not BYTES, reason="this CPU does not multiply bytes")
UNITS, INNER = 53, 128
KINDS = {
    "int4": (DType.INT4, 0),
    "uint4": (DType.UINT4, 8),
    "uint4 from 3": (DType.UINT4, 3),
    "uint4 each": (DType.UINT4, None),
    "int8": (DType.INT8, 0),
    "uint8 each": (DType.UINT8, None),
}


def network(
    kind: str,
    size: int,
    shape: tuple[Any, ...] = ("n", INNER),
    *,
    rounded: bool = False,
    bias: bool = True,
    units: int = UNITS,
    extreme: bool = False,
) -> Graph:
    rng, (dtype, point) = np.random.default_rng(size), KINDS[kind]
    inner = int(shape[-1])
    blocks = units, inner // size
    codes = rng.integers(dtype.qmin, dtype.qmax + 1, (units, inner)).astype(dtype.numpy)
    zeros = rng.integers(dtype.qmin, dtype.qmax + 1, blocks) if point is None else point
    if extreme:  # as far from their zero points as codes can be, above and below in turn
        above = np.arange(units)[:, None] % 2 == 0
        codes[:] = np.where(above, dtype.qmax, dtype.qmin)
        zeros = np.where(above, dtype.qmin, dtype.qmax) if point is None else point
    scale = rng.uniform(0.01, 0.02, blocks).astype(np.float32)
    params = quant(dtype, scale, np.broadcast_to(zeros, blocks), axis=1, block_size=size)
    added = [const(rng.normal(0, 1, units).astype(np.float32))] if bias else []
    x = plain("x", shape)
    operands, type_ = [const(codes, params), *added], typed((*shape[:-1], units))
    if rounded:
        y = apply("DynamicBlockDense", x, *operands, type_=type_, attributes=BlockAttrs(size))
    else:
        y = apply("Dense", x, *operands, type_=type_)
    return graph([x], y)


def errors(found: Graph, x: np.ndarray, executable: Any = None) -> np.ndarray:
    """Returns how far results are from the exact ones, in parts of the largest summand."""
    (name,) = found.output_names
    exact = evaluate(found, {"x": x}, exact=True)[0][name]
    got = (executable or compile_relax(found)).run({"x": x})[name]
    w = found.nodes[0].operand(1)
    assert w.quant is not None
    reach = 15 if w.quant.params.storage_dtype.bits == 4 else 255
    return np.abs(got - exact) / (np.abs(x).max() * reach * 0.02)


SIZED = list(zip(KINDS, (16, 32, 128, 64, 32, 16), strict=True))
EVERY = [
    pytest.param(kind, size, marks=() if (kind, size) in SIZED else pytest.mark.slow)
    for kind in KINDS
    for size in (16, 32, 64, 128)
]


@pytest.mark.parametrize(("kind", "size"), [
    *SIZED[:2],
    *(pytest.param(*each, marks=pytest.mark.slow) for each in SIZED[2:]),  # below, in more rows
])  # fmt: skip
def test_three_digits_are_a_float(kind: str, size: int) -> None:
    found = network(kind, size)
    assert [k.name[:8] for k in plan(found, HOST).kernels.values()] in (
        ["dense_w4"], ["dense_w8"],
    )  # fmt: skip
    x = np.random.default_rng(1).normal(0, 1, (9, INNER)).astype(np.float32)
    # 128 products, each within 2^-24 of the largest activation; their sums in float32
    assert errors(found, x).max() < 128 * 2.0**-24


def test_a_class_without_products_of_pairs_reads_weights_otherwise() -> None:
    """No class gets instructions that its description does not name."""
    other = replace(AVX2, name="other", dot=replace(AVX2.dot, pairs=None))
    for cpu, rounded, begin in (
        (AVX2, False, ["dense_w4a32"]), (AVX2, True, ["dense_w4a8"]),
        (other, False, ["dense_w4"]), (other, True, []),
    ):  # fmt: skip
        kernels = plan(network("int4", 32, rounded=rounded), cpu).kernels.values()
        assert [kernel.name.partition("_128")[0].partition("_1x")[0] for kernel in kernels] == begin


@pytest.mark.parametrize("cpu", BYTES, ids=lambda cpu: cpu.name)
def test_one_kernel_for_any_number_of_rows(cpu: Cpu) -> None:
    found = network("uint4", 32)
    executable = compile_relax(found, target_of(cpu))
    for rows in (1, 2, 3, 5, 6, 7, 8, 9, 12, 131, 132, 133, 150):
        x = np.random.default_rng(rows).normal(0, 1, (rows, INNER)).astype(np.float32)
        assert errors(found, x, executable).max() < 128 * 2.0**-24


@pytest.mark.parametrize(
    ("rounded", "room", "threads"), each_once([(False, 1 << 15), (True, 1 << 13)], [1, 2])
)
def test_products_in_parts_have_every_bit(
    monkeypatch: pytest.MonkeyPatch, rounded: bool, room: int, threads: int
) -> None:
    """Of many rows, what caches hold is gone through at a time; sums go on where they were."""
    found = network("uint4 each", 32, ("n", 256), rounded=rounded, units=300)
    whole = compile_relax(found, threads=threads)
    monkeypatch.setattr(dots, "ROOM", room)
    monkeypatch.setattr(dots, "AMX_ROOM", room)
    monkeypatch.setattr(dots, "SPREAD", room // 16)
    monkeypatch.setattr(dots, "_PAIRS", 3)
    monkeypatch.setattr(dots, "_MANY_PAIRS", 3)
    parts = compile_relax(found, threads=threads)
    for rows in (1, 8, 9, 130):
        x = np.random.default_rng(rows).normal(0, 1, (rows, 256)).astype(np.float32)
        wanted, got = (next(iter(e.run({"x": x}).values())) for e in (whole, parts))
        np.testing.assert_array_equal(got, wanted)
        alone = next(iter(parts.run({"x": x[-1:]}).values()))
        np.testing.assert_array_equal(alone, wanted[-1:])


@pytest.mark.parametrize(("kind", "size", "rounded"), [
    *each_once(SIZED[2:5], [False, True]),
    *(pytest.param(*SIZED[i], False, marks=pytest.mark.slow) for i in (0, 1, 5)),
])  # fmt: skip
def test_a_row_has_the_same_bits_among_any_others(kind: str, size: int, rounded: bool) -> None:
    """Many rows go another way on a CPU with AMX, four pairs of columns at a time for one alone."""
    rng = np.random.default_rng(size)
    x = rng.normal(0, 1, (200, 256)).astype(np.float32) * rng.lognormal(0, 4, (200, 1))
    x = x.astype(np.float32)
    found = network(kind, size, ("n", 256), rounded=rounded, units=300)
    fixed = network(kind, size, (33, 256), rounded=rounded, units=300)
    executable = compile_relax(found, threads=2)
    (alone,) = compile_relax(network(kind, size, (1, 256), rounded=rounded, units=300)).run(
        {"x": x[:1]}
    ).values()  # fmt: skip
    (wanted,) = executable.run({"x": x}).values()
    np.testing.assert_array_equal(wanted[:1], alone)
    for rows in (1, 2, 4, 15, 16, 17, 31, 32, 33, 127, 128, 129):
        (got,) = executable.run({"x": x[-rows:]}).values()
        np.testing.assert_array_equal(got, wanted[-rows:])
    (got,) = compile_relax(fixed, threads=1).run({"x": x[:33]}).values()
    np.testing.assert_array_equal(got, wanted[:33])
    if rounded:
        np.testing.assert_array_equal(wanted, evaluate(found, {"x": x})[0][found.output_names[0]])
    else:  # 256 products, each within 2^-24 of the largest activation; their sums in float32
        assert errors(found, x, executable).max() < 256 * 2.0**-24


HIGHEST, LOWEST = (126 << 16) + 127 * 257, (127 << 16) - 128 * 257
"""Activations with lower digits of 127, and of -128, where the largest of a part is 127 << 16."""


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("int4", 32),
        ("uint4 each", 128),
        ("uint8 each", 32),
        pytest.param("uint4 from 3", 64, marks=pytest.mark.slow),
    ],
)
def test_the_largest_sums_have_every_bit(kind: str, size: int) -> None:
    """Nothing overflows on the way: all codes and activations are as large as they can be."""
    found = network(kind, size, extreme=True)
    executable = compile_relax(found)
    lower = [(digits + i) / (127 << 16) for digits in (HIGHEST, LOWEST) for i in (-1, 0, 1)]
    for low in (1.0, 1.0 - 2.0**-20, 127.0 / 128, -1.0, *lower, *(-each for each in lower)):
        x = np.full((18, INNER), low, np.float32)
        x[:, ::16] = 1.0
        (many,) = executable.run({"x": x}).values()
        (alone,) = executable.run({"x": x[:1]}).values()
        np.testing.assert_array_equal(many, np.broadcast_to(alone, many.shape))
        # sums as large as 128 summands, rounded a few times
        assert errors(found, x, executable).max() < 8 * 128 * 2.0**-24


@pytest.mark.parametrize(("rows", "rounded"), each_once(["n", 1, 8], [False, True]))
def test_threads_that_help_each_other_have_every_bit(rows: Any, rounded: bool) -> None:
    """Of few rows threads take pieces of each other's columns, and make digits of their own."""
    found = network("uint4 each", 32, (rows, INNER), rounded=rounded, units=1003)
    alone = compile_relax(found, threads=1)
    together = compile_relax(found, threads=2 if rows == 1 else 3)
    for count in (1, 2, 8, 9) if rows == "n" else (rows,):
        x = np.random.default_rng(count).normal(0, 1, (count, INNER)).astype(np.float32)
        wanted = next(iter(alone.run({"x": x}).values()))
        for _ in range(20):
            got = next(iter(together.run({"x": x}).values()))
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("shape", "threads"),
    each_once([[5, INNER], [1, INNER], [2, 60, INNER], ["a", "b", INNER]], [1, 2]),
)
def test_shapes_and_threads(shape: list[Any], threads: int) -> None:
    given = [e if isinstance(e, int) else {"a": 2, "b": 71}[e] for e in shape]
    x = np.random.default_rng(5).normal(0, 1, given).astype(np.float32)
    found = network("int4", 32, tuple(shape), bias=False)
    assert errors(found, x, compile_relax(found, threads=threads)).max() < 128 * 2.0**-24


@pytest.mark.parametrize(("kind", "size", "kernels"), [
    *(pytest.param(*each.values, "fast", marks=each.marks) for each in EVERY),
    ("uint4 each", 64, "reference"),
    ("int8", 32, "reference"),
])  # fmt: skip
def test_activations_in_blocks_are_the_interpreters(kind: str, size: int, kernels: str) -> None:
    """Every bit, for any number of rows; with a bias and without."""
    found = network(kind, size, rounded=True, bias=size != 32)
    planned = [k.name[:10] for k in plan(found, HOST).kernels.values()]
    assert planned == [f"dense_w{8 if '8' in kind else 4}a8"]
    executable = compile_relax(found, kernels=kernels)
    for rows in (1, 2, 3, 9, 57) if kernels == "fast" else (1, 5):
        x = np.random.default_rng(rows).normal(0, 1, (rows, INNER)).astype(np.float32)
        same(found, x, executable)


@pytest.mark.parametrize(("cpu", "threads"), each_once(BYTES, [2, 1]))
def test_activations_in_blocks_on_threads(cpu: Cpu, threads: int) -> None:
    found = network("uint4 each", 64, ("a", "b", INNER), rounded=True)
    x = np.random.default_rng(5).normal(0, 1, (2, 71, INNER)).astype(np.float32)
    same(found, x, compile_relax(found, target_of(cpu), threads=threads))


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_blocks_of_zeros_tiny_and_no_numbers(kernels: str) -> None:
    found = network("uint4", 32, rounded=True)
    x = np.ones((7, INNER), np.float32)
    x[0], x[1], x[2, 3], x[3, 70], x[4, :32] = 0, 1e-36, np.nan, np.inf, 1e-30
    x[5, ::2], x[6] = 3e38, -(2.0**-110)
    same(found, x, compile_relax(found, kernels=kernels))


def same(found: Graph, x: np.ndarray, executable: Any) -> None:
    (name,) = found.output_names
    np.testing.assert_array_equal(
        executable.run({"x": x})[name], evaluate(found, {"x": x})[0][name]
    )


@pytest.mark.parametrize(("kind", "block"), SIZED[::2])
def test_activations_of_any_size(kind: str, block: int) -> None:
    """What is between the scales and the digits leaves float32 neither way."""
    executable = compile_relax(network(kind, block, (3, INNER), bias=False))
    x = np.random.default_rng(1).uniform(0.5, 1, (3, INNER)).astype(np.float32)
    (wanted,) = executable.run({"x": x}).values()
    for size in (1e-32, 2.0**-109, 1e-31, 1e31, 1e33 if kind == "uint4" else 1e30):
        (got,) = executable.run({"x": x * np.float32(size)}).values()
        # each rounds 128 products to 24 bits of the largest activation
        np.testing.assert_allclose(got / np.float32(size), wanted, rtol=1e-4, atol=1e-4)


def test_zeros_tiny_and_no_numbers() -> None:
    found = network("uint4", 32, bias=False)
    x = np.zeros((5, INNER), np.float32)
    x[1] = 1e-36
    x[2, 3], x[3, 70], x[4] = np.nan, np.inf, 1
    (name,) = found.output_names
    got = compile_relax(found).run({"x": x})[name]
    assert not got[:2].any()  # below 2^-110 an activation counts as zero
    assert np.isnan(got[2:4]).all()
    np.testing.assert_allclose(got[4], evaluate(found, {"x": x[4:]})[0][name][0], rtol=1e-5)
