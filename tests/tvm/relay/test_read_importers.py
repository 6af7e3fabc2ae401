"""What Relay's real importers make of our files, and what they are known to write."""

from typing import Any

import numpy as np
import pytest
import tflite
import tvm
from onnx import TensorProto, helper
from tvm import relay

import qdqbridge
from qdqbridge.core.graph.diff import diff
from qdqbridge.tvm.relay.dialect import install_shims
from qdqbridge.tvm.relay.read import from_relay
from tests.onnx_models import Builder, canonical
from tests.places import MODELS
from tests.tflite_io.tflite_writer import Model
from tests.tvm.relay.relay_side import fixed, imported, run

CNNS = ("digits_cnn_u8s8_per_channel", "digits_cnn_s8s8_per_tensor")
RANDOM = np.random.default_rng(4)


def loaded(model, tmp_path):
    import onnx

    onnx.save(model, tmp_path / "fixed.onnx")
    return qdqbridge.load(tmp_path / "fixed.onnx")


def same(a, b):
    assert diff(a, b) == []
    return a.digest == b.digest


@pytest.mark.parametrize("name", CNNS)
def test_the_onnx_importers_module_is_the_file(name, tmp_path):
    model = fixed(MODELS / f"{name}.onnx")
    assert same(from_relay(imported(model)), loaded(model, tmp_path))


@pytest.mark.parametrize("name", CNNS)
def test_fake_quantization_to_integer_is_the_file(name, tmp_path):
    install_shims()
    model = fixed(MODELS / f"{name}.onnx")
    module = relay.transform.FakeQuantizationToInteger()(imported(model))
    assert same(from_relay(module), loaded(model, tmp_path))


@pytest.mark.parametrize(
    ("name", "norms"), [("digits_cnn_float", 0), ("digits_attention_float", 5)]
)
def test_float_models_compute_what_relay_computes(name, norms):
    """And layer norms are whole again."""
    model = fixed(MODELS / f"{name}.onnx")
    module = imported(model)
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:1]}
    (expected,) = run(module, data)
    graph = from_relay(module)
    assert [node.op.name for node in graph.nodes].count("LayerNormalization") == norms
    (actual,) = qdqbridge.evaluate(graph, data).values()
    # Float networks: sums in another order, layer after layer.
    np.testing.assert_allclose(actual, expected, atol=2e-5)


# ---- TFLite ------------------------------------------------------------------------------------


def weights(shape, channels, axis, sx):
    w = RANDOM.integers(-127, 128, shape).astype(np.int8)
    scale = RANDOM.uniform(0.01, 0.02, channels).astype(np.float32)
    bias = RANDOM.integers(-999, 999, channels).astype(np.int32)
    return w, scale, bias, np.asarray(np.float32(sx) * scale, np.float32)


NETWORK = {
    "conv": weights((6, 3, 3, 4), 6, 0, 0.05),
    "depthwise": weights((1, 3, 3, 6), 6, 3, 0.1),
    "dense": (
        RANDOM.integers(-127, 128, (10, 12)).astype(np.int8),
        np.float32(0.01),
        RANDOM.integers(-999, 999, 10).astype(np.int32),
        np.float32(0.15) * np.float32(0.01),
    ),
}
CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
POOL = {"Padding": 1, "StrideH": 2, "StrideW": 2, "FilterHeight": 2, "FilterWidth": 2}


