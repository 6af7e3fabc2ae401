"""What a product computes on the way out: sums with other codes, lookups; bits stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import ConvAttrs, ResizeAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.epilogues import fused_operators
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.combinations import first_with_all
from tests.core.graph.graphs import apply, const, stored
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, target_of

SHAPE = (1, 12, 9, 11)
X, MIDDLE, OTHER = (params("uint8", s, z) for s, z in ((0.02, 7), (0.1131, 130), (0.0717, 3)))


def conv(x: Value, channels: int, own: QuantParams, seed: int = 0) -> Value:
    rng = np.random.default_rng(seed)
    assert x.type.shape is not None
    w = every_code(rng, "int8", (channels, int(x.type.shape[1]), 3, 3))
    weight = const(w, params("int8", rng.uniform(0.002, 0.004, channels), 0, 0))
    attributes = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))
    type_ = QuantType(own, (1, channels, *SHAPE[2:]))
    return apply("Conv", x, weight, type_=type_, attributes=attributes)


def behind(y: Value, *others: Value) -> list[Value]:
    """Values, the first one read by a convolution, so that it stays channels-last."""
    return [conv(y, 8, params("uint8", 3.0, 100), 5), *others]


def check(outputs: list[Value], cpu: Cpu, inputs: list[Value]) -> list[str]:
    """Runs a graph, compares it with the interpreter; returns the names of its kernels."""
    names = [f"y{i}" for i in range(len(outputs))]
    graph = Graph(inputs, outputs, names, [])
    Editor(graph).finish()
    rng = np.random.default_rng(4)
    feeds = {
        v.name: every_code(rng, v.type.dtype.label, tuple(int(n) for n in v.type.shape or ()))
        for v in inputs
    }
    wanted, got = evaluate(graph, feeds)[0], compile_relax(graph, target_of(cpu)).run(feeds)
    for name in names:
        np.testing.assert_array_equal(got[name], wanted[name])
    return sorted(kernel.name for kernel in plan(graph, HOST).kernels.values())


@pytest.mark.parametrize(("cpu", "op"), first_with_all(DOT_CPUS, ["Add", "Sub"]))
def test_sums(cpu: Cpu, op: str) -> None:
    x, other = stored("x", X, SHAPE), stored("o", OTHER, (1, 20, *SHAPE[2:]))
    out = params("uint8", 0.1519, 99).with_range(20, 220)
    results: list[Value] = []
    for swapped in (False, True):
        operands = (conv(x, 20, MIDDLE), other)
        type_ = QuantType(out, other.type.shape)
        total = apply(op, *operands[:: -1 if swapped else 1], type_=type_)
        results += behind(total)
    names = check(results, cpu, [x, other])
    if HOST.fuses:
        assert [name for name in names if name.endswith(f"_{op.lower()}")]


@pytest.mark.parametrize("read", [False, True])
def test_sums_behind_a_resize(read: bool) -> None:
    """A convolution of a resized image takes the small one, also where others read the large."""
    x, other = stored("x", X, (1, 16, 3, 1)), stored("o", OTHER, (1, 20, *SHAPE[2:]))
    repeats = ResizeAttrs("nearest", "asymmetric", "floor", (1.0, 1.0, 3.0, 11.0), None)
    large = apply("Resize", x, type_=QuantType(X, (1, 16, *SHAPE[2:])), attributes=repeats)
    out = params("uint8", 0.1519, 99)
    total = apply("Add", conv(large, 20, MIDDLE), other, type_=QuantType(out, other.type.shape))
    names = check(behind(total, *([large] if read else [])), HOST, [x, other])
    if HOST.fuses and not HOST.amx:
        assert "conv_3x3_up3x11_16_20_9x11_add" in names
        assert any(name.startswith("resize") for name in names) is read


def test_constants_along_channels() -> None:
    x = stored("x", X, SHAPE)
    rng, results = np.random.default_rng(0), list[Value]()
    for shape in ((1, 20, 1, 1), (1, 1, 1, 1)):
        other = const(rng.integers(0, 256, shape).astype(np.uint8), OTHER)
        y = conv(x, 20, MIDDLE)
        type_ = QuantType(params("uint8", 0.2017, 90), y.type.shape)
        results += behind(apply("Add", y, other, type_=type_))
    names = check(results, HOST, [x])
    if HOST.fuses:
        assert [name.endswith("_add") for name in names].count(True) == 2


def test_lookups_where_results_are_large(monkeypatch: Any) -> None:
    x, other = stored("x", X, SHAPE), stored("o", OTHER, (1, 20, *SHAPE[2:]))
    for least in (1, 1 << 30):
        monkeypatch.setattr(fused_operators, "LARGE", least)
        y = conv(x, 20, MIDDLE)
        one = apply("HardSwish", y, type_=QuantType(params("uint8", 0.06, 5), y.type.shape))
        z = conv(x, 20, MIDDLE, 1)
        total = apply("Add", z, other, type_=QuantType(params("uint8", 0.1519, 50), z.type.shape))
        two = apply("Sigmoid", total, type_=QuantType(params("int8", 1 / 255, -128), z.type.shape))
        names = check([*behind(one), *behind(two)], HOST, [x, other])
        fused = HOST.permutes and least == 1
        assert any(name.endswith("_add_sigmoid") for name in names) is fused


def test_what_others_read_or_leaves_stays() -> None:
    x, other = stored("x", X, SHAPE), stored("o", OTHER, (1, 20, *SHAPE[2:]))
    y = conv(x, 20, MIDDLE)
    total = apply("Add", y, other, type_=QuantType(params("uint8", 0.1519, 50), y.type.shape))
    twice = conv(x, 20, MIDDLE, 2)
    double = apply("Add", twice, twice, type_=QuantType(params("uint8", 0.3, 50), y.type.shape))
    names = check([y, *behind(total), *behind(double)], HOST, [x, other])
    assert not any("conv" in name and "add" in name for name in names)
