"""Half floats on TVM: computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from onnx import TensorProto

import qdqbridge as qb
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax

_LSB = 1.01
"""Of the result, in which sums of float32 in another order may be rounded otherwise."""
Case = tuple[tuple[int, ...], Callable[[Builder, str], str]]


def _of(*shape: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(1).normal(size=shape) / 8).astype(np.float16)


def _reduction(name: str) -> Case:
    return (2, 4096), lambda b, x: b.op(name, x, b.init(np.array([1])), keepdims=0)


def _along(name: str, **attributes: Any) -> Case:
    return (2, 4096), lambda b, x: b.op(name, x, **attributes)


CASES: dict[str, Case] = {
    "MatMul": ((2, 3, 1024), lambda b, x: b.op("MatMul", x, b.init(_of(1024, 8)))),
    "Gemm": ((3, 1024), lambda b, x: b.op("Gemm", x, b.init(_of(8, 1024)), transB=1)),
    "Conv1d": ((1, 256, 20), lambda b, x: b.op("Conv", x, b.init(_of(8, 256, 3)))),
    "Conv2d": ((1, 512, 6, 6), lambda b, x: b.op("Conv", x, b.init(_of(8, 512, 3, 3)))),
    "ConvTranspose": (
        (1, 256, 6, 6), lambda b, x: b.op("ConvTranspose", x, b.init(_of(256, 8, 3, 3)))
    ),
    "Einsum": (
        (2, 3, 1024), lambda b, x: b.op("Einsum", x, b.init(_of(1024, 8)), equation="bij,jk->bk")
    ),
    "ReduceMean": _reduction("ReduceMean"),
    "ReduceSum": _reduction("ReduceSum"),
    "ReduceL2": _reduction("ReduceL2"),
    "Softmax": _along("Softmax", axis=-1),
    "LogSoftmax": _along("LogSoftmax", axis=-1),
    "Gelu": _along("Gelu"),
    "CumSum": ((2, 4096), lambda b, x: b.op("CumSum", x, b.init(np.int64(1)))),
    "GlobalAveragePool": ((1, 3, 40, 40), lambda b, x: b.op("GlobalAveragePool", x)),
    "AveragePool": ((1, 3, 40, 40), lambda b, x: b.op("AveragePool", x, kernel_shape=[9, 9])),
    "LayerNormalization": (
        (2, 4096), lambda b, x: b.op("LayerNormalization", x, b.init(_of(4096)), b.init(_of(4096)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_interpreters_numbers_to_one_lsb(name: str) -> None:
    shape, make = CASES[name]
    b = Builder(opset=21)
    y = make(b, b.input("x", list(shape), TensorProto.FLOAT16))
    b.output(y, None, TensorProto.FLOAT16)
    graph = canonical(b.model())
    data = {"x": np.random.default_rng(2).normal(size=shape).astype(np.float16)}
    found = qb.compile(graph, kernels="reference").run(data)[y]
    wanted = qb.evaluate(graph, data)[y]
    assert found.dtype == wanted.dtype == np.float16
    largest = np.abs(wanted).max()
    assert np.abs(found.astype(np.float32) - wanted).max() <= _LSB * np.spacing(largest)


@pytest.mark.parametrize("name", ["Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh"])
def test_functions_that_tvm_calls_for_wider_types_only(name: str) -> None:
    b = Builder(opset=21)
    y = b.op(name, b.input("x", ["n"], TensorProto.FLOAT16))
    b.output(y, None, TensorProto.FLOAT16)
    graph = canonical(b.model())
    first = 1.0 if name == "Acosh" else -1.0
    data = {"x": np.linspace(first, first + 0.75, 9).astype(np.float16)}
    found, wanted = qb.compile(graph, UNOPTIMIZED).run(data)[y], qb.evaluate(graph, data)[y]
    assert found.dtype == wanted.dtype == np.float16 and np.isfinite(wanted).all()
    assert (np.abs(found.astype(np.float32) - wanted) <= _LSB * np.spacing(np.abs(wanted))).all()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
def test_dequantized_weights_are_rounded_to_half_floats(kind: type[np.integer[Any]]) -> None:
    rng, b = np.random.default_rng(0), Builder(opset=21)
    x = b.input("x", [3, 8], TensorProto.FLOAT16)
    ends = np.iinfo(kind)
    codes = rng.integers(ends.min, ends.max, (8, 5)).astype(kind)
    scale, zero = b.init(np.float16(0.037)), b.init(kind(ends.max - ends.max // 8))
    weight = b.op("DequantizeLinear", b.init(codes), scale, zero)
    b.output(b.op("MatMul", x, weight), [3, 5], TensorProto.FLOAT16)
    feeds, model = {"x": rng.normal(size=(3, 8)).astype(np.float16)}, b.model()
    (wanted,) = ort_run(model, feeds)
    graph = canonical(model)
    for found in (qb.evaluate(graph, feeds), qb.compile(graph, threads=1).run(feeds)):
        (result,) = found.values()
        np.testing.assert_array_equal(result, wanted)
