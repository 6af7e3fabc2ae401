"""Kernels of float32 products: close to sums in float64, with what follows them fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ClipAttrs, ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.core.graph.graphs import apply, const, plain, quant
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, target_of

ONE, PADS = (1, 1), (1, 1, 1, 1)


def real(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(0, 1, shape).astype(np.float32)


def conv(x: Value, channels: int, seed: int, *, group: int = 1, stride: int = 1) -> Value:
    rng, shape = np.random.default_rng(seed), x.type.shape
    assert shape is not None
    inputs, rows, columns = (int(extent) for extent in shape[1:])
    weight = const(real(rng, channels, inputs // group, 3, 3))
    attributes = ConvAttrs((stride, stride), ONE, PADS, group)
    extent = (shape[0], channels, (rows - 1) // stride + 1, (columns - 1) // stride + 1)
    type_ = TensorType(DType.FLOAT32, extent)
    bias = const(real(rng, channels))
    return apply("Conv", x, weight, bias, type_=type_, attributes=attributes)


def check(inputs: list[Value], outputs: list[Value], cpu: Cpu, batch: int = 2) -> list[str]:
    """Runs a graph, compares it with the interpreter; returns the names of its kernels."""
    names = [f"y{i}" for i in range(len(outputs))]
    graph = Graph(inputs, outputs, names, [])
    Editor(graph).finish()
    rng = np.random.default_rng(3)
    feeds = {
        v.name: real(rng, *(n if isinstance(n, int) else batch for n in v.type.shape or ()))
        for v in inputs
    }
    wanted, got = evaluate(graph, feeds)[0], compile_relax(graph, target_of(cpu)).run(feeds)
    for name in names:
        # A float32 sum of some hundred products of about 1 is off by some 1e-5.
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5, atol=1e-4)
    return sorted(kernel.name for kernel in plan(graph, cpu).kernels.values())


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_convolutions(cpu: Cpu) -> None:
    x = plain("x", ("n", 6, 9, 11))
    outputs = [conv(x, 20, 1), conv(x, 7, 2, stride=2), conv(x, 9, 3, group=3)]
    names = check([x], outputs, cpu)
    assert sum(name.startswith("float_conv") for name in names) == 3


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_matrices(cpu: Cpu) -> None:
    rng, x = np.random.default_rng(4), plain("x", ("n", 5, 19))
    flat, outputs = plain("f", (17, 19)), list[Value]()
    for units in (1, 16, 37):
        type_ = TensorType(DType.FLOAT32, ("n", 5, units))
        outputs.append(apply("MatMul", x, const(real(rng, 19, units)), type_=type_))
        outputs.append(
            apply(
                "Gemm",
                flat,
                const(real(rng, units, 19)),
                const(real(rng, units)),
                type_=TensorType(DType.FLOAT32, (17, units)),
                attributes=GemmAttrs(alpha=0.5, beta=2.0, trans_b=True),
            )
        )
    names = check([x, flat], outputs, cpu)
    assert sum(name.startswith("float_dense") for name in names) == 6


def test_transposed_convolutions() -> None:
    rng, x, outputs = np.random.default_rng(6), plain("x", (2, 6, 5, 7)), list[Value]()
    for kernel, pad, extent in ((2, 0, (10, 14)), (3, 1, (9, 13))):
        attributes = ConvTransposeAttrs((2, 2), ONE, (pad,) * 4, (0, 0))
        type_ = TensorType(DType.FLOAT32, (2, 18, *extent))
        weight, bias = const(real(rng, 6, 18, kernel, kernel)), const(real(rng, 18))
        outputs.append(apply("ConvTranspose", x, weight, bias, type_=type_, attributes=attributes))
    names = check([x], outputs, HOST)
    assert sum(name.startswith("float_conv_transpose") for name in names) == 2


@pytest.mark.parametrize(
    "cpu",
    [HOST, *(pytest.param(cpu, marks=pytest.mark.slow) for cpu in CPUS[1:])],
    ids=lambda cpu: cpu.name,
)
def test_weights_of_few_bits_are_dequantized_in_registers(cpu: Cpu) -> None:
    rng, x, outputs = np.random.default_rng(5), plain("x", ("n", 3, 64)), list[Value]()
    grid = rng.uniform(0.01, 0.02, (37, 4)).astype(np.float32)
    rows = rng.uniform(0.01, 0.02, 37).astype(np.float32)
    for own in (
        quant(DType.INT4, grid, np.zeros(grid.shape), axis=1, block_size=16),
        quant(DType.UINT4, grid, rng.integers(0, 16, grid.shape), axis=1, block_size=16),
        quant(DType.INT4, rows, np.zeros(37), axis=0),
        quant(DType.INT8, rows, rng.integers(-9, 9, 37), axis=0),
        quant(DType.UINT8, np.float32(0.01), 131),
    ):
        codes = rng.integers(own.qmin, own.qmax + 1, (37, 64)).astype(own.storage_dtype.numpy)
        type_ = TensorType(DType.FLOAT32, ("n", 3, 37))
        weight, bias = const(codes, own), const(real(rng, 37))
        outputs.append(apply("Dense", x, weight, bias, type_=type_))
    names = check([x], outputs, cpu)
    assert sum(name.startswith(("dense_w4", "dense_w8")) for name in names) == 5


def test_sums_and_bounds_are_part_of_a_product() -> None:
    x = plain("x", (1, 6, 9, 11))
    first, second = conv(x, 20, 1), conv(x, 20, 2)
    total = apply("Relu", apply("Add", first, second))
    clipped = apply("Clip", conv(total, 13, 3), attributes=ClipAttrs(-1.0, 2.5))
    names = check([x], [clipped], HOST)
    assert any(name.endswith("_add_relu") for name in names)
    assert any(name.endswith("_clip") for name in names)


def test_depthwise_convolutions_of_floats_have_none() -> None:
    x = plain("x", (1, 6, 9, 11))
    names = check([x], [conv(x, 6, 1, group=6)], HOST)
    assert not any(name.startswith("float_conv") for name in names)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_products_of_two_activations(cpu: Cpu) -> None:
    a, b, keys = plain("a", ("n", 3, 15, 21)), plain("b", ("n", 3, 21, 18)), plain("k", (18, 21))
    type_ = TensorType(DType.FLOAT32, ("n", 3, 15, 18))
    attributes = GemmAttrs(trans_b=True)
    queries = plain("q", (7, 21))
    scores = apply(
        "Gemm", queries, keys, type_=TensorType(DType.FLOAT32, (7, 18)), attributes=attributes
    )
    names = check([a, b, keys, queries], [apply("MatMul", a, b, type_=type_), scores], cpu)
    assert sum(name.startswith("float_matmul") for name in names) == 2