def tflite_file():
    m = Model()
    x = m.tensor("x", (1, 8, 8, 4), "int8", 0.05, 3)
    w, scale, bias, unit = NETWORK["conv"]
    operands = [x, m.constant("w", w, scale), m.constant("b", bias, unit)]
    y = m.tensor("y", (1, 8, 8, 6), "int8", 0.1, -100)
    m.operator(
        "CONV_2D", operands, y, "Conv2DOptions", Padding=0, FusedActivationFunction=1, **CONV
    )
    w, scale, bias, unit = NETWORK["depthwise"]
    operands = [y, m.constant("dw", w, scale, 3), m.constant("db", bias, unit)]
    d = m.tensor("d", (1, 8, 8, 6), "int8", 0.12, 5)
    m.operator("DEPTHWISE_CONV_2D", operands, d, "DepthwiseConv2DOptions", Padding=0,
               DepthMultiplier=1, **CONV)  # fmt: skip
    a = m.operator("ADD", [y, d], m.tensor("a", (1, 8, 8, 6), "int8", 0.2, 1), "AddOptions")
    c = m.tensor("c", (1, 8, 8, 12), "int8", 0.2, 1)
    m.operator("CONCATENATION", [a, a], c, "ConcatenationOptions", Axis=3)
    p = m.tensor("p", (1, 4, 4, 12), "int8", 0.2, 1)
    m.operator("MAX_POOL_2D", [c], p, "Pool2DOptions", **POOL)
    q = m.tensor("q", (1, 2, 2, 12), "int8", 0.2, 1)
    m.operator("AVERAGE_POOL_2D", [p], q, "Pool2DOptions", **POOL)
    axes = m.constant("axes", np.array([1, 2], np.int32))
    e = m.tensor("e", (1, 12), "int8", 0.15, 0)
    m.operator("MEAN", [q, axes], e, "ReducerOptions", KeepDims=False)
    w, scale, bias, unit = NETWORK["dense"]
    operands = [e, m.constant("fw", w, scale), m.constant("fb", bias, unit)]
    f = m.tensor("f", (1, 10), "int8", 0.3, -4)
    m.operator("FULLY_CONNECTED", operands, f, "FullyConnectedOptions")
    s = m.tensor("s", (1, 10), "int8", 1 / 256, -128)
    m.operator("SOFTMAX", [f], s, "SoftmaxOptions", Beta=1.0)
    return m.tobytes([x], [s])


def onnx_twin():
    """The same network as Q/DQ nodes in ONNX's layout."""
    b = Builder(17)
    x = b.dq(b.input("x", [1, 8, 8, 4], TensorProto.INT8), 0.05, 3, np.int8)
    x = b.op("Transpose", x, perm=[0, 3, 1, 2])
    w, scale, bias, unit = NETWORK["conv"]
    y = b.op("Conv", x, b.weight(w.transpose(0, 3, 1, 2), scale, axis=0),
             b.dq(b.init(bias), unit, 0, np.int32, axis=0), pads=[1, 1, 1, 1])  # fmt: skip
    y = b.qdq(b.op("Relu", y), 0.1, -100, np.int8)
    w, scale, bias, unit = NETWORK["depthwise"]
    d = b.op("Conv", y, b.weight(w.transpose(3, 0, 1, 2), scale, axis=0),
             b.dq(b.init(bias), unit, 0, np.int32, axis=0), pads=[1, 1, 1, 1], group=6)  # fmt: skip
    a = b.qdq(b.op("Add", y, b.qdq(d, 0.12, 5, np.int8)), 0.2, 1, np.int8)
    c = b.qdq(b.op("Concat", a, a, axis=1), 0.2, 1, np.int8)
    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    p = b.qdq(b.op("MaxPool", c, **window), 0.2, 1, np.int8)
    q = b.qdq(b.op("AveragePool", p, **window), 0.2, 1, np.int8)
    e = b.qdq(b.op("ReduceMean", q, axes=[2, 3], keepdims=0), 0.15, 0, np.int8)
    w, scale, bias, unit = NETWORK["dense"]
    f = b.op("Gemm", e, b.weight(w, scale), b.dq(b.init(bias), unit, 0, np.int32), transB=1)
    s = b.op("Softmax", b.qdq(f, 0.3, -4, np.int8), axis=-1)
    b.outputs.append(
        helper.make_tensor_value_info(b.q(s, 1 / 256, -128, np.int8), TensorProto.INT8, [1, 10])
    )
    return canonical(b.model())


def test_a_tflite_file_is_its_twin_in_onnx():
    module, params = relay.frontend.from_tflite(tflite.Model.GetRootAsModel(tflite_file(), 0))
    assert same(from_relay(module, params), onnx_twin())


# ---- what the PyTorch and MXNet importers write (by hand: neither framework is needed) ---------


def scale(number):
    return relay.const(np.float32(number))


def zero(number):
    return relay.const(np.int32(number))


def qnn_conv(data, w, bias, sx, zx, sw):
    product = relay.qnn.op.conv2d(
        data, relay.const(w), zero(zx), zero(0), scale(sx), relay.const(sw),
        kernel_size=(3, 3), channels=len(w), padding=(1, 1),
    )  # fmt: skip
    return relay.nn.bias_add(product, relay.const(bias))


def to_eight_bits(accumulator, unit, sy, zy, low=0):
    """``requantize`` to int32, ``clip``, ``cast``: MXNet's and PyTorch's way."""
    wide = relay.qnn.op.requantize(
        accumulator, relay.const(unit), zero(0), scale(sy), zero(zy), axis=1, out_dtype="int32"
    )
    return relay.cast(relay.clip(wide, low, 255), "uint8")


