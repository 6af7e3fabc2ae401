"""Quantization written as float arithmetic: L2 with the option, L3 always."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqbridge.app.pipeline import load as load_file
from qdqbridge.app.sources import inspect_model
from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedModelError
from tests.core.canonical.idiom_models import X, node_of, notes_of, settled
from tests.onnx_models import Builder, canonical, ints, load, ops, run

SCALES = np.array([2**-7, 3 * 2**-9, 2**-6], np.float32)


class Floats(Builder):
    """Writes Q and DQ as arithmetic; switches write the variants."""

    def __init__(self, *, reciprocal: bool = False, min_max: bool = False) -> None:
        super().__init__()
        self.reciprocal, self.min_max = reciprocal, min_max

    def number(self, value: Any) -> str:
        return self.init(np.float32(value))

    def fake(self, x: str, scale: float, zero: int, low: int, high: int) -> str:
        if self.reciprocal:
            y = self.op("Mul", x, self.number(np.float32(1) / np.float32(scale)))
        else:
            y = self.op("Div", x, self.number(scale))
        y = self.op("Add", self.op("Round", y), self.number(zero))
        if self.min_max:
            y = self.op("Max", self.op("Min", y, self.number(high)), self.number(low))
        else:
            y = self.op("Clip", y, self.number(low), self.number(high))
        return self.op("Mul", self.op("Sub", y, self.number(zero)), self.number(scale))

    def stored(self, codes: Any, scale: Any, zero: int) -> str:
        y = self.op("Cast", self.init(codes), to=TensorProto.FLOAT)
        if zero:
            y = self.op("Sub", y, self.number(zero))
        return self.op("Mul", self.number(scale), y)


def network(b: Builder, *, floats: bool) -> onnx.ModelProto:
    """``x -> fake -> Gemm(stored weight per channel) -> Relu -> fake -> y``."""
    codes = ints((3, 4), 1)
    if isinstance(b, Floats) and floats:
        x = b.fake(b.input("x", [2, 4]), X, 120, 0, 255)
        w = b.stored(codes, SCALES.reshape(3, 1), 0)
        y = b.op("Relu", b.op("Gemm", x, w, transB=1))
        b.output(b.fake(y, 2**-3, 0, 0, 255))
    else:
        x = b.qdq(b.input("x", [2, 4]), X, 120)
        y = b.op("Relu", b.op("Gemm", x, b.weight(codes, SCALES, axis=0), transB=1))
        b.output(b.qdq(y, 2**-3, 0))
    return b.model()


def decomposed(model: onnx.ModelProto) -> Graph:
    return canonicalize(load(model), ReadingOptions(decomposed=True))


@pytest.mark.idiom("L2")
@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("min_max", [False, True])
def test_fake_quantization_is_a_pair_with_the_option(reciprocal: bool, min_max: bool) -> None:
    b = Floats(reciprocal=reciprocal, min_max=min_max)
    model = network(b, floats=True)
    want = settled(network(Builder(), floats=False))
    g = decomposed(model)
    assert g.digest == want.digest
    data = {"x": (np.arange(-40, 40, 10, dtype=np.float32) / 64).reshape(2, 4)}
    np.testing.assert_array_equal(run(g, data)[0], run(load(model), data)[0])


@pytest.mark.idiom("L2")
def test_without_the_option_it_stays_arithmetic_with_a_note() -> None:
    g = settled(network(Floats(), floats=True))
    assert "Round" in ops(g)
    (reason,) = notes_of(g, "decomposed-quantization")
    assert "fake-quantizes each of 2 tensors" in reason


@pytest.mark.idiom("L2")
def test_the_option_reaches_the_flow(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(network(Floats(), floats=True).SerializeToString())
    want = settled(network(Builder(), floats=False)).digest
    assert load_file(path, decomposed=True).digest == want
    assert inspect_model(path, options=ReadingOptions(decomposed=True)).digest == want
    assert load_file(path).digest != want


def refusals(b: Floats, y: str) -> list[str]:
    b.output(y)
    g = decomposed(b.model())
    assert "quantize" not in ops(g)
    return notes_of(g, "fake-quantize")


@pytest.mark.idiom("L2")
def test_what_is_no_quantization_stays() -> None:
    b = Floats()
    assert refusals(b, b.fake(b.input("x", [2]), X, 0, 0, 1 << 20)) == [
        "it clips to 0.0 .. 1048576.0, which no storage type holds"
    ]
    b = Floats()
    assert refusals(b, b.fake(b.input("x", [2]), X, 300, 0, 255)) == [
        "its zero point is outside of uint8"
    ]
    b = Floats()
    rounded = b.op("Round", b.op("Div", b.input("x", [2]), b.number(X)))
    clipped = b.op("Clip", b.op("Add", rounded, b.number(3)), b.number(0), b.number(255))
    y = b.op("Mul", b.op("Sub", clipped, b.number(4)), b.number(X))
    assert refusals(b, y) == ["the zero points added and subtracted around a rounding differ"]
    b = Floats()
    x = b.input("x", [2])
    divided = b.op("Clip", b.op("Round", b.op("Div", x, b.number(0.3))), b.number(0), b.number(9))
    assert refusals(b, b.op("Mul", divided, b.number(0.4))) == []


@pytest.mark.idiom("L2")
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 15, "uint8"), (-8, 7, "int8"), (0, 127, "uint8"), (-32768, 32767, "int16")],
)
def test_the_clip_decides_storage_and_range(low: int, high: int, dtype: str) -> None:
    b = Floats()
    b.output(b.fake(b.input("x", [2, 4]), X, 0, low, high))
    quant = node_of(decomposed(b.model()), "quantize").output.quant
    assert quant is not None
    assert str(quant.params.storage_dtype) == dtype
    assert (quant.params.qmin, quant.params.qmax) == (low, high)


@pytest.mark.idiom("L3")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32])
@pytest.mark.parametrize("zero", [0, 3])
def test_cast_sub_mul_is_a_dequantize(dtype: Any, zero: int) -> None:
    codes = np.arange(1, 13).reshape(3, 4).astype(dtype)
    b = Floats()
    x = b.qdq(b.input("x", [2, 4]), X, 120)
    w = b.stored(codes, SCALES.reshape(3, 1), zero)
    b.output(b.op("Gemm", x, w, transB=1))
    found = [v for v in settled(b.model()).values() if v.is_constant and v.quant]
    assert bool(found) == (dtype is not np.int32 or zero == 0)


@pytest.mark.idiom("L3", "B5")
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_weights_of_torchao_are_stored_ones(blocks: int, zero: bool) -> None:
    """``torch.onnx.export(optimize=False)`` of IntxWeightOnlyConfig, per row or in groups."""
    codes = ints((6, blocks, 8 // blocks), 1)
    scales = np.arange(1, 1 + 6 * blocks, dtype=np.float32).reshape(6, blocks, 1) / 64
    zeros = np.arange(6 * blocks, dtype=np.int8).reshape(6, blocks, 1) * zero
    torchao, plain = Builder(21), Builder(21)
    q = torchao.op("Cast", torchao.init(codes), to=TensorProto.FLOAT)
    if zero:
        q = torchao.op("Sub", q, torchao.op("Cast", torchao.init(zeros), to=TensorProto.FLOAT))
    w = torchao.op("Mul", q, torchao.init(scales))
    if blocks > 1:
        w = torchao.op("Reshape", w, torchao.init(np.array([6, 8])))
    else:
        w = torchao.op("Squeeze", w, torchao.init(np.array([1])))
    torchao.output(torchao.op("Gemm", torchao.input("x", [2, 8]), w, transB=1))
    at: dict[str, Any] = {"axis": 0} if blocks == 1 else {"axis": 1, "block_size": 8 // blocks}
    shape = (6,) if blocks == 1 else (6, blocks)
    stored = plain.init(codes.reshape(6, 8))
    w = plain.dq(stored, scales.reshape(shape), zeros.reshape(shape), np.int8, **at)
    plain.output(plain.op("Gemm", plain.input("x", [2, 8]), w, transB=1))
    found = settled(torchao.model())
    assert ops(found) == ["Dense"]
    assert found.digest == settled(plain.model()).digest


@pytest.mark.idiom("L3")
def test_float8_weights_times_scales_are_stored_ones() -> None:
    b = Builder(21)
    codes = np.arange(-6, 6).reshape(4, 3).astype(ml_dtypes.float8_e4m3fn)
    b.initializers.append(
        onnx.helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [4, 3], codes.tobytes(), raw=True)
    )
    w = b.op("Mul", b.op("Cast", "w", to=TensorProto.FLOAT), b.init(SCALES.reshape(1, 3)))
    b.output(b.op("MatMul", b.input("x", [2, 4]), w))
    stored = [value for value in settled(b.model()).values() if value.quant is not None]
    assert [str(value.type.dtype) for value in stored] == ["float8_e4m3fn"]


@pytest.mark.idiom("L3")
def test_the_integers_of_a_quantize_may_be_dequantized_by_arithmetic() -> None:
    b = Floats()
    q = b.q(b.input("x", [2, 4]), X, 120)
    real = b.op("Sub", b.op("Cast", q, to=TensorProto.FLOAT), b.number(120))
    b.output(b.op("Mul", real, b.number(X)))
    assert ops(settled(b.model())) == ["quantize", "dequantize"]


@pytest.mark.idiom("L3")
def test_integers_that_nobody_quantized_are_numbers() -> None:
    b = Floats()
    image = b.op("Cast", b.input("x", [2, 4], TensorProto.UINT8), to=TensorProto.FLOAT)
    b.output(b.op("Mul", image, b.number(1 / 255)))
    assert ops(settled(b.model())) == ["Cast", "Mul"]


@pytest.mark.idiom("L6", "L7")
@pytest.mark.parametrize("op_type", ["QuantizeFloating", "PPQ_Rounding"])
def test_vendors_own_quantizers_in_onnx_s_domain_are_refused_by_name(op_type: str) -> None:
    b = Builder()
    b.output(b.op(op_type, b.input("x", [2, 4])))
    with pytest.raises(UnsupportedModelError) as caught:
        load(b.model())
    assert op_type in str(caught.value)


@pytest.mark.idiom("L6", "L7")
@pytest.mark.parametrize(
    ("domain", "op_type"),
    [
        ("trt", "TRT_FP4QDQ"),
        ("trt", "TRT_Plugin"),
        ("ppq", "QuantizeFloating"),
        ("ppq", "PPQ_Rounding"),
    ],
)
def test_vendors_own_quantizers_are_carried_and_not_run(domain: str, op_type: str) -> None:
    b = Builder()
    b.output(b.op(op_type, b.input("x", [2, 4]), domain=domain))
    g = canonical(b.model())
    assert [op_type in note.reason for note in g.notes if note.rule == "opaque-operator"] == [True]
    with pytest.raises(UnsupportedModelError) as caught:
        evaluate(g, {"x": np.ones((2, 4), np.float32)})
    assert op_type in str(caught.value)
