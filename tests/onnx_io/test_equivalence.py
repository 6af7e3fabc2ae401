"""One stable form: every equivalent form of a model has one digest."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.edit import verify
from tests.onnx_io import equivalence_bases
from tests.onnx_io.model_views import copy_of
from tests.onnx_io.scrambler import REWRITES, scrambled
from tests.onnx_models import Array, Builder, canonical, conv_model, ints, load, ops, run

COUNT = int(os.environ.get("QDQBRIDGE_SCRAMBLES", "160"))
"""Scrambles of all base models together."""

SCALE = 2**-5


def mlp() -> onnx.ModelProto:
    """Gemm and MatMul, per tensor and per channel, int32 and float biases, a residual."""
    b = Builder()
    x = b.qdq(b.input("x", ["n", 8]), SCALE, 128)
    w1 = b.weight(ints((8, 6), 1), np.float32(2.0) ** -np.arange(6, 12, dtype=np.float32), axis=1)
    scale = np.float32(SCALE) * np.float32(2.0) ** -np.arange(6, 12, dtype=np.float32)
    bias = b.dq(b.init(ints((6,), 2).astype(np.int32) * 9), scale, 0, np.int32, axis=0)
    h = b.qdq(b.op("Relu", b.op("Gemm", x, w1, bias)), 2**-4, 0)
    w2 = b.weight(ints((6, 6), 3), 2**-7)
    g = b.op("MatMul", h, w2)
    g = b.qdq(
        b.op("Add", g, b.init(np.array([1, 0.5, -2, 0, 3, 0.25], np.float32))), 2**-4, 3, np.int8
    )
    s = b.qdq(b.op("Add", g, h), 2**-3, 100)
    w3 = b.weight(ints((3, 6), 4), np.array([0.5, 0.25, 0.125], np.float32), axis=0)
    b.output(b.qdq(b.op("Gemm", s, w3, transB=1), 2**-2, 10), ["n", 3])
    return b.model()


def residual() -> onnx.ModelProto:
    """Two convolutions, a skip, pooling and a reshape into a Gemm."""
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 8, 8]), SCALE, 120)
    w = np.array([2**-7, 2**-6, 3 * 2**-8, 2**-7], np.float32)
    c1 = b.op("Conv", x, b.weight(ints((4, 3, 3, 3), 5), w, axis=0), pads=[1, 1, 1, 1])
    c1 = b.qdq(b.op("Relu", c1), 2**-3, 0)
    bias = b.init(np.array([0.5, -1, 0, 2], np.float32))
    c2 = b.op("Conv", c1, b.weight(ints((4, 4, 1, 1), 6), 2**-6), bias)
    c2 = b.qdq(c2, 2**-3, 128)
    s = b.qdq(b.op("Relu", b.op("Add", c1, c2)), 2**-2, 0)
    p = b.qdq(b.op("MaxPool", s, kernel_shape=[2, 2], strides=[2, 2]), 2**-2, 0)
    f = b.qdq(b.op("Reshape", p, b.init(np.array([1, -1], np.int64))), 2**-2, 0)
    y = b.op(
        "Gemm", f, b.weight(ints((64, 5), 7), 2**-8), b.init(np.array([1, 2, 3, 4, 5], np.float32))
    )
    b.output(b.qdq(y, 2**-1, 128))
    return b.model()


def attention() -> onnx.ModelProto:
    """Products of two activations, a softmax, a transpose, a constant operand."""
    b = Builder(17)
    x = b.qdq(b.input("x", [1, 4, 8]), SCALE, 0, np.int8)
    q, k = (
        b.qdq(b.op("MatMul", x, b.weight(ints((8, 8), 8 + i), 2**-8)), 2**-4, 0, np.int8)
        for i in range(2)
    )
    t = b.qdq(b.op("Transpose", k, perm=[0, 2, 1]), 2**-4, 0, np.int8)
    scores = b.qdq(b.op("MatMul", q, t), 2**-1, 0, np.int8)
    p = b.qdq(b.op("Softmax", scores, axis=-1), 2**-8, 0)
    y = b.qdq(b.op("MatMul", p, x), SCALE, 0, np.int8)
    y = b.qdq(b.op("Add", y, x), 2**-4, 0, np.int8)
    y = b.qdq(b.op("Sigmoid", y), 2**-8, 0)
    gamma = b.weight(ints((1, 8), 12), 2**-7)
    b.output(b.qdq(b.op("Mul", y, gamma), 2**-8, 128))
    return b.model()


def stored_interface() -> onnx.ModelProto:
    """uint8 in, uint8 out, two branches joined, one Q with several readers."""
    b = Builder()
    x = b.dq(b.input("x", [1, 4, 4, 4], TensorProto.UINT8), SCALE, 128)
    left = b.q(b.op("Sigmoid", x), 2**-8, 0)
    left = b.op("Mul", b.dq(left, 2**-8, 0), b.dq(left, 2**-8, 0))
    left = b.qdq(left, 2**-8, 0)
    pool = b.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    right = b.qdq(pool, SCALE, 128)
    joined = b.qdq(b.op("Concat", left, right, axis=1), SCALE, 128)
    y = b.op(
        "Conv", joined, b.weight(ints((2, 8, 1, 1), 11), np.array([0.5, 0.25], np.float32), axis=0)
    )
    b.output(b.q(b.op("Relu", y), 0.5, 0), None, TensorProto.UINT8)
    b.output(b.qdq(b.op("Transpose", joined, perm=[0, 2, 3, 1]), SCALE, 128))
    return b.model()


BASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "residual": residual,
    "attention": attention,
    "stored interface": stored_interface,
}
GROUPS = {**BASES, **equivalence_bases.BASES}
"""A group is one network in every form that the scrambler finds for it."""


@cache
def digest_of(base: str) -> str:
    graph = canonical(GROUPS[base]())
    verify(graph)
    return graph.digest


def data_for(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    (info,) = model.graph.input[:1]
    shape = [d.dim_value or 3 for d in info.type.tensor_type.shape.dim]
    if info.type.tensor_type.elem_type == TensorProto.UINT8:
        return {info.name: rng.integers(0, 256, shape).astype(np.uint8)}
    return {info.name: (rng.integers(-512, 512, shape) / 128).astype(np.float32)}


@pytest.mark.parametrize("base", GROUPS)
def test_the_bases_are_wholly_quantized(base: str) -> None:
    graph = canonical(GROUPS[base]())
    kept = {"quantize", "dequantize"}
    for node in graph.nodes:
        if node.op.name not in kept:
            assert all(value.quant is not None for value in node.outputs), ops(graph)


@pytest.mark.parametrize("base", BASES)
def test_the_bases_compute_what_their_raw_graphs_compute(base: str) -> None:
    model = BASES[base]()
    data = data_for(model)
    raw, rewritten = run(load(model), data), run(canonical(model), data)
    for want, got in zip(raw, rewritten, strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.idiom("A4", "A15", "A22", "A23", "A24", "A25", "L4")
@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("base", BASES)
def test_one_rewrite(base: str, rewrite: str) -> None:
    for seed in range(3):
        model = BASES[base]()
        REWRITES[rewrite](model, random.Random(seed))
        assert canonical(model).digest == digest_of(base)


@pytest.mark.parametrize("rewrite", REWRITES)
def test_every_rewrite_changes_some_base(rewrite: str) -> None:
    for base in BASES.values():
        for seed in range(5):
            model = base()
            before = copy_of(model)
            REWRITES[rewrite](model, random.Random(seed))
            if model != before:
                return
    pytest.fail("it changes nothing")


@pytest.mark.parametrize("base", GROUPS)
def test_scrambles(base: str) -> None:
    for seed in range(max(-(-COUNT // len(GROUPS)), 5)):
        model, names = scrambled(GROUPS[base](), seed)
        graph = canonical(model)
        assert graph.digest == digest_of(base), f"seed {seed}: {names}\n{graph.text()}"


def test_the_groups_are_different_networks() -> None:
    assert len({digest_of(base) for base in GROUPS}) == len(GROUPS) >= 34


def test_a_change_of_meaning_changes_the_digest() -> None:
    digests = {digest_of(base) for base in BASES}
    assert len(digests) == len(BASES)
    model = conv_model()
    expected = canonical(model).digest
    for name in ("scale", "zero point", "weight", "pads"):
        changed = copy_of(model)
        (conv,) = [n for n in changed.graph.node if n.op_type == "Conv"]
        if name == "pads":
            next(a for a in conv.attribute if a.name == "pads").ints[0] = 0
        else:
            index = {"scale": 0, "zero point": 1, "weight": 2}[name]
            tensor = changed.graph.initializer[index]
            data = bytearray(tensor.raw_data)
            data[0] ^= 1
            tensor.raw_data = bytes(data)
        assert canonical(changed).digest != expected, name
