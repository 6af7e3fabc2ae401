"""Biases and products as producers write them: the rows of C and D that other tests leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedModelError
from tests.core.canonical.idiom_models import X, constant_of, conv, node_of, notes_of, settled
from tests.onnx_models import Builder, canonical, ints, load, ops, run

UNIT = X * 2**-7


def biased(stored: Any, scale: Any, zero_point: int = 0) -> onnx.ModelProto:
    """``x -> QDQ -> Conv(int8 weight, dequantized bias) -> QDQ``."""
    b = Builder(21)
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    channels = {"axis": 0} if np.ndim(scale) else {}
    bias = b.dq(b.init(stored, "bias"), scale, zero_point, stored.dtype, **channels)
    b.output(b.qdq(conv(b, x, bias=bias), 2**-2, 100))
    return b.model()


@pytest.mark.idiom("C2", "C12")
def test_a_bias_per_channel_in_its_units_is_taken() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    scale = np.array([1, 2, 4, 8], np.float32) / 128
    bias = b.dq(b.init(np.array([9, -8, 7, 0], np.int32)), scale * np.float32(X), 0, np.int32,
                axis=0)  # fmt: skip
    b.output(b.qdq(conv(b, x, bias=bias, scale=scale), 2**-2, 100))
    g = settled(b.model())
    assert constant_of(node_of(g, "Conv"), 2).tolist() == [9, -8, 7, 0]
    assert not notes_of(g, "bias-scale")


@pytest.mark.idiom("C5")
def test_a_statistical_bias_is_rounded_to_its_units_with_a_note() -> None:
    scale = (np.array([3, 5, 7, 11]) * 2.0**-31).astype(np.float32)
    stored = np.array([2**30, -(2**29), 2**28, 12345], np.int32)
    g = settled(biased(stored, scale))
    want = np.rint(stored * scale.astype(np.float64) / UNIT)
    np.testing.assert_array_equal(constant_of(node_of(g, "Conv"), 2), want)
    (reason,) = notes_of(g, "bias-scale")
    assert reason.startswith("its bias has a scale of its own, ")


@pytest.mark.idiom("C6")
@pytest.mark.parametrize(("dtype", "zero_point"), [(np.int8, 0), (np.uint8, 7), (np.int16, 0)])
def test_a_narrow_bias_is_rounded_to_its_units_with_a_note(dtype: Any, zero_point: int) -> None:
    stored = np.array([9, 100, 7, 0], dtype)
    g = settled(biased(stored, 2**-9, zero_point))
    integers = constant_of(node_of(g, "Conv"), 2)
    np.testing.assert_array_equal(integers, (stored.astype(int) - zero_point) * 2**-9 / UNIT)
    assert integers.dtype == np.int32
    assert notes_of(g, "bias-scale")


@pytest.mark.idiom("C7")
def test_a_constant_ratio_of_a_gemm_s_bias_is_told() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    bias = b.dq(b.init(np.array([8, 16, 24], np.int32)), UNIT / 2, 0, np.int32)
    b.output(b.qdq(b.op("Gemm", x, b.weight(ints((3, 4), 1), 2**-7), bias, transB=1), 0.25, 0))
    g = settled(b.model())
    (reason,) = notes_of(g, "bias-scale")
    assert "0.5 times scale_x * scale_w" in reason
    assert "Gemm with that beta" in reason
    assert constant_of(node_of(g, "Dense"), 2).tolist() == [4, 8, 12]


@pytest.mark.idiom("C9", "E1")
def test_a_quantized_add_behind_a_product_is_no_bias_and_nothing_to_report() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    y = b.qdq(b.op("MatMul", x, b.weight(ints((4, 3), 1), 2**-7)), 2**-3, 128)
    addend = b.weight(np.array([1, 2, 250], np.uint8), 2**-6)
    b.output(b.qdq(b.op("Add", y, addend), 2**-3, 128))
    g = settled(b.model())
    assert ops(g) == ["quantize", "Dense", "Add", "dequantize"]
    assert not notes_of(g, "bias-from-add")


@pytest.mark.idiom("E2", "D2")
def test_a_residual_whose_product_has_no_quantize_is_noted_as_a_float_region() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    skip = b.qdq(conv(b, x, shape=(3, 3, 1, 1)), 2**-3, 128)
    total = b.op("Add", conv(b, x, shape=(3, 3, 1, 1)), skip)
    b.output(b.qdq(b.op("Relu", total), 2**-2, 0))
    g = settled(b.model())
    assert not notes_of(g, "bias-from-add")
    assert notes_of(g, "absorb-both-sides") == ["operand 0 is float: the result of Conv"]
    convs = [n for n in g.nodes if n.op.name == "Conv"]
    assert all(n.operand(1).quant is not None for n in convs)


@pytest.mark.idiom("D3")
def test_clamps_that_live_in_ranges_are_told_once() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    y = b.qdq(conv(b, x, shape=(3, 3, 1, 1)), 2**-3, 0)
    b.output(b.qdq(conv(b, y, shape=(3, 3, 1, 1)), 2**-3, -128, np.int8))
    g = settled(b.model())
    (note,) = [n for n in g.notes if n.rule == "clamp-in-range"]
    assert note.culprits == tuple(n.name for n in g.nodes if n.op.name == "Conv")
    assert note.reason.startswith("each of 2 operators saturates at real 0")


@pytest.mark.idiom("D4")
@pytest.mark.parametrize(("zero_point", "range_"), [(0, (0, 255)), (10, (10, 255))])
def test_relu_in_front_of_a_quantize_is_a_range(zero_point: int, range_: Any) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    b.output(b.qdq(b.op("Relu", conv(b, x)), 2**-3, zero_point))
    g = settled(b.model())
    quant = node_of(g, "Conv").output.quant
    assert quant is not None
    assert (quant.params.qmin, quant.params.qmax) == range_


@pytest.mark.idiom("D6")
def test_the_bounds_of_a_clip_may_be_dequantized() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    low, high = (b.dq(b.init(np.uint8(v)), 2**-3, 0) for v in (0, 48))
    b.output(b.qdq(b.op("Clip", conv(b, x), low, high), 2**-3, 10))
    g = settled(b.model())
    quant = node_of(g, "Conv").output.quant
    assert quant is not None
    assert (quant.params.qmin, quant.params.qmax) == (10, 58)


@pytest.mark.idiom("D7", "I3")
def test_silu_is_two_operators_and_hard_swish_one() -> None:
    b = Builder(14)
    x = b.qdq(b.input("x", [1, 4]), X, 128)
    gate = b.qdq(b.op("Sigmoid", x), 2**-8, 0)
    y = b.qdq(b.op("Mul", x, gate), 2**-5, 9)
    b.output(b.qdq(b.op("HardSwish", y), 2**-5, 9))
    assert ops(settled(b.model())) == ["quantize", "Sigmoid", "Mul", "HardSwish", "dequantize"]


@pytest.mark.idiom("D8", "I4")
def test_attention_scores_are_integer_whatever_stands_between() -> None:
    b = Builder(17)
    q = b.qdq(b.input("q", [1, 2, 4, 8]), X, 120)
    k = b.qdq(b.input("k", [1, 2, 4, 8]), X, 131)
    b.output(b.qdq(b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), 0.25, 128))
    g = settled(b.model())
    assert ops(g) == ["quantize", "quantize", "Transpose", "MatMul", "dequantize"]
    assert all(v.quant is not None for v in node_of(g, "MatMul").inputs if v is not None)


@pytest.mark.idiom("D10")
@pytest.mark.parametrize("attributes", [{"pads": [1, 0, 2, 1]}, {"auto_pad": "SAME_UPPER"}])
def test_padding_is_the_zero_point(attributes: dict[str, Any]) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 5, 5]), X, 77)
    b.output(b.qdq(conv(b, x, shape=(4, 3, 3, 3), **attributes), 2**-2, 128))
    assert node_of(settled(b.model()), "Conv").output.quant is not None


@pytest.mark.idiom("D11")
def test_a_transposed_convolution_per_output_channel_is_integer() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 4, 4]), X, 128)
    scale = np.array([0.5, 0.25], np.float32) / 64
    w = b.weight(ints((3, 2, 2, 2), 1), scale, axis=1)
    bias = b.dq(b.init(np.array([5, -6], np.int32)), scale * np.float32(X), 0, np.int32, axis=0)
    b.output(b.qdq(b.op("ConvTranspose", x, w, bias, strides=[2, 2]), 2**-1, 128))
    assert node_of(settled(b.model()), "ConvTranspose").output.quant is not None


@pytest.mark.idiom("D13", "D2")
def test_a_product_without_a_quantize_has_a_float_result() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.op("MatMul", x, b.weight(ints((4, 3), 1), 2**-7)))
    g = settled(b.model())
    assert ops(g) == ["quantize", "Dense"]
    assert node_of(g, "Dense").output.quant is None


@pytest.mark.idiom("D17")
def test_an_einsum_of_quantized_operands_is_computed_in_float() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    y = b.op("Einsum", x, b.weight(ints((4, 3), 1), 2**-7), equation="ij,jk->ik")
    b.output(b.qdq(y, 2**-2, 128))
    g = settled(b.model())
    assert "Einsum" in ops(g)


@pytest.mark.idiom("D18")
def test_an_lstm_of_dequantized_weights_is_carried() -> None:
    b = Builder(14)
    x = b.qdq(b.input("x", [3, 1, 4]), X, 128)
    w, r = (b.weight(ints((1, 8, n), n), 2**-7) for n in (4, 2))
    y = b.op("LSTM", x, w, r, hidden_size=2)
    b.output(b.qdq(b.op("Squeeze", y, b.init(np.array([1], np.int64))), 2**-7, 0, np.int8))
    g = settled(b.model())
    lstm = node_of(g, "LSTM")
    assert all(
        v is None or v.producer is None or v.producer.op.name == "dequantize" for v in lstm.inputs
    )
    assert load(b.model()) is not None


@pytest.mark.idiom("K10")
@pytest.mark.parametrize(
    ("domain", "op_type"),
    [("com.microsoft", "EPContext"), ("com.microsoft.nchwc", "Conv"),
     ("com.ms.internal.nhwc", "QLinearConv")],
)  # fmt: skip
def test_formats_of_one_runtime_s_own_are_carried_and_not_run(domain: str, op_type: str) -> None:
    b = Builder()
    b.output(b.op(op_type, b.input("x", [1, 3, 2, 2]), domain=domain))
    g = canonical(b.model())
    assert [op_type in note.reason for note in g.notes if note.rule == "opaque-operator"] == [True]
    with pytest.raises(UnsupportedModelError) as caught:
        evaluate(g, {"x": np.ones((1, 3, 2, 2), np.float32)})
    assert op_type in str(caught.value)


@pytest.mark.idiom("C4")
def test_a_missing_bias_stays_missing() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    b.output(b.qdq(conv(b, x), 2**-2, 100))
    assert len(node_of(settled(b.model()), "Conv").inputs) == 2


@pytest.mark.idiom("C3")
def test_a_float_bias_is_rounded_to_its_units_silently() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    bias = b.init(np.array([0.5, -1, 0.25, 0], np.float32))
    b.output(b.qdq(conv(b, x, bias=bias), 2**-2, 100))
    g = settled(b.model())
    np.testing.assert_array_equal(
        constant_of(node_of(g, "Conv"), 2), np.array([0.5, -1, 0.25, 0]) / UNIT
    )
    assert node_of(g, "Conv").operand(2).type.dtype is DType.INT32
    assert not notes_of(g, "bias-scale")


@pytest.mark.idiom("J4")
def test_integers_at_the_boundary_carry_their_parameters() -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 3, 2, 2], TensorProto.UINT8), X, 128)
    b.output(b.q(conv(b, x), 2**-2, 100), None, TensorProto.UINT8)
    g = settled(b.model())
    assert ops(g) == ["Conv"]
    assert g.inputs[0].quant is not None
    assert run(g, {"x": np.full((1, 3, 2, 2), 128, np.uint8)})[0].dtype == np.uint8