def conv_twin(w, bias, sw, *, relu):
    b = Builder(17)
    x = b.qdq(b.input("x", [1, 3, 6, 6]), 0.05, 120)
    unit = np.asarray(np.float32(0.05) * sw, np.float32)
    y = b.op("Conv", x, b.weight(w, sw, axis=0), b.dq(b.init(bias), unit, 0, np.int32, axis=0),
             pads=[1, 1, 1, 1])  # fmt: skip
    y = b.op("Relu", y) if relu else y
    b.output(b.qdq(y, 0.2, 7))
    return canonical(b.model())


@pytest.mark.parametrize("relu", [False, True])
def test_requantize_clip_cast_is_one_rounding(relu):
    w = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    sw = RANDOM.uniform(0.01, 0.02, 4).astype(np.float32)
    bias = RANDOM.integers(-999, 999, 4).astype(np.int32)
    x = relay.var("x", shape=(1, 3, 6, 6))
    stored = relay.qnn.op.quantize(x, scale(0.05), zero(120), out_dtype="uint8")
    product = qnn_conv(stored, w, bias, 0.05, 120, sw)
    unit = np.asarray(np.float32(0.05) * sw, np.float32)
    y = to_eight_bits(product, unit, 0.2, 7, low=7 if relu else 0)
    body = relay.qnn.op.dequantize(y, scale(0.2), zero(7))
    assert same(from_relay(relay.Function([x], body)), conv_twin(w, bias, sw, relu=relu))


def test_a_relu_before_the_rounding_is_the_rounded_range():
    """``conv -> bias_add -> relu -> requantize``, which the Compute Library's table takes."""
    w = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    sw = RANDOM.uniform(0.01, 0.02, 4).astype(np.float32)
    bias = RANDOM.integers(-999, 999, 4).astype(np.int32)
    x = relay.var("x", shape=(1, 3, 6, 6))
    stored = relay.qnn.op.quantize(x, scale(0.05), zero(120), out_dtype="uint8")
    product = relay.nn.relu(qnn_conv(stored, w, bias, 0.05, 120, sw))
    unit = np.asarray(np.float32(0.05) * sw, np.float32)
    y = relay.qnn.op.requantize(
        product, relay.const(unit), zero(0), scale(0.2), zero(7), axis=1, out_dtype="uint8"
    )
    body = relay.qnn.op.dequantize(y, scale(0.2), zero(7))
    assert same(from_relay(relay.Function([x], body)), conv_twin(w, bias, sw, relu=True))


def test_a_foreign_scale_of_an_accumulator_counts():
    """A requantize whose scale is not the product of scales says what the integers mean."""
    w = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    x = relay.var("x", shape=(1, 3, 6, 6), dtype="int8")
    product = qnn_conv(x, w, np.zeros(4, np.int32), 0.5, 0, np.float32(0.25))
    y = relay.qnn.op.requantize(
        product, scale(0.5), zero(0), scale(512.0), zero(0), axis=1, out_dtype="int8"
    )
    graph = from_relay(relay.Function([x], y))
    data = {"x": RANDOM.integers(-127, 128, (1, 3, 6, 6)).astype(np.int8)}
    (actual,) = qdqbridge.evaluate(graph, data).values()
    (expected,) = run(tvm.IRModule.from_expr(relay.Function([x], y)), data)
    ties = actual != expected  # Relay rounds halves away from zero
    assert ties.mean() < 0.01
    assert np.abs(actual.astype(int) - expected).max() <= 1


def test_integers_that_lose_bits_are_refused():
    x = relay.var("x", shape=(1, 3, 6, 6))
    wide = relay.qnn.op.quantize(x, scale(0.05), zero(0), out_dtype="int32")
    body = relay.qnn.op.dequantize(relay.cast(wide, "int8"), scale(0.05), zero(0))
    with pytest.raises(qdqbridge.QdqBridgeError, match="cuts bits off"):
        from_relay(relay.Function([x], body))


def test_a_sum_of_integers_with_a_zero_point_is_refused():
    x = relay.var("x", shape=(1, 8))
    stored = relay.qnn.op.quantize(x, scale(0.05), zero(3), out_dtype="int8")
    total = relay.sum(relay.cast(stored, "int32"), axis=1)
    y = relay.qnn.op.requantize(total, scale(0.05), zero(3), scale(0.4), zero(0), out_dtype="int8")
    with pytest.raises(qdqbridge.QdqBridgeError, match="zero point is 24"):
        from_relay(relay.Function([x], relay.qnn.op.dequantize(y, scale(0.4), zero(0))))
