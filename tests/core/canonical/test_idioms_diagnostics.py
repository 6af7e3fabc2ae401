"""Rows that ask for a diagnostic: explain and inspect show it with the name of its node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.sources import inspect_model
from qdqbridge.errors import QdqBridgeError
from tests.core.canonical.idiom_models import X, conv
from tests.onnx_models import Array, Builder, ints, load

Model: TypeAlias = "Callable[[Builder], None]"
CODES = ints((4, 3, 1, 1), 1)
UNITS = np.float32(X) * np.float32(2**-7)


def image(b: Builder, scale: Any = X) -> str:
    return b.qdq(b.input("x", [1, 3, 2, 2]), scale, 128)


def half_scale_of_an_old_opset(b: Builder) -> None:
    x = b.input("x", [2, 3], TensorProto.FLOAT16)
    b.output(b.qdq(x, np.float16(X), 128), elem_type=TensorProto.FLOAT16)


def initializer_that_is_an_input(b: Builder) -> None:
    scale = b.init(np.float32(X))
    b.inputs.append(onnx.helper.make_tensor_value_info(scale, TensorProto.FLOAT, []))
    b.output(b.op("QuantizeLinear", b.input("x", [2, 3]), scale), elem_type=TensorProto.UINT8)


def negative_scale(b: Builder) -> None:
    b.output(b.qdq(conv(b, image(b), scale=np.array([1, -1, 1, 1], np.float32) / 128), 0.25, 0))


def scale_of_an_empty_channel(b: Builder) -> None:
    scale = np.array([2**-7, 5.96e-8, 2**-7, 2**-7], np.float32)
    b.output(b.qdq(conv(b, image(b), scale=scale), 0.25, 0))


def affine_training_convolution(b: Builder) -> None:
    y = b.op("Div", conv(b, image(b)), b.init(np.full((1, 4, 1, 1), 0.7, np.float32)))
    b.output(b.qdq(y, 0.25, 0))


def blocks_without_their_size(b: Builder) -> None:
    w = b.weight(ints((4, 6), 1), np.full((2, 6), 0.01, np.float32), axis=0)
    b.output(b.op("MatMul", b.input("x", [2, 4]), w))


def transposed_weight_along_its_input(b: Builder) -> None:
    w = b.weight(ints((3, 4, 2, 2), 1), np.array([1, 2, 3], np.float32) / 128, axis=0)
    b.output(b.qdq(b.op("ConvTranspose", image(b), w), 0.25, 0))


def folded_weight(b: Builder) -> None:
    codes: Array = ints((4, 3, 3, 3), 1)
    x = b.qdq(b.input("x", [1, 3, 6, 6]), X, 128)
    w = b.init(codes.astype(np.float32) * np.float32(0.0123))
    b.output(b.qdq(b.op("Conv", x, w), 0.25, 0))


def bias_of_another_scale(b: Builder) -> None:
    bias = b.weight(np.array([1, -2, 3, 4], np.int32) * 1000, np.float32(3e-6))
    b.output(b.qdq(conv(b, image(b), bias=bias), 0.25, 0))


def small_bias_of_its_own(b: Builder) -> None:
    bias = b.weight(np.array([1, -2, 3, 4], np.int8), np.float32(2**-5))
    b.output(b.qdq(conv(b, image(b), bias=bias), 0.25, 0))


def bias_that_lost_its_beta(b: Builder) -> None:
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    bias = b.weight(np.array([100, 7, -9], np.int32), UNITS * np.float32(0.5))
    y = b.op("Gemm", x, b.weight(ints((3, 4), 1), 2**-7), bias, transB=1)
    b.output(b.qdq(y, 0.25, 0))


def bias_with_a_zero_point(b: Builder) -> None:
    bias = b.weight(np.array([100, 7, -9, 5], np.int32), UNITS, 3)
    b.output(b.qdq(conv(b, image(b), bias=bias), 0.25, 0))


def removed_relu(b: Builder) -> None:
    b.output(b.qdq(conv(b, image(b)), 0.25, 0))


def float_product(b: Builder) -> None:
    w = b.weight(ints((4, 3), 1), 2**-7)
    b.output(b.op("Sigmoid", b.op("MatMul", b.input("x", [2, 4]), w)))


def recurrent(b: Builder) -> None:
    x = b.qdq(b.input("x", [3, 1, 4]), X, 128)
    weights = (b.weight(ints((1, 8, n), 1), 2**-7) for n in (4, 2))
    y = b.op("LSTM", x, *weights, hidden_size=2, outputs=1)
    b.output(b.qdq(y, X, 128))


def residual_of_a_raw_product(b: Builder) -> None:
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    y = conv(b, x, shape=(3, 3, 1, 1))
    b.output(b.qdq(b.op("Add", y, x), 0.25, 0))


def exploded_mask(b: Builder) -> None:
    x = b.qdq(b.input("x", [2, 3]), X, 128)
    mask = b.qdq(b.input("mask", [2, 3]), np.float32(1.3e36), 255)
    b.output(b.qdq(b.op("Where", b.init(np.eye(2, 3, dtype=bool)), x, mask), X, 128))


def channels_mixed_by_a_reshape(b: Builder) -> None:
    x = b.dq(b.input("x", [4, 6], TensorProto.INT8), np.arange(1, 7, dtype=np.float32) / 64, 0,
             np.int8, axis=1)  # fmt: skip
    b.output(b.op("Reshape", x, b.init(np.array([3, 8]))))


def cast_between(b: Builder) -> None:
    values = image(b), b.weight(CODES, 2**-7)
    y = b.op("Conv", *(b.op("Cast", v, to=TensorProto.FLOAT16) for v in values))
    b.output(b.qdq(b.op("Cast", y, to=TensorProto.FLOAT), 0.25, 0))


def fake_quantization(b: Builder) -> None:
    scale = b.init(np.float32(X))
    y = b.op("Round", b.op("Div", b.input("x", [2, 3]), scale))
    y = b.op("Clip", y, b.init(np.float32(0)), b.init(np.float32(255)))
    b.output(b.op("Mul", y, scale))


ROWS = [
    pytest.param(rule, model, opset, id=f"{name}-{rule}")
    for name, rule, model, opset in (
        ("A20", "scale-before-its-opset", half_scale_of_an_old_opset, 17),
        ("A26", "input-with-initializer", initializer_that_is_an_input, 13),
        ("A27", "negative-scale", negative_scale, 13),
        ("A28", "degenerate-scale", scale_of_an_empty_channel, 13),
        ("B6", "affine-behind-product", affine_training_convolution, 13),
        ("B12", "inferred-block-size", blocks_without_their_size, 21),
        ("B13", "float-region", transposed_weight_along_its_input, 13),
        ("B16", "folded-weights", folded_weight, 13),
        ("C5", "bias-scale", bias_of_another_scale, 13),
        ("C6", "bias-scale", small_bias_of_its_own, 13),
        ("C7", "bias-scale", bias_that_lost_its_beta, 13),
        ("C14", "bias-zero-point", bias_with_a_zero_point, 13),
        ("D3", "clamp-in-range", removed_relu, 13),
        ("D14", "absorb-accumulator-operands", float_product, 13),
        ("D18", "float-region", recurrent, 14),
        ("E2", "float-region", residual_of_a_raw_product, 13),
        ("E8", "huge-scale", exploded_mask, 13),
        ("G9", "dequantize-through-data-movement", channels_mixed_by_a_reshape, 13),
        ("J5", "computed-type", cast_between, 21),
        ("L2", "decomposed-quantization", fake_quantization, 13),
    )
]


@pytest.mark.idiom(
    "A20", "A26", "A27", "A28", "B6", "B12", "B13", "B16", "C5", "C6", "C7", "C14", "D3", "D14",
    "D18", "E2", "E8", "G9", "J5", "L2",
)  # fmt: skip
@pytest.mark.parametrize(("rule", "build", "opset"), ROWS)
def test_the_diagnostic_is_shown_and_names_its_node(
    rule: str, build: Model, opset: int, tmp_path: Path
) -> None:
    b = Builder(opset)
    build(b)
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    explained = [n for n in qb.explain(qb.load(path)) if n.rule == rule]
    assert explained
    names = {node.name for node in b.nodes} | {init.name for init in b.initializers}
    assert {note.node for note in explained} <= names
    assert all(note.reason for note in explained)
    assert set(explained) <= set(inspect_model(path).notes)


@pytest.mark.idiom("A28", "E8")
@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, 1e-42])
def test_a_scale_that_is_no_number_is_refused_with_its_node(scale: float) -> None:
    b = Builder()
    b.output(b.qdq(b.input("x", [2, 3]), scale, 0))
    with pytest.raises(QdqBridgeError) as caught:
        load(b.model())
    assert b.nodes[0].name in str(caught.value)
