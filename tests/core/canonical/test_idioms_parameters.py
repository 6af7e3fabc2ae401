"""How Q/DQ nodes and their parameters are written: the rows of A that other tests leave."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import UnsupportedQuantization
from tests.core.canonical.idiom_models import X, constant_of, conv, node_of, notes_of, settled
from tests.onnx_models import Builder, canonical, ints, ops, run


@pytest.mark.idiom("A7")
def test_a_zero_point_cast_from_a_half_precision_constant() -> None:
    b = Builder(21)
    x = b.input("x", [2, 3])
    z = b.op("Cast", b.init(np.float16(0)), to=TensorProto.INT8)
    s = b.init(np.float32(X))
    b.output(b.op("DequantizeLinear", b.op("QuantizeLinear", x, s, z), s, z))
    g = settled(b.model())
    assert node_of(g, "quantize").output.type.dtype is DType.INT8


@pytest.mark.idiom("A9", "C11")
def test_a_bias_computed_by_truncation_keeps_its_integers() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    unit = b.op("Mul", b.init(np.float32(X)), b.init(np.full(4, 2**-7, np.float32)))
    real = b.init(np.array([0.99, -0.99, 1.5, 0.0], np.float32) * np.float32(X * 2**-7))
    stored = b.op("Cast", b.op("Div", real, unit), to=TensorProto.INT32)
    bias = b.op("DequantizeLinear", stored, unit, axis=0)
    y = conv(b, x, bias=bias, scale=np.full(4, 2**-7, np.float32))
    b.output(b.qdq(y, 2**-2, 0))
    node = node_of(settled(b.model()), "Conv")
    assert constant_of(node, 2).tolist() == [0, 0, 1, 0]
    assert node.operand(2).type.dtype is DType.INT32


@pytest.mark.idiom("A10")
def test_a_scale_computed_from_the_weight_is_a_constant() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 0, np.int8)
    w = b.init(np.arange(-4, 4, dtype=np.float32).reshape(4, 2))
    top = b.op("Abs", b.op("ReduceMax", w, axes=[0], keepdims=0))
    low = b.op("Abs", b.op("ReduceMin", w, axes=[0], keepdims=0))
    s = b.op("Div", b.op("Max", top, low), b.init(np.float32(4)))
    z = b.op("Cast", b.op("ConstantOfShape", b.op("Shape", s)), to=TensorProto.INT8)
    q = b.op("QuantizeLinear", w, s, z, axis=1)
    b.output(b.op("MatMul", x, b.op("DequantizeLinear", q, s, z, axis=1)))
    node = node_of(settled(b.model()), "Dense")
    assert node.operand(1).type.dtype is DType.INT8


@pytest.mark.idiom("A10", "D15", "D16")
def test_a_scale_computed_from_an_activation_stays_dynamic() -> None:
    b = Builder()
    x = b.input("x", [2, 4])
    q = b.op("DynamicQuantizeLinear", x, outputs=3)
    dq = b.op("DequantizeLinear", q, f"{q}:1", f"{q}:2")
    b.output(b.op("MatMul", dq, b.weight(ints((4, 3), 1), 2**-7)))
    g = settled(b.model())
    assert "DynamicQuantizeLinear" in ops(g)
    assert node_of(g, "Dense").operand(1).quant is not None


@pytest.mark.idiom("A11")
def test_a_scale_that_is_dequantized_itself() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 0, np.int8)
    s = b.dq(b.init(np.array([4, 8, 12], np.uint8)), 2**-9, 0)
    w = b.op("DequantizeLinear", b.init(ints((4, 3), 1)), s, axis=1)
    b.output(b.op("MatMul", x, w))
    quant = node_of(settled(b.model()), "Dense").operand(1).quant
    assert quant is not None
    np.testing.assert_array_equal(quant.params.scale, np.array([4, 8, 12], np.float32) / 512)


@pytest.mark.idiom("A18")
def test_without_a_clip_the_range_is_that_of_the_storage() -> None:
    b = Builder()
    b.output(b.qdq(b.input("x", [2, 3]), X, 0, np.int8))
    quant = node_of(settled(b.model()), "quantize").output.quant
    assert quant is not None
    assert (quant.params.qmin, quant.params.qmax) == (-128, 127)


@pytest.mark.idiom("A20")
def test_half_precision_scales_before_their_opset_are_read_with_a_note() -> None:
    b = Builder(17)
    x = b.input("x", [2, 3], TensorProto.FLOAT16)
    b.output(b.qdq(x, np.float16(0.1), 0), None, TensorProto.FLOAT16)
    g = settled(b.model())
    (reason,) = notes_of(g, "scale-before-its-opset")
    assert reason == "its scale is float16, which ONNX has since opset 19, not 17"
    assert not notes_of(canonical(_renumbered(b, 19)), "scale-before-its-opset")


def _renumbered(b: Builder, opset: int):
    b.opsets[""] = opset
    return b.model()


@pytest.mark.idiom("A21")
def test_half_precision_inside_float32_boundaries() -> None:
    b = Builder(19)
    x = b.op("Cast", b.input("x", [2, 3]), to=TensorProto.FLOAT16)
    y = b.qdq(x, np.float16(0.1), 0)
    b.output(b.op("Cast", y, to=TensorProto.FLOAT))
    g = settled(b.model())
    assert ops(g) == ["Cast", "quantize", "dequantize", "Cast"]
    quant = node_of(g, "quantize").output.quant
    assert quant is not None
    assert quant.params.expressed_dtype is DType.FLOAT16
    assert quant.params.scale.tobytes() == np.float16(0.1).tobytes()


@pytest.mark.idiom("A21")
def test_what_a_half_precision_dequantize_yields_is_rounded_to_it() -> None:
    b = Builder(21)
    b.output(b.dq(b.input("x", [256], TensorProto.UINT8), np.float16(0.1), 3), None, 10)
    codes = np.arange(256, dtype=np.uint8)
    (got,) = run(canonical(b.model()), {"x": codes})
    want = (codes.astype(np.float32) - 3) * np.float32(np.float16(0.1))
    np.testing.assert_array_equal(got, want.astype(np.float16))


@pytest.mark.idiom("A25")
def test_half_and_single_precision_of_one_scale_are_two_types() -> None:
    b = Builder(21)
    q = b.q(b.input("x", [2, 3]), np.float32(0.1), 0)
    b.output(b.dq(q, np.float16(0.1), 0), None, TensorProto.FLOAT16)
    g = settled(b.model())
    assert ops(g) == ["quantize", "reinterpret", "dequantize"]


@pytest.mark.idiom("A25")
def test_equal_parameters_in_different_initializers_are_one_type() -> None:
    b = Builder()
    q = b.q(b.input("x", [2, 3]), 0.1, 7)
    b.output(b.q(b.dq(q, 0.1, 7), 0.1, 7), None, TensorProto.UINT8)
    assert ops(settled(b.model())) == ["quantize"]


@pytest.mark.idiom("A27")
def test_a_negative_weight_scale_is_noted() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    b.output(b.qdq(conv(b, x, scale=np.array([1, -1, 1, -1], np.float32) / 128), 2**-2, 0))
    g = settled(b.model())
    assert notes_of(g, "negative-scale")
    quant = node_of(g, "Conv").operand(1).quant
    assert quant is not None
    assert (quant.params.scale.astype(np.float32) > 0).all()


@pytest.mark.idiom("A27")
def test_a_negative_scale_of_an_activation_is_refused() -> None:
    b = Builder()
    b.output(b.qdq(b.input("x", [2, 3]), -0.5, 0))
    with pytest.raises(UnsupportedQuantization, match="negative scale on an activation"):
        canonical(b.model())


@pytest.mark.idiom("A28")
@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, 1e-42])
def test_scales_that_stand_for_nothing_are_refused(scale: float) -> None:
    b = Builder()
    b.output(b.qdq(b.input("x", [2, 3]), scale, 0))
    with pytest.raises(UnsupportedQuantization, match="no usable real numbers"):
        canonical(b.model())


@pytest.mark.idiom("A28")
def test_scales_of_empty_channels_are_noted() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    scale = np.array([2**-7, 5.96e-8, 2**-7, 5.96e-8], np.float32)
    b.output(b.qdq(conv(b, x, scale=scale), 2**-2, 0))
    (reason,) = notes_of(settled(b.model()), "degenerate-scale")
    assert reason.startswith("2 of its 4 scales are 5.96e-08")


@pytest.mark.idiom("A29", "L4", "L9")
def test_the_producer_s_name_means_nothing() -> None:
    def model(producer: str):
        b = Builder()
        b.output(b.qdq(b.input("x", [2, 3]), X, 0))
        return b.model(producer_name=producer)

    digests = {canonical(model(name)).digest for name in ("onnx.quantize", "pytorch", "")}
    assert len(digests) == 1


@pytest.mark.idiom("E8")
def test_a_scale_of_a_mask_is_noted() -> None:
    b = Builder()
    x, condition = b.qdq(b.input("x", [2, 3]), X, 128), b.input("c", [2, 3], TensorProto.BOOL)
    mask = b.dq(b.init(np.uint8(0)), np.float32(1.3e36), 255)
    b.output(b.qdq(b.op("Where", condition, x, mask), np.float32(1.3e36), 255))
    (reason, *_) = notes_of(settled(b.model()), "huge-scale")
    assert reason.startswith("a scale is 1.3e+36")


@pytest.mark.idiom("C14")
def test_a_zero_point_of_an_int32_bias_is_subtracted() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    bias = b.dq(b.init(np.array([5, 6, 7, 8], np.int32)), X * 2**-7, 5, np.int32)
    b.output(b.qdq(conv(b, x, bias=bias), 2**-2, 0))
    g = settled(b.model())
    assert constant_of(node_of(g, "Conv"), 2).tolist() == [0, 1, 2, 3]
    assert notes_of(g, "bias-zero-point")


@pytest.mark.idiom("B12")
def test_a_block_size_that_was_left_out_is_noted() -> None:
    b = Builder(21)
    scale = (np.arange(1, 7, dtype=np.float32) / 64).reshape(2, 3)
    w = b.weight(ints((4, 3), 1), scale, axis=0)
    b.output(b.op("MatMul", b.input("x", [2, 4]), w))
    (reason,) = notes_of(settled(b.model()), "inferred-block-size")
    assert reason == "block_size is left out; the shape of the scale, (2, 3), makes it 2"
