"""Operators that are written out step by step: one operator, the same up to float rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.norms import scale_into_norm
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.rewrite import run as rewrite
from tests.onnx_models import Builder, load, ops, run

Steps = Callable[[Builder, str], str]
SHAPE = (2, 5, 7)


def number(b: Builder, value: float, *, vector: bool = False) -> str:
    return b.init(np.full((1,) if vector else (), value, np.float32))


def gelu(*, divided: bool, half_first: bool) -> Steps:
    def make(b: Builder, x: str) -> str:
        root = math.sqrt(2)
        scaled = b.op("Div", x, number(b, root)) if divided else b.op("Mul", x, number(b, 1 / root))
        tail = b.op("Add", b.op("Erf", scaled), number(b, 1.0))
        if half_first:
            return b.op("Mul", b.op("Mul", number(b, 0.5), x), tail)
        return b.op("Mul", b.op("Mul", x, tail), number(b, 0.5, vector=True))

    return make


def gelu_tanh(*, power: bool) -> Steps:
    def make(b: Builder, x: str) -> str:
        cube = b.op("Pow", x, number(b, 3.0)) if power else b.op("Mul", b.op("Mul", x, x), x)
        inner = b.op("Add", x, b.op("Mul", number(b, 0.044715), cube))
        tanh = b.op("Tanh", b.op("Mul", inner, number(b, math.sqrt(2 / math.pi))))
        return b.op("Mul", b.op("Mul", x, number(b, 0.5)), b.op("Add", number(b, 1.0), tanh))

    return make


def silu(b: Builder, x: str) -> str:
    return b.op("Mul", b.op("Sigmoid", x), x)


def quick_gelu(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, number(b, 1.702))))


def gate(b: Builder, x: str) -> str:
    shifted = b.op("Add", x, number(b, 3.0))
    return b.op("Clip", shifted, number(b, 0.0), number(b, 6.0))


def hard_swish(b: Builder, x: str) -> str:
    return b.op("Div", b.op("Mul", x, gate(b, x)), number(b, 6.0))


def hard_swish_of_a_sixth(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Mul", gate(b, x), number(b, 1 / 6)))


def hard_sigmoid(b: Builder, x: str) -> str:
    return b.op("Div", gate(b, x), number(b, 6.0))


def softplus(b: Builder, x: str) -> str:
    return b.op("Log", b.op("Add", b.op("Exp", x), number(b, 1.0)))


def mish(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Tanh", softplus(b, x)))


def softmax(b: Builder, x: str) -> str:
    largest = b.op("ReduceMax", x, axes=[-1])
    e = b.op("Exp", b.op("Sub", x, largest))
    return b.op("Div", e, b.op("ReduceSum", e, b.init(np.array([-1], np.int64))))


def log_softmax(b: Builder, x: str) -> str:
    difference = b.op("Sub", x, b.op("ReduceMax", x, axes=[-1]))
    e = b.op("Exp", difference)
    total = b.op("ReduceSum", e, b.init(np.array([-1], np.int64)))
    return b.op("Sub", difference, b.op("Log", total))


def layer_norm(b: Builder, x: str) -> str:
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes=[-1]))
    variance = b.op("ReduceMean", b.op("Pow", centred, number(b, 2.0)), axes=[-1])
    root = b.op("Sqrt", b.op("Add", variance, number(b, 1e-5)))
    gamma = b.init(np.linspace(0.5, 2, 7, dtype=np.float32))
    beta = b.init(np.linspace(-1, 1, 7, dtype=np.float32))
    return b.op("Add", b.op("Mul", b.op("Div", centred, root), gamma), beta)


def scores(b: Builder, x: str) -> str:
    root = number(b, 0.6)
    keys = b.op("Transpose", b.op("Relu", x), perm=[0, 2, 1])
    return b.op("MatMul", b.op("Mul", x, root), b.op("Mul", keys, root))


def hard_sigmoid_of_numbers(b: Builder, x: str) -> str:
    scaled = b.op("Add", b.op("Mul", number(b, 0.25), x), number(b, 0.5))
    return b.op("Clip", scaled, number(b, 0.0), number(b, 1.0))


def affine(b: Builder, x: str) -> str:
    one = b.init(np.ones(7, np.float32))
    norm = b.op("LayerNormalization", x, one, axis=-1)
    scaled = b.op("Mul", norm, b.init(np.linspace(0.5, 2, 7, dtype=np.float32)))
    return b.op("Add", scaled, b.init(np.linspace(-1, 1, 7, dtype=np.float32)))


CASES: dict[str, tuple[list[str], Steps]] = {
    "gelu": (["Gelu"], gelu(divided=True, half_first=False)),
    "gelu, times the root": (["Gelu"], gelu(divided=False, half_first=True)),
    "gelu by tanh": (["Gelu"], gelu_tanh(power=True)),
    "gelu by tanh, products": (["Gelu"], gelu_tanh(power=False)),
    "silu": (["Swish"], silu),
    "quick gelu": (["Swish"], quick_gelu),
    "hard swish": (["HardSwish"], hard_swish),
    "hard swish, a sixth": (["HardSwish"], hard_swish_of_a_sixth),
    "hard sigmoid": (["HardSigmoid"], hard_sigmoid),
    "softplus": (["Softplus"], softplus),
    "mish": (["Mish"], mish),
    "softmax": (["Softmax"], softmax),
    "log softmax": (["LogSoftmax"], log_softmax),
    "layer norm": (["LayerNormalization"], layer_norm),
    "scaled scores": (["Relu", "Transpose", "MatMul", "Mul"], scores),
    "hard sigmoid of numbers": (["HardSigmoid"], hard_sigmoid_of_numbers),
    "affine maps behind a norm": (["LayerNormalization"], affine),
}


def made(steps: Steps, *, also: Callable[[Builder], None] | None = None) -> Builder:
    b = Builder(17)
    b.output(steps(b, b.input("x", SHAPE)), None)
    if also is not None:
        also(b)
    return b


def both(b: Builder) -> tuple[Graph, Graph]:
    """Returns the canonical graph as it is, and with operators made whole."""
    model = b.model()
    return canonicalize(load(model)), canonicalize(load(model), ReadingOptions(fuse=True))


def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 4, SHAPE).astype(np.float32)
    values[0, 0, :6] = [0, -3, 3, -0.0, 1e-6, -20]
    return {"x": values}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_one_operator_of_the_same_numbers(name: str) -> None:
    wanted, steps = CASES[name]
    written, whole = both(made(steps))
    assert ops(whole) == wanted
    assert ops(written) != wanted
    (before,), (after,) = run(written, data()), run(whole, data())
    # Steps are rounded in float32 one by one, the operator once: some ulp, also below.
    np.testing.assert_allclose(after, before, rtol=2e-6, atol=2e-6)
    digest = whole.digest
    assert canonicalize(whole, ReadingOptions(fuse=True)).digest == digest


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("layer norm", "silu")])
def test_steps_that_leave_the_graph_stay(name: str) -> None:
    """An intermediate result is computed anyway."""
    _, steps = CASES[name]

    def leave(b: Builder) -> None:
        inner = {"softmax": "Sub", "log softmax": "Exp", "scaled scores": "Mul"}.get(name)
        kinds = [n for n in b.nodes[:-1] if inner in (None, n.op_type)]
        b.output(kinds[-1].output[0], None)

    written, whole = both(made(steps, also=leave))
    first, second = run(written, data()), run(whole, data())
    for a, c in zip(first, second, strict=True):  # as above
        np.testing.assert_allclose(c, a, rtol=2e-6, atol=2e-6)


def test_a_refusal_says_what_is_read_elsewhere() -> None:
    def leave(b: Builder) -> None:
        erf = next(n for n in b.nodes if n.op_type == "Erf")
        b.output(erf.output[0], None)

    _, whole = both(made(gelu(divided=True, half_first=False), also=leave))
    reasons = [note.reason for note in whole.notes if note.rule == "gelu-of-steps"]
    assert reasons == ["the steps of a Gelu are read elsewhere: the result of Erf"]


@pytest.mark.parametrize("factor", [1.40, 1.0, -math.sqrt(2)])
def test_other_numbers_are_no_gelu(factor: float) -> None:
    def steps(b: Builder, x: str) -> str:
        tail = b.op("Add", b.op("Erf", b.op("Div", x, number(b, factor))), number(b, 1.0))
        return b.op("Mul", b.op("Mul", x, tail), number(b, 0.5))

    written, whole = both(made(steps))
    assert ops(written) == ops(whole)


def test_a_sum_along_another_axis_is_no_softmax() -> None:
    def steps(b: Builder, x: str) -> str:
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=[-1])))
        return b.op("Div", e, b.op("ReduceSum", e, b.init(np.array([1], np.int64))))

    _, whole = both(made(steps))
    assert "Softmax" not in ops(whole)
    assert any("other axes" in note.reason for note in whole.notes)


def test_rounded_steps_stay() -> None:
    b = Builder(13)
    x = b.qdq(b.input("x", SHAPE), 0.05, 120)
    gate_ = b.qdq(b.op("Sigmoid", x), 1 / 256)
    b.output(b.qdq(b.op("Mul", x, gate_), 0.05, 20), None)
    written, whole = both(b)
    assert ops(whole) == ops(written)


NORMS = {
    "LayerNormalization": ("[2,3,4]", "[4]", "axis=2, epsilon=0.00001", "[2,1,4]"),
    "RMSNormalization": ("[2,3,4]", "[4]", "axis=2, epsilon=0.00001", "[3,1]"),
    "InstanceNormalization": ("[2,4,3]", "[4]", "epsilon=0.00001", "[3]"),
    "GroupNormalization": ("[2,4,3]", "[4]", "num_groups=2, epsilon=0.00001", "[2,1,1]"),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("first", [True, False])
def test_what_scales_a_norm_goes_into_it(name: str, first: bool) -> None:
    shape, gamma, attributes, other = NORMS[name]
    column = "[4]" if shape == "[2,3,4]" else "[4,1]"
    beta = "" if name == "RMSNormalization" else f", const float32{gamma} [0 0 0 0]"

    def scaled(factor: str) -> tuple[Graph, Graph]:
        operands = f"{factor}, %n" if first else f"%n, {factor}"
        text = (
            f"qnn-raw 1\ninput %x: float32{shape}\n"
            f"%n = {name}(%x, const float32{gamma} [1 2 3 4]{beta}) {{{attributes}}}:"
            f" float32{shape}\n"
            f"%y = Mul({operands}): float32{shape}\noutput %y\n"
        )
        before, after = qb.parse(text), qb.parse(text)
        rewrite(after, [scale_into_norm])
        return before, after

    for factor in (f"const float32{column} [2 3 4 5]", "const float32[] 3"):
        before, after = scaled(factor)
        assert [node.op.name for node in after.nodes] == [name]
        data = {"x": np.random.default_rng(0).normal(0, 1, (2, 3, 4)).astype(np.float32)}
        data = {"x": data["x"].reshape(tuple(int(e) for e in shape[1:-1].split(",")))}
        wanted, got = (qb.evaluate(graph, data)["y"] for graph in (before, after))
        # float32 products in another order
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    count = math.prod(int(extent) for extent in other[1:-1].split(","))
    _, kept = scaled(f"const float32{other} [{' '.join(map(str, range(1, count + 1)))}]")
    assert len(kept.nodes) == 2
