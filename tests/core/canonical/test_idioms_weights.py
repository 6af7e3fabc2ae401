"""Weights as producers write them: the rows of B that other tests leave."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import dequantize
from tests.core.canonical.idiom_models import X, conv, node_of, notes_of, settled
from tests.onnx_models import Array, Builder, canonical, ints, ops, run


@pytest.mark.idiom("B4")
@pytest.mark.parametrize("blocked", [False, True])
def test_a_transpose_behind_a_weight_s_dq_is_gone(blocked: bool) -> None:
    b = Builder(21)
    x = b.input("x", [2, 8])
    scale = np.full((3, 2) if blocked else 3, 2**-7, np.float32)
    scale[0] = 2**-6
    attributes = {"axis": 1, "block_size": 4} if blocked else {"axis": 0}
    w = b.weight(ints((3, 8), 1).astype(ml_dtypes.int4), scale, **attributes)
    b.output(b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0])))
    node = node_of(settled(b.model()), "Dense")
    assert node.operand(1).type.shape == (3, 8)
    assert node.operand(1).type.dtype is DType.INT4


@pytest.mark.idiom("B5")
def test_rows_of_one_block_are_joined_to_a_blocked_weight() -> None:
    codes, scales = ints((6, 4), 1), np.arange(1, 7, dtype=np.float32) / 64

    def model(*, legacy: bool):
        b = Builder(21)
        x = b.input("x", [2, 8])
        if legacy:
            w = b.dq(b.init(codes), scales, 0, np.int8, axis=0)
            w = b.op("Reshape", w, b.init(np.array([3, 8], np.int64)))
        else:
            stored = b.init(codes.reshape(3, 8))
            w = b.dq(stored, scales.reshape(3, 2), 0, np.int8, axis=1, block_size=4)
        b.output(b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0])))
        return b.model()

    old, new = settled(model(legacy=True)), settled(model(legacy=False))
    assert old.digest == new.digest
    quant = node_of(old, "Dense").operand(1).quant
    assert quant is not None and quant.params.block_size == 4


@pytest.mark.idiom("B6")
def test_batch_norm_behind_an_unfused_training_convolution_stays_as_it_is() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    y = conv(b, x, bias=b.init(np.zeros(4, np.float32)), scale=np.full(4, 2**-7, np.float32))
    y = b.op("Div", y, b.init(np.array([0.5, 2, 1, 4], np.float32).reshape(1, 4, 1, 1)))
    y = b.op("Add", y, b.init(np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1, 1)))
    ones, zeros = b.init(np.ones(4, np.float32)), b.init(np.zeros(4, np.float32))
    y = b.op("BatchNormalization", y, ones, zeros, zeros, ones)
    b.output(b.qdq(b.op("Relu", y), 2**-2, 0))
    g = settled(b.model())
    assert ops(g)[:2] == ["quantize", "Conv"]
    assert node_of(g, "Conv").operand(1).quant is not None


@pytest.mark.idiom("B10")
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_less_than_a_byte(dtype: str, per_channel: bool) -> None:
    b = Builder(25)
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    codes = (np.arange(12).reshape(3, 4) % 4).astype(np.dtype(getattr(ml_dtypes, dtype)))
    scale = np.array([0.5, 0.25, 0.125], np.float32) if per_channel else np.float32(0.5)
    w = b.dq(b.init(codes), scale, 1, codes.dtype, **({"axis": 0} if per_channel else {}))
    b.output(b.qdq(b.op("Gemm", x, w, transB=1), 2**-2, 0))
    node = node_of(settled(b.model()), "Dense")
    assert node.output.quant is not None
    weight = node.operand(1)
    assert weight.type.dtype.bits == int(dtype[-1])


@pytest.mark.idiom("B11")
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint8", "int16"])
def test_blocks_along_any_axis_with_a_ragged_last_one(axis: int, size: int, dtype: str) -> None:
    shape = (7, 5)
    count: list[int] = [*shape]
    count[axis] = -(-shape[axis] // size)
    rng = np.random.default_rng(size)
    scale = (2.0 ** -rng.integers(3, 9, count)).astype(np.float32)
    storage = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    codes = (np.arange(35).reshape(shape) % 4 - (dtype[0] == "i")).astype(storage)
    zero = rng.integers(0, 2, count).astype(storage)
    b = Builder(25)
    w = b.dq(b.init(codes), scale, zero, storage, axis=axis, block_size=size)
    b.output(b.op("MatMul", b.input("x", [2, 7]), w))
    g = settled(b.model())
    weight = node_of(g, "Dense").operand(1)
    repeated = [
        np.repeat(a.astype(np.float32), size, axis=axis).take(range(shape[axis]), axis=axis)
        for a in (scale, zero)
    ]
    want = (codes.astype(np.float32) - repeated[1]) * repeated[0]
    assert weight.constant is not None and weight.quant is not None
    got = dequantize(weight.constant.numpy(), weight.quant.params)
    np.testing.assert_array_equal(got.T, want)


@pytest.mark.idiom("B11", "A13")
def test_quantize_in_blocks() -> None:
    b = Builder(25)
    scale = np.array([[0.5, 0.25, 1], [2, 0.125, 4]], np.float32)
    b.output(b.q(b.input("x", [2, 7]), scale, 3, axis=1, block_size=3), None, TensorProto.UINT8)
    g = settled(b.model())
    quant = node_of(g, "quantize").output.quant
    assert quant is not None
    assert (quant.params.axis, quant.params.block_size) == (1, 3)


@pytest.mark.idiom("B13")
def test_a_transposed_convolution_quantized_per_input_channel_stays_float() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 4, 4]), X, 128)
    scale = np.array([0.5, 0.25, 0.125], np.float32) / 64
    w = b.weight(ints((3, 2, 2, 2), 1), scale, axis=0)
    b.output(b.qdq(b.op("ConvTranspose", x, w), 2**-1, 128))
    g = settled(b.model())
    assert node_of(g, "ConvTranspose").output.quant is None
    reasons = notes_of(g, "absorb-accumulator-operands")
    assert "its weight is quantized along axis 0, its results vary along 1" in reasons


def _folded(codes: Array, scale: Array) -> Array:
    return codes.astype(np.float32) * scale.astype(np.float32)


@pytest.mark.idiom("B16")
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_folded_to_float_are_found(per_channel: bool) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 6, 6]), X, 128)
    scale = np.linspace(0.011, 0.03, 4) if per_channel else np.full(4, 0.0123)
    w = b.init(_folded(ints((4, 3, 3, 3), 1), scale.reshape(4, 1, 1, 1)), "kernel")
    b.output(b.qdq(b.op("Conv", x, w), 2**-2, 0))
    g = canonical(b.model())
    (note,) = [n for n in g.notes if n.rule == "folded-weights"]
    assert note.culprits == ("kernel",)
    assert note.reason.startswith("weights folded to float on an integer grid: 1 constant")


@pytest.mark.idiom("B16")
def test_ordinary_float_weights_are_no_grid() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 6, 6]), X, 128)
    w = b.init(np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32))
    b.output(b.qdq(b.op("Conv", x, w), 2**-2, 0))
    assert not notes_of(canonical(b.model()), "folded-weights")


@pytest.mark.idiom("B17")
def test_one_channel_is_a_tensor() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    b.output(b.qdq(conv(b, x, shape=(1, 3, 1, 1), scale=np.array([0.01], np.float32)), 2**-2, 0))
    quant = node_of(settled(b.model()), "Conv").operand(1).quant
    assert quant is not None and quant.params.per_tensor


@pytest.mark.idiom("B18")
def test_a_smoothing_vector_stays_in_front_of_the_quantize() -> None:
    b = Builder()
    x = b.input("x", [2, 4])
    smoothed = b.op("Mul", x, b.init(np.array([1, 2, 0.5, 4], np.float32)))
    y = b.op("MatMul", b.qdq(smoothed, X, 128), b.weight(ints((4, 3), 1), 2**-7))
    b.output(b.qdq(y, 2**-2, 0))
    assert ops(settled(b.model())) == ["Mul", "quantize", "Dense", "dequantize"]


@pytest.mark.idiom("B19", "D12")
@pytest.mark.parametrize("activation", [np.uint16, np.int16])
@pytest.mark.parametrize("weight", [np.uint8, np.int8, np.int16])
def test_16_bit_activations_sum_without_overflow(activation: type, weight: type) -> None:
    b = Builder(21)
    depth, top, high = 4096, np.iinfo(activation).max, np.iinfo(weight).max
    x = b.dq(b.input("x", [1, depth], _ELEMENT[activation]), 2**-15, 0, activation)
    w = b.dq(b.init(np.full((depth, 1), high, weight)), 2**-7, 0, weight)
    b.output(b.qdq(b.op("MatMul", x, w), 2.0**8, 0, np.uint16))
    g = canonical(b.model())
    assert node_of(g, "Dense").output.quant is not None
    (got,) = run(g, {"x": np.full((1, depth), top, activation)})
    exact = depth * int(top) * int(high) * 2.0**-22
    assert exact / 2.0**-22 > 2**31
    assert abs(float(got[0, 0]) - exact) <= 2.0**7


_ELEMENT = {np.uint16: TensorProto.UINT16, np.int16: TensorProto.INT16}


@pytest.mark.idiom("B20")
def test_scales_are_never_derived_from_the_data() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    w = b.weight(ints((4, 3, 1, 1), 1) // 100, np.float32(0.3))
    b.output(b.qdq(b.op("Conv", x, w), 2**-2, 0))
    quant = node_of(settled(b.model()), "Conv").operand(1).quant
    assert quant is not None
    assert quant.params.scale.tobytes() == np.float32(0.3).tobytes()


# ---- 8- and 4-bit floats ----------------------------------------------------------------------

SMALL_FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.idiom("A13", "C13")
@pytest.mark.parametrize("dtype", [*SMALL_FLOATS, "float4_e2m1fn"])
def test_weights_of_small_floats_are_kept_and_computed_in_float(dtype: str) -> None:
    storage = np.dtype(getattr(ml_dtypes, dtype))
    b = Builder(24)
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    codes = np.array([[0.5, -1, 2, 3], [1, 1.5, -0.5, 4], [6, -6, 0, -2]]).astype(storage)
    w = b.dq(b.init(codes), np.array([0.5, 1, 2], np.float32), None, axis=0)
    bias = b.op("Cast", b.init(np.array([1, 2, 3], np.float16)), to=TensorProto.FLOAT)
    b.output(b.op("Gemm", x, w, bias, transB=1))
    g = settled(b.model())
    assert f"its weight is stored as {dtype}" in notes_of(g, "absorb-accumulator-operands")
    (dq,) = [n for n in g.nodes if n.op.name == "dequantize" and n.operand(0).is_constant]
    assert dq.operand(0).type.dtype.label == dtype


@pytest.mark.idiom("A13")
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_saturate_decides_what_is_beyond_the_largest_number(dtype: str, saturate: bool) -> None:
    storage = np.dtype(getattr(ml_dtypes, dtype))
    b = Builder(19)
    names = [b.init(np.float32(0.5)), b.init(np.zeros((), storage))]
    q = b.op("QuantizeLinear", b.input("x", [4]), *names, saturate=int(saturate))
    b.output(b.op("DequantizeLinear", q, *names))
    (got,) = run(settled(b.model()), {"x": np.array([1, -1e9, 1e9, np.nan], np.float32)})
    largest = float(ml_dtypes.finfo(storage).max) / 2
    beyond = largest if saturate else (np.inf if dtype == "float8_e5m2" else np.nan)
    np.testing.assert_array_equal(got, np.array([1, -beyond, beyond, np.nan], np.float32))


@pytest.mark.idiom("A13")
def test_microscaling_keeps_its_powers_of_two() -> None:
    b = Builder(24)
    x = b.input("x", [2, 4])
    scale = np.array([[0.5, 2], [4, 0.25]], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    codes = np.array([[0.5, -1, 2, 3], [1, 1.5, -0.5, 4]]).astype(ml_dtypes.float4_e2m1fn)
    w = b.dq(b.init(codes), scale, None, axis=1, block_size=2, output_dtype=TensorProto.FLOAT)
    b.output(b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0])))
    g = settled(b.model())
    (quant,) = {v.quant for v in g.values() if v.quant is not None}
    assert quant.params.scale_dtype is DType.FLOAT8_E8M0
    assert quant.params.expressed_dtype is DType.FLOAT32
