"""What the tests of TVM's ONNX frontend share: operators of the table, and the way through TVM."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from tvm.relax.frontend.onnx import from_onnx

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from tests.onnx_models import Builder

Array = np.ndarray[Any, Any]
IMAGE, ROW, ROWS = [1, 4, 6, 6], [2, 8], [1, 5, 8]
Make = Callable[[Builder, str], str]
"""Adds an operator on a tensor; returns the name of its result."""


def imported(model: Any) -> Any:
    """Returns a model as TVM's frontend imports it, without what that prints."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return from_onnx(model)


def through_tvm(model: onnx.ModelProto) -> Graph:
    """Returns the canonical graph of a model that TVM has imported."""
    return qb.from_relax(imported(model))


def op(op_type: str, *more: Any, **attributes: Any) -> Make:
    """Returns what adds an operator whose operands after the first are constants."""

    def make(b: Builder, x: str) -> str:
        return b.op(op_type, x, *(b.init(a) if a is not None else "" for a in more), **attributes)

    return make


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 0.5, shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(numbers(*shape)) + np.float32(0.5)


_INT = np.int64
_UNARY: dict[str, Make] = {
    name: op(name)
    for name in (
        "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Abs", "Neg", "Floor", "Ceil",
        "Round", "Sin", "Cos", "Sign", "Softplus", "Softsign", "Reciprocal", "HardSwish", "Selu",
        "Elu", "HardSigmoid", "LeakyRelu", "ThresholdedRelu",
    )
}  # fmt: skip
_BINARY: dict[str, Make] = {
    **{name: op(name, positive(4, 1, 1)) for name in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")},
    **{name: op(name, numbers(6)) for name in ("Min", "Max")},
    "Min of three": lambda b, x: b.op("Min", x, b.init(numbers(6)), b.init(numbers(4, 1, 1))),
    "Max of a number": op("Max", np.float32(0.25)),
    "Clip": op("Clip", np.float32(-0.5), np.float32(1.5)),
    "Clip below": op("Clip", np.float32(-0.5)),
    "Clip above": op("Clip", None, np.float32(1.5)),
    "Elu with alpha": op("Elu", alpha=0.5),
    "HardSigmoid with alpha": op("HardSigmoid", alpha=0.25, beta=0.375),
    "PRelu, one slope": op("PRelu", np.full((1,), 0.25, np.float32)),
    "PRelu, a slope per element": op("PRelu", positive(4, 6, 6)),
}
_IMAGES: dict[str, Make] = {
    "Conv": op("Conv", numbers(3, 4, 3, 3), numbers(3), pads=[1, 1, 1, 1]),
    "Conv, groups": op("Conv", numbers(8, 2, 3, 3), numbers(8), group=2, strides=[2, 2]),
    "Conv, depthwise": op("Conv", numbers(8, 1, 3, 3), numbers(8), group=4, dilations=[2, 1]),
    "Conv, no bias": op("Conv", numbers(3, 4, 1, 1)),
    "ConvTranspose": op(
        "ConvTranspose", numbers(4, 3, 2, 2), numbers(3), strides=[2, 2], pads=[1, 0, 0, 1]
    ),
    "MaxPool": op("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool, padded": op("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 1]),
    "AveragePool": op("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool, padding counted": op(
        "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "GlobalAveragePool": op("GlobalAveragePool"),
    "GlobalMaxPool": op("GlobalMaxPool"),
    "BatchNormalization": op(
        "BatchNormalization", positive(4), numbers(4), numbers(4), positive(4), epsilon=1e-3
    ),
    "InstanceNormalization": op("InstanceNormalization", positive(4), numbers(4), epsilon=1e-4),
    "DepthToSpace": op("DepthToSpace", blocksize=2),
    "DepthToSpace, CRD": op("DepthToSpace", blocksize=2, mode="CRD"),
    "SpaceToDepth": op("SpaceToDepth", blocksize=2),
    "Pad": op("Pad", np.array([0, 0, 1, 2, 0, 0, 0, 1], _INT)),
    "Pad with a number": op("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1], _INT), np.float32(0.5)),
    "Pad, reflect": op("Pad", np.array([0, 0, 1, 0, 0, 0, 1, 2], _INT), mode="reflect"),
    "Pad, edge": op("Pad", np.array([0, 0, 2, 0, 0, 0, 1, 1], _INT), mode="edge"),
    "Resize, nearest": op(
        "Resize", None, np.array([1, 1, 2, 2], np.float32), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    ),
    "Resize, linear": op(
        "Resize", None, np.array([1, 1, 2, 2], np.float32), mode="linear",
        coordinate_transformation_mode="half_pixel",
    ),
    "ReduceMean over space": op("ReduceMean", axes=[2, 3]),
    "ReduceMean, dropped": op("ReduceMean", axes=[2, 3], keepdims=0),
    "ReduceMean of channels": op("ReduceMean", axes=[1]),
    "ReduceMax over space": op("ReduceMax", axes=[2, 3]),
    "ReduceMin": op("ReduceMin", axes=[-1], keepdims=0),
    "ReduceSum": op("ReduceSum", np.array([1], _INT)),
    "Flatten": op("Flatten"),
    "Flatten, axis 2": op("Flatten", axis=2),
    "Reshape": op("Reshape", np.array([0, 2, -1], _INT)),
    "Reshape to rows": op("Reshape", np.array([1, -1], _INT)),
    "Transpose": op("Transpose", perm=[0, 2, 3, 1]),
    "Slice": op("Slice", *(np.array(a, _INT) for a in ([1], [-1], [2], [2]))),
    "Tile": op("Tile", np.array([1, 1, 2, 1], _INT)),
    "Gather": op("Gather", np.array([1, -1], _INT), axis=1),
    "Gather of one": op("Gather", np.array(-2, _INT), axis=2),
    "Concat": lambda b, x: b.op("Concat", x, b.op("Relu", x), axis=1),
    "Split": lambda b, x: b.op("Split", x, b.init(np.array([1, 3], _INT)), axis=1, outputs=2),
    "Unsqueeze": op("Unsqueeze", np.array([0, 3], _INT)),
    "Squeeze": op("Squeeze", np.array([0], _INT)),
    "Where": lambda b, x: b.op("Where", b.init(numbers(6) > 0), x, b.init(np.float32(-2))),
    "Cast": op("Cast", to=onnx.TensorProto.FLOAT16),
    "Softmax over channels": op("Softmax", axis=1),
}  # fmt: skip
_MATRICES: dict[str, Make] = {
    "Gemm": op("Gemm", numbers(5, 8), numbers(5), transB=1),
    "Gemm, weight as it is": op("Gemm", numbers(8, 5), numbers(5)),
    "Gemm, no bias": op("Gemm", numbers(5, 8), transB=1),
    "MatMul": op("MatMul", numbers(8, 5)),
    "MatMul and bias": lambda b, x: b.op(
        "Add", b.op("MatMul", x, b.init(numbers(8, 5))), b.init(numbers(5))
    ),
    "LogSoftmax": op("LogSoftmax", axis=-1),
}
_SEQUENCES: dict[str, Make] = {
    "MatMul of rows": op("MatMul", numbers(8, 5)),
    "MatMul and bias of rows": lambda b, x: b.op(
        "Add", b.op("MatMul", x, b.init(numbers(8, 5))), b.init(numbers(5))
    ),
    "MatMul of two": lambda b, x: b.op("MatMul", x, b.op("Transpose", x, perm=[0, 2, 1])),
    "Softmax": op("Softmax", axis=-1),
    "LayerNormalization": op("LayerNormalization", positive(8), numbers(8), epsilon=1e-4),
    "LayerNormalization, no beta": op("LayerNormalization", positive(8)),
    "Conv of a sequence": op("Conv", numbers(3, 5, 3), numbers(3), pads=[1, 1]),
    "MaxPool of a sequence": op("MaxPool", kernel_shape=[2], strides=[2]),
    "GlobalAveragePool of a sequence": op("GlobalAveragePool"),
    "Expand": op("Expand", np.array([2, 1, 1], _INT)),
}
_NEWER: dict[str, Make] = {
    "Gelu": op("Gelu"),
    "Gelu, tanh": op("Gelu", approximate="tanh"),
    "Mish": op("Mish"),
    "GroupNormalization": op("GroupNormalization", positive(4), numbers(4), num_groups=2),
    "RMSNormalization": op("RMSNormalization", positive(6), axis=-1),
}
GROUPS: Mapping[str, tuple[int, list[int], Mapping[str, Make]]] = {
    "unary": (17, IMAGE, _UNARY),
    "binary": (17, IMAGE, _BINARY),
    "images": (17, IMAGE, _IMAGES),
    "matrices": (17, ROW, _MATRICES),
    "sequences": (17, ROWS, _SEQUENCES),
    "newer": (23, IMAGE, _NEWER),
}
"""Operators by the opset and the shape with which they are tried; each is one branch."""
