"""Small wholly quantized networks, one group of equivalent forms each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx

from tests.onnx_models import Builder, ints

SCALE = 2**-5
PER_CHANNEL = np.array([2**-7, 2**-6, 3 * 2**-8, 2**-7], np.float32)
Make = Callable[[Builder, str], str]


def _model(
    make: Make, shape: tuple[int, ...], dtype: Any = np.uint8, opset: int = 17
) -> onnx.ModelProto:
    """``x -> QDQ -> make -> QDQ -> y``, and the second QDQ again behind a Relu."""
    b = Builder(opset)
    zero = 120 if dtype == np.uint8 else -3
    x = b.qdq(b.input("x", [1, *shape]), SCALE, zero, dtype)
    y = b.qdq(make(b, x), 2**-3, 7, dtype)
    b.output(b.qdq(b.op("Relu", y), 2**-3, 7, dtype))
    return b.model()


def _conv(b: Builder, x: str, *, scale: Any = 2**-7, group: int = 1, bias: str = "",
          **attributes: Any) -> str:  # fmt: skip
    channels = {"axis": 0} if np.ndim(scale) else {}
    w = b.weight(ints((4, 4 // group, 3, 3), 1), scale, **channels)
    extra: list[str] = []
    if bias == "float":
        extra = [b.init(np.array([0.5, -1, 0, 2], np.float32))]
    if bias == "int32":
        unit = np.float32(SCALE) * np.asarray(scale, np.float32)
        extra = [b.dq(b.init(np.array([5, -7, 900, 0], np.int32)), unit, 0, np.int32, **channels)]
    return b.op("Conv", x, w, *extra, group=group, **attributes)


def _transposed(b: Builder, x: str) -> str:
    w = b.weight(ints((4, 3, 2, 2), 2), PER_CHANNEL[:3], axis=1)
    return b.op("ConvTranspose", x, w, strides=[2, 2])


def _gemm(b: Builder, x: str, *, trans: int) -> str:
    w = b.weight(ints((5, 8) if trans else (8, 5), 3), 2**-7)
    return b.op("Gemm", x, w, b.init(np.arange(5, dtype=np.float32)), transB=trans)


def _matmul(b: Builder, x: str) -> str:
    return b.op("MatMul", x, b.weight(ints((8, 4), 4), PER_CHANNEL, axis=1))


def _op(b: Builder, x: str, op_type: str, **attributes: Any) -> str:
    return b.op(op_type, x, **attributes)


def _with(b: Builder, x: str, op_type: str, *arrays: Any, **attributes: Any) -> str:
    return b.op(op_type, x, *(b.init(array) for array in arrays), **attributes)


def _itself(b: Builder, x: str, op_type: str) -> str:
    return b.op(op_type, x, b.qdq(b.op("Sigmoid", x), 2**-8, 0))


def _weighted(b: Builder, x: str, op_type: str) -> str:
    return b.op(op_type, x, b.weight(ints((1, 4, 1, 1), 5), 2**-6))


def _norm(b: Builder, x: str) -> str:
    gamma, beta = (b.init(np.linspace(low, 2, 8).astype(np.float32)) for low in (0.5, -1))
    return b.op("LayerNormalization", x, gamma, beta, axis=-1)


def _concat(b: Builder, x: str) -> str:
    return b.op("Concat", x, b.qdq(b.op("Tanh", x), 2**-7, 3), axis=1)


def _split(b: Builder, x: str) -> str:
    first = b.op("Split", x, b.init(np.array([1, 3])), outputs=2, axis=1)
    left, right = (b.qdq(name, SCALE, 120) for name in (first, f"{first}:1"))
    return b.op("Add", right, left)


IMAGE, ROWS, ROW = (4, 6, 6), (4, 8), (8,)
BASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv": partial(_model, _conv, IMAGE),
    "conv, signed": partial(_model, _conv, IMAGE, np.int8),
    "conv per channel": partial(_model, partial(_conv, scale=PER_CHANNEL), IMAGE),
    "conv, float bias": partial(_model, partial(_conv, bias="float"), IMAGE),
    "conv, int32 bias": partial(_model, partial(_conv, bias="int32", scale=PER_CHANNEL), IMAGE),
    "depthwise": partial(_model, partial(_conv, group=4, scale=PER_CHANNEL), IMAGE),
    "conv, strides and pads": partial(
        _model, partial(_conv, strides=[2, 2], pads=[1, 1, 1, 1]), IMAGE
    ),
    "conv, opset 13": partial(_model, partial(_conv, group=2, bias="float"), IMAGE, opset=13),
    "conv, opset 21": partial(_model, partial(_conv, bias="int32"), IMAGE, opset=21),
    "transposed conv": partial(_model, _transposed, IMAGE),
    "gemm": partial(_model, partial(_gemm, trans=0), ROW),
    "gemm, transposed": partial(_model, partial(_gemm, trans=1), ROW),
    "matmul": partial(_model, _matmul, ROWS),
    "average pool": partial(
        _model, partial(_op, op_type="AveragePool", kernel_shape=[2, 2]), IMAGE
    ),
    "global pool": partial(_model, partial(_op, op_type="GlobalAveragePool"), IMAGE),
    "max pool": partial(_model, partial(_op, op_type="MaxPool", kernel_shape=[2, 2]), IMAGE),
    "mean": partial(_model, lambda b, x: _with(b, x, "ReduceMean", np.array([1])), IMAGE, opset=18),
    "sigmoid": partial(_model, partial(_op, op_type="Sigmoid"), IMAGE),
    "leaky relu": partial(_model, partial(_op, op_type="LeakyRelu", alpha=0.125), IMAGE, np.int8),
    "softmax": partial(_model, partial(_op, op_type="Softmax", axis=-1), ROWS),
    "clip": partial(_model, lambda b, x: _with(b, x, "Clip", np.float32(-1), np.float32(3)), IMAGE),
    "transpose": partial(_model, partial(_op, op_type="Transpose", perm=[0, 2, 3, 1]), IMAGE),
    "flatten": partial(_model, partial(_op, op_type="Flatten"), IMAGE),
    "depth to space": partial(_model, partial(_op, op_type="DepthToSpace", blocksize=2), IMAGE),
    "add": partial(_model, partial(_itself, op_type="Add"), IMAGE),
    "mul": partial(_model, partial(_itself, op_type="Mul"), IMAGE, np.int8),
    "add a weight": partial(_model, partial(_weighted, op_type="Add"), IMAGE),
    "mul by a weight": partial(_model, partial(_weighted, op_type="Mul"), IMAGE),
    "layer norm": partial(_model, _norm, ROWS),
    "concat": partial(_model, _concat, IMAGE),
    "split": partial(_model, _split, IMAGE),
    "slice": partial(
        _model,
        lambda b, x: _with(
            b, x, "Slice", np.array([1]), np.array([4]), np.array([2]), np.array([1])
        ),
        IMAGE,
    ),
}
