"""Operators element by element, from file to machine code: 0 LSB, no float island."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams, QuantType
from tests.tvm.relax.single_ops import (
    Model,
    X,
    call_names,
    codes,
    const,
    equal,
    number,
    params,
    qnn_calls,
)

pytestmark = pytest.mark.relax

S8, U8 = params("int8", 0.5, 3), params("uint8", 0.0371, 131)
S16, U16 = params("int16", 0.011, -7), params("uint16", 0.003, 32771)
TIES, Y8 = params("int8", 1.0, -5), params("uint8", 0.173, 77)
UNARY: dict[str, tuple[str, dict[str, Any]]] = {
    "Sigmoid": ("sigmoid", {}), "Tanh": ("tanh", {}), "Exp": ("exp", {}), "Log": ("log", {}),
    "Sqrt": ("sqrt", {}), "Reciprocal": ("reciprocal", {}), "Erf": ("erf", {}),
    "Abs": ("abs", {}), "Neg": ("negative", {}), "Floor": ("floor", {}), "Ceil": ("ceil", {}),
    "Round": ("round", {}), "Sin": ("sin", {}), "Cos": ("cos", {}), "Sign": ("sign", {}),
    "Softplus": ("softplus", {}), "Softsign": ("softsign", {}), "Mish": ("mish", {}),
    "HardSwish": ("hardswish", {}), "LeakyRelu": ("leaky_relu", {"alpha": 0.3}),
    "Elu": ("elu", {"alpha": 0.7}), "Celu": ("celu", {"alpha": 1.7}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 0.4}),
    "Selu": ("selu", {"alpha": 1.5, "gamma": 1.1}),
    "HardSigmoid": ("hardsigmoid", {"alpha": 0.3, "beta": 0.4}),
    "Gelu": ("gelu", {"approximate": "tanh"}),
}  # fmt: skip


def every(p: QuantParams, shape: tuple[int, ...] = (2, 128), seed: int = 0) -> X:
    """Every code of 8 bits, or random ones of 16."""
    dtype = str(p.storage_dtype)
    if p.storage_dtype.bits == 8 and int(np.prod(shape)) == 256:
        info = np.iinfo(dtype)
        return X(np.arange(info.min, info.max + 1).astype(dtype).reshape(shape), p)
    return X(codes(shape, dtype, seed), p)


def test_tables() -> None:
    """Every code of every unary operator, int8 and uint8, into signed and unsigned results."""
    m = Model()
    for i, (op, (_, attributes)) in enumerate(UNARY.items()):
        x, y = (params("int8", 0.0625, 3), params("uint8", 0.03125, 20))[:: 1 if i % 2 else -1]
        m.add(op, [every(x)], y, **attributes)
        m.add(op, [every(y)], params("int8", 0.02, -128 if i % 3 else 5), **attributes)
    m.add("Gelu", [every(params("int8", 0.0625, 3))], U8)
    m.add("Gelu", [every(params("int8", 0.0625, 3))], U8, domain="com.microsoft")
    m.add("QuickGelu", [every(params("int8", 0.0625, 3))], U8, domain="com.microsoft", row="Swish")
    m.add("Sigmoid", [every(S16, (3, 400))], U16)
    m.add("Tanh", [every(U16, (1200,))], S16)
    m.add("Exp", [every(U8, (256,))], S16)
    m.add("Log", [every(S16, (3, 400))], U8)
    m.add("Sigmoid", [X(codes((), "int8"), S8)], U8, label="scalar")
    m.builder.opsets["com.microsoft"] = 1
    _, executable = m.check()
    names = call_names(executable.module)
    assert set(names) == {"qnn.silu", *(f"qnn.{name}" for name, _ in UNARY.values())}
    assert len(names) == len(m.branches)


def test_arithmetic() -> None:
    m = Model()
    shapes = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 4)), ((), (5,))]
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        for i, (a, b) in enumerate(shapes):
            left, right = (S8, params("int8", 0.25, -9)) if i % 2 else (U8, params("uint8", 0.1, 3))
            y = TIES if i % 2 else Y8
            m.add(
                op,
                [
                    X(codes(a, str(left.storage_dtype), i), left),
                    X(codes(b, str(right.storage_dtype), i + 5), right),
                ],
                y,
                label=f"{a} {b}",
            )
        m.add(op, [every(S16, (6,)), every(params("int16", 0.02, 100), (6,), 1)], S16)
        m.add(op, [every(S8, (6,)), every(U8, (6,), 1)], Y8, label="mixed signs")
    m.add("Add", [every(S8), every(S8, seed=1)], S8, label="saturates")
    m.add("Sub", [every(U8), every(U8, seed=1)], U8, label="saturates")
    m.add("Add", [every(U8), every(U8, seed=1)], U8, then="Relu", label="narrow range")
    _, executable = m.check()
    names = call_names(executable.module)
    assert set(names) == {
        "qnn.add", "qnn.subtract", "qnn.mul", "qnn.divide", "qnn.minimum", "qnn.maximum",
        "relax.clip",
    }  # fmt: skip
    assert names.count("relax.clip") == 1


def test_float_constants() -> None:
    """A float constant operand has scale 1 in the qnn call."""
    m = Model()
    x = every(S8)
    m.add("Div", [x, const(3.7, np.float32)], Y8)
    m.add("Div", [x, const(np.arange(1, 129), np.float32)], TIES)
    m.add("Mul", [x, const(np.float32(0.3))], Y8)
    m.add("Mul", [x, const([[0.5], [-2.0]], np.float32)], TIES)
    m.add("Add", [const(np.float32(1.25)), x], TIES)
    m.add("Sub", [const(np.float32(1.25)), x], TIES)
    m.add("Min", [x, const([[1.25], [0.5]], np.float32)], TIES)
    m.add("Max", [x, const([[-1.25], [0.5]], np.float32)], Y8)
    m.add("Pow", [x, const(np.float32(2))], params("uint8", 16.0, 0))
    m.add("Pow", [every(params("uint8", 0.02)), const([0.5], np.float32)], params("int8", 0.02))
    m.add("Pow", [every(params("uint8", 0.02)), const([3], np.int64)], params("int8", 0.9))
    m.add("PRelu", [X(codes((2, 3, 4), "int8"), S8), const([[0.1], [0.5], [-2]], np.float32)], Y8)
    weights = X(codes((3, 1), "int8", 1), params("int8", 0.01), fixed=True)
    m.add("PRelu", [X(codes((2, 3, 4), "int8"), S8), weights], Y8, label="quantized slope")
    per_channel = X(codes((3, 4), "int8", 2), params("int8", [0.01, 0.1, 1], [0, 0, 0], 0), True)
    m.add("Mul", [X(codes((2, 3, 4), "uint8"), U8), per_channel], Y8, label="per channel")
    m.add("Add", [per_channel, X(codes((2, 3, 4), "uint8"), U8)], Y8, label="per channel")
    _, executable = m.check()
    found = qnn_calls(executable.module)
    assert len(found) == len(m.branches)
    assert [number(call.args[i]) for call in found[:1] for i in (4, 5)] == [1.0, 0]


def test_several_operands() -> None:
    m = Model()
    xs = [every(p, (3, 4), i) for i, p in enumerate((S8, params("int8", 0.3, 1), S8))]
    us = [every(p, (2, 1, 4)[i:], i) for i, p in enumerate((U8, Y8, params("uint8", 0.2)))]
    for op in ("Min", "Max"):
        m.add(op, xs, TIES)
        m.add(op, us, Y8, label="broadcast")
        m.add(op, [*us, const([0.3], np.float32)], Y8, label="float constant")
        m.add(op, xs[:1], TIES, row="requantize", label="one operand")
    _, executable = m.check()
    names = call_names(executable.module)
    assert not {"qnn.quantize", "qnn.dequantize"} & set(names), names


def test_concatenate() -> None:
    m = Model()
    same = [every(S8, (2, 3, n), n) for n in (1, 4, 2)]
    m.add("Concat", same, S8, axis=2, label="equal parameters")
    m.add("Concat", same, S8, axis=2, label="equal parameters, narrow", then="Relu", whole=False)
    mixed = [every(p, (2, 3), i) for i, p in enumerate((S8, TIES, params("int8", 0.07, 8)))]
    m.add("Concat", mixed, TIES, axis=-2, label="different parameters")
    m.add("Concat", mixed, params("int8", 0.07, 8), axis=1, then="Relu", label="narrow")
    m.add("Concat", [every(U8, (2, 3)), every(S8, (2, 3))], Y8, axis=0, label="mixed types")
    m.add("Concat", [every(U8, (2, 3)), const([[0.1] * 3], np.float32)], Y8, axis=0)
    fixed = X(codes((1, 3), "uint8", 4), Y8, fixed=True)
    m.add("Concat", [every(U8, (2, 3)), fixed], U8, axis=0, label="quantized constant")
    m.add("Concat", [every(S8, (2, 3))], TIES, row="", axis=0, label="one operand", whole=False)
    m.add("Concat", [every(S16, (2, 3)), every(params("int16", 0.5), (2, 3), 2)], S16, axis=0)
    _, executable = m.check()
    names = call_names(executable.module)
    assert not {"qnn.quantize", "qnn.dequantize"} & set(names), names


def test_where() -> None:
    m = Model()
    flags = X(np.random.default_rng(0).integers(0, 2, (3, 4)).astype(bool))
    m.add("Where", [flags, every(S8, (3, 4)), every(TIES, (3, 4), 1)], params("int8", 0.3, 1))
    m.add("Where", [flags, every(U8, (4,)), every(S8, (2, 3, 1), 1)], Y8, label="broadcast")
    m.add("Where", [flags, every(S8, (3, 4)), every(S8, (3, 1), 1)], S8, label="equal")
    m.add("Where", [flags, every(S8, (3, 4)), const(np.float32(-1e9))], S8, label="masked")
    m.add(
        "Where",
        [const([True, False, False, True]), every(U8, (3, 4)), every(U8, (1, 4), 1)],
        Y8,
        label="constant condition",
    )
    _, executable = m.check()
    assert call_names(executable.module).count("qnn.where") == len(m.branches)


def test_clamps() -> None:
    """Relu and Clip alone are a requantize into a narrower range."""
    m = Model()
    m.add("Relu", [every(S8)], TIES, row="requantize")
    m.add("Relu", [every(S8)], S8, row="requantize", label="same parameters")
    m.add("Relu", [every(U8)], params("uint8", 0.02, 0), row="requantize", label="implied")
    bounds = [const(np.float32(0)), const(np.float32(6))]
    m.add("Clip", [every(S8), *bounds], TIES, row="requantize")
    m.add("Clip", [every(U8), None, bounds[1]], params("int8", 0.1, -100), row="requantize")
    _, executable = m.check()
    assert set(call_names(executable.module)) == {"qnn.requantize", "relax.clip"}


def test_conversions() -> None:
    """Requantize between types and widths, quantize and dequantize at the border."""
    m = Model()
    kinds = (S8, U8, S16, U16, TIES, params("uint16", 0.02, 1000))
    for i, x in enumerate(kinds):
        for y in kinds[i + 1 :]:
            m.add("Identity", [every(x)], y, row="requantize")
            m.add("Identity", [every(y)], x, row="requantize")
    real = np.concatenate([np.linspace(-80, 80, 600), [np.nan, np.inf, -np.inf, -0.0, 1e30]])
    halves = np.concatenate([(np.arange(-300, 300) + 0.5) * 0.5, real])
    m.add("Identity", [X(halves.astype(np.float32))], S8, row="quantize")
    m.add("Identity", [X(real.astype(np.float32))], U16, row="quantize")
    m.add("Identity", [every(U8)], None, row="dequantize")
    m.add("Identity", [every(S16)], None, row="dequantize")
    channels = params("int8", [0.5, 0.25, 3], [0, -7, 100], 1)
    m.add("Identity", [X(codes((2, 3, 4), "int8"), channels)], None, row="dequantize")
    narrow = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    b = m.builder
    given = m.operand(X(narrow))
    stored = b.q(given, channels.scale, channels.zero_point, np.int8, axis=1)
    b.output(stored, None, 3)
    m.check()


def test_reinterpretation() -> None:
    """Stored integers that are dequantized with other parameters than they were made with."""
    m = Model()
    b = m.builder
    real = m.operand(X(np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)))
    stored = b.q(real, 0.1, 128)
    m.finish(b.op("Sigmoid", b.dq(stored, 0.2, 90)), Y8)
    b.output(b.op("Relu", b.dq(stored, 0.3, 100)), None)
    b.output(stored, None, 2)
    b.input("x", [3, 4], 3)
    m.inputs["x"] = codes((3, 4), "int8")
    moved = b.op("Transpose", "x")
    m.finish(b.op("Sigmoid", b.dq(moved, 0.1, 3, np.int8)), Y8)
    b.output(moved, None, 3)
    graph, _ = m.check()
    assert [node.op.name for node in graph.nodes].count("reinterpret") == 2
    assert isinstance(graph.inputs[1].type, QuantType)  # integers that move before they have a type


def test_half_precision_scales() -> None:
    """A model whose real values are float16 computes in float32, and rounds floats at the end."""
    m = Model()
    half = QuantParams(
        DType.INT8,
        np.asarray(0.5, np.float16),
        np.asarray(3, np.int32),
        expressed_dtype=DType.FLOAT16,
    )
    x = X(codes((1, 2, 4, 4), "int8"), half)
    w = X(codes((3, 2, 3, 3), "int8"), half, fixed=True)
    wide = QuantParams(
        DType.INT8,
        np.asarray(300, np.float16),
        np.asarray(3, np.int32),
        expressed_dtype=DType.FLOAT16,
    )
    m.add("Conv", [x, w], wide)
    m.add("Conv", [x, w], None, dtype=10)
    m.add("Add", [x, x], half)
    m.add("Mul", [x, const(np.float16(0.3))], half)
    m.add("Softmax", [x], half)
    m.add("GlobalAveragePool", [x], half)
    m.add("Resize", [x, None, const([1, 1, 2, 2], np.float32)], half, mode="linear")
    m.add("Identity", [x], None, row="dequantize", dtype=10)
    m.check()


def test_symbolic_batch() -> None:
    m = Model()
    x = X(codes((3, 2, 4), "int8"), S8, shape=["n", 2, 4])
    y = X(codes((3, 1, 4), "int8", 2), TIES, shape=["n", 1, 4])
    m.add("Add", [x, y], TIES)
    m.add("Mul", [x, const(np.float32(0.3))], Y8)
    m.add("Sigmoid", [x], Y8)
    m.add("Concat", [x, y], TIES, axis=1)
    m.add("Identity", [x], Y8, row="requantize")
    _, executable = m.check()
    for count in (1, 2):
        equal(executable, {name: array[:count] for name, array in m.inputs.items()})
