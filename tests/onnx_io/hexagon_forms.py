"""Small models of one operator, which Hexagon takes whole or not: for rules and engine alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from tests.onnx_models import Builder

_ELEMENTS = {
    np.uint8: TensorProto.UINT8,
    np.int8: TensorProto.INT8,
    np.uint16: TensorProto.UINT16,
    np.int16: TensorProto.INT16,
}


class Stored(NamedTuple):
    """An operand behind a DequantizeLinear, scale 0.02 and zero point 0."""

    shape: Sequence[int]
    dtype: Any = np.uint8
    constant: bool = False


class Given(NamedTuple):
    """An input that is not quantized."""

    shape: Sequence[int]
    element: int = TensorProto.INT64


def unit(
    op: str,
    operands: Sequence[Any],
    shape: Sequence[int],
    dtype: Any = np.uint8,
    *,
    opset: int = 21,
    **attributes: Any,
) -> onnx.ModelProto:
    """Returns a model of one operator; other operands than the above are initializers."""
    b = Builder(opset=opset)
    names: list[str] = []
    for index, operand in enumerate(operands):
        name = f"x{index}"
        if operand is None:
            names.append("")
        elif isinstance(operand, Given):
            names.append(b.input(name, operand.shape, operand.element))
        elif not isinstance(operand, Stored):
            names.append(b.init(np.asarray(operand)))
        elif operand.constant:
            stored = b.init(np.ones(operand.shape, operand.dtype))
            names.append(b.dq(stored, 0.02, 0, operand.dtype))
        else:
            b.input(name, operand.shape, _ELEMENTS[operand.dtype])
            names.append(b.dq(name, 0.02, 0, operand.dtype))
    y = b.op(op, *names, **attributes)
    if dtype is None:
        b.output(y, shape)
    else:
        b.output(b.q(y, 0.02, 0, dtype), shape, _ELEMENTS[dtype])
    return b.model()


def pixel_shuffle(batch: int) -> onnx.ModelProto:
    """A Transpose of six axes between two Reshapes."""
    b = Builder(opset=17)
    x = b.dq(b.input("x", [batch, 16, 3, 3], TensorProto.UINT8), 0.02, 0, np.uint8)
    six = b.qdq(b.op("Reshape", x, b.init(np.array([batch, 4, 2, 2, 3, 3]))), 0.02, 0, np.uint8)
    turned = b.qdq(b.op("Transpose", six, perm=[0, 1, 4, 2, 5, 3]), 0.02, 0, np.uint8)
    y = b.op("Reshape", turned, b.init(np.array([batch, 4, 6, 6])))
    b.output(b.q(y, 0.02, 0, np.uint8), [batch, 4, 6, 6], TensorProto.UINT8)
    return b.model()


def cast(to: int, *, inside: bool = False) -> onnx.ModelProto:
    """A Cast of dequantized numbers, as an output or in front of one back."""
    b = Builder(opset=17)
    x = b.dq(b.input("x", [2, 3], TensorProto.UINT8), 0.02, 0, np.uint8)
    y = b.op("Cast", x, to=to)
    if inside:
        y = b.q(b.op("Cast", y, to=TensorProto.FLOAT), 0.02, 0, np.uint8)
    b.output(y, [2, 3], TensorProto.UINT8 if inside else to)
    return b.model()


def cast_of_integers() -> onnx.ModelProto:
    """A Cast between Q and DQ to the type that there is."""
    b = Builder(opset=17)
    codes = b.q(b.input("x", [2, 3], TensorProto.FLOAT), 0.02, 0, np.int8)
    y = b.dq(b.op("Cast", codes, to=TensorProto.INT8), 0.02, 0, np.int8)
    b.output(b.q(b.op("Tanh", y), 1 / 128, 0, np.int8), [2, 3], TensorProto.INT8)
    return b.model()


_ROWS, _IMAGE = Stored([3, 4]), Stored([1, 3, 6, 6])
_AXIS = np.array([1])
_SIX = [1, 2, 2, 3, 3, 3]


def _conv(x: Any, weight: Any, *rest: Any, result: Any = np.int8) -> onnx.ModelProto:
    operands = (Stored([1, 3, 6, 6], x), Stored([4, 3, 3, 3], weight, constant=True), *rest)
    return unit("Conv", operands, [1, 4, 4, 4], result)


_BIAS = np.ones(4, np.float32)
_MASK = np.array([[True, False, True, False]] * 3)

TAKEN: Mapping[str, onnx.ModelProto] = {
    "six axes, one of extent 1 in its place": pixel_shuffle(1),
    "int64 inside": cast(TensorProto.INT64, inside=True),
    "float64 inside": cast(TensorProto.DOUBLE, inside=True),
    "a cast to bool": cast(TensorProto.BOOL),
    "a cast to the type that there is": cast_of_integers(),
    "one stored end": unit("Clip", [_ROWS, Stored([], constant=True)], [3, 4]),
    "two stored ends": unit(
        "Clip", [_ROWS, Stored([], constant=True), Stored([], constant=True)], [3, 4]
    ),
    "a vector as bias": unit(
        "Gemm",
        [_ROWS, Stored([4, 5], np.int8, constant=True), np.ones(5, np.float32)],
        [3, 5],
    ),
    "a float matrix as bias": unit(
        "Gemm",
        [_ROWS, Stored([4, 5], np.int8, constant=True), np.ones((3, 5), np.float32)],
        [3, 5],
    ),
    "Expand of five axes": unit(
        "Expand", [Stored([2, 1, 3, 1, 5]), np.array([2, 2, 3, 4, 5])], [2, 2, 3, 4, 5]
    ),
    "int8 by int16": _conv(np.int8, np.int16),
    "int8 by uint8": _conv(np.int8, np.uint8),
    "int16 in groups": unit(
        "Conv",
        [Stored([1, 6, 6, 6], np.int16), Stored([6, 2, 3, 3], np.int8, constant=True)],
        [1, 6, 4, 4],
        np.int16,
        group=3,
    ),
    "a product of floats by int16": _conv(np.uint8, np.int16, result=None),
    "a choice beside a number": unit("Where", [_MASK, _ROWS, np.float32(0)], [3, 4]),
    "volumes of integers": unit(
        "Conv",
        [Stored([1, 3, 6, 6, 6]), Stored([4, 3, 3, 3, 3], np.int8, constant=True)],
        [1, 4, 4, 4, 4],
    ),
    "indices of one column": unit(
        "ScatterND",
        [_ROWS, np.array([[0], [2]]), Stored([2, 4])],
        [3, 4],
        opset=18,
        reduction="add",
    ),
}
"""Where no rule may say that it is refused, or left to another processor."""

REFUSED: Mapping[str, tuple[str, onnx.ModelProto]] = {
    "six axes": ("up-to-five-axes", unit("Relu", [Stored(_SIX)], _SIX)),
    "six axes that all move": ("up-to-five-axes", pixel_shuffle(2)),
    "five axes of int64": (
        "up-to-five-axes",
        unit("GatherElements", [Stored([2] * 5), Given([2] * 5)], [2] * 5, axis=1),
    ),
    "int64 as output": ("cast-types", cast(TensorProto.INT64)),
    "float64 as output": ("cast-types", cast(TensorProto.DOUBLE)),
    "a cast to int16": ("cast-types", cast(TensorProto.INT16, inside=True)),
    "axes of run time": ("given-operands", unit("ReduceMax", [_ROWS, Given([1])], [3, 1])),
    "ends of run time": (
        "given-operands",
        unit("Slice", [_ROWS, np.array([0]), Given([1])], ["a", 4]),  # type: ignore[list-item]
    ),
    "a reversed sum": (
        "no-such-form",
        unit("CumSum", [_ROWS, np.array(1)], [3, 4], reverse=1),
    ),
    "a wrapping pad": (
        "no-such-form",
        unit("Pad", [_ROWS, np.array([0, 1, 0, 1])], [3, 6], mode="wrap"),
    ),
    "ends that cross": (
        "no-such-form",
        unit("Clip", [_ROWS, np.float32(3), Stored([], constant=True)], [3, 4]),
    ),
    "the norm of power 1": ("no-such-form", unit("LpNormalization", [_ROWS], [3, 4], p=1)),
    "a greatest update": (
        "no-such-form",
        unit("ScatterND", [_ROWS, np.array([[0]]), Stored([1, 4])], [3, 4], reduction="max"),
    ),
    "signed elements": (
        "no-such-form",
        unit("GatherElements", [Stored([3, 4], np.int8), np.zeros((3, 4), np.int64)], [3, 4],
             np.int8),
    ),
    "smoothing": (
        "no-such-form",
        unit("Resize", [_IMAGE, None, np.array([1, 1, 0.5, 0.5], np.float32)], [1, 3, 3, 3],
             mode="linear", antialias=1),
    ),
    "a choice beside floats": (
        "no-float-where",
        unit("Where", [_MASK, _ROWS, np.ones((3, 4), np.float32)], [3, 4]),
    ),
    "a bias of run time": (
        "no-such-form",
        unit("Conv", [_IMAGE, Stored([4, 3, 3, 3], np.int8, constant=True),
                      Given([4], TensorProto.FLOAT)], [1, 4, 4, 4]),
    ),
    "volumes in floats": (
        "no-such-form",
        unit("Conv", [Stored([1, 3, 6, 6, 6]), Stored([4, 3, 3, 3, 3], np.int8, constant=True)],
             [1, 4, 4, 4, 4], None),
    ),
    "uint8 by int16": ("wide-weights", _conv(np.uint8, np.int16, result=np.uint8)),
    "uint16 by int16": ("wide-weights", _conv(np.uint16, np.int16, result=np.uint16)),
    "int8 by uint8 with a bias": ("unsigned", _conv(np.int8, np.uint8, _BIAS)),
    "volumes of int16": (
        "no-int16",
        unit("Conv", [Stored([1, 3, 6, 6, 6], np.int16),
                      Stored([4, 3, 3, 3, 3], np.int8, constant=True)], [1, 4, 4, 4, 4], np.int16),
    ),
}  # fmt: skip
"""The rule that has to say so."""


def int8_by_int16_padded() -> onnx.ModelProto:
    """A product that is taken, and padded with another number than the zero point."""
    operands = [Stored([1, 3, 6, 6], np.int8), Stored([4, 3, 3, 3], np.int16, constant=True)]
    return unit("Conv", operands, [1, 4, 6, 6], np.int8, pads=[1, 1, 1, 1])


def choice(*, constant: bool) -> onnx.ModelProto:
    """A Where of stored numbers and floats, whose result is stored."""
    floats = np.linspace(-1, 6, 12, dtype=np.float32).reshape(3, 4)
    return unit("Where", [_MASK, _ROWS, floats if constant else Given([3, 4], TensorProto.FLOAT)],
                [3, 4])  # fmt: skip
