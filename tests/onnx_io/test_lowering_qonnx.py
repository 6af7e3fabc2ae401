"""QONNX and Quark: Quant, BipolarQuant, Trunc, Extended*Linear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_io.lowering_cases import params_of
from tests.onnx_models import Builder, canonical, check_carried, ops, run

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
DATA = np.random.default_rng(3).normal(0, 1, (2, 4, 3, 3)).astype(np.float32)


def quantized(
    x: np.ndarray, scale: Any, zero: Any, bits: int, *, signed: int = 1, narrow: int = 0
) -> np.ndarray:
    """Returns QONNX's own arithmetic (custom_op/general/intquant.py) in float32."""
    low = -(1 << (bits - 1)) + narrow if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1 - narrow
    scale, zero = np.float32(scale), np.float32(zero)
    codes = np.rint(np.clip(x / scale + zero, low, high))
    return ((codes - zero) * scale).astype(np.float32)


def model(
    scale: Any, zero: Any = 0, bits: Any = 8, *, domain: str = DOMAINS[0], op: str = "Quant",
    opset: int = 13, imported: bool = True, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    b = Builder(opset)
    inputs = [b.init(np.asarray(v, np.float32)) for v in (scale, zero, bits)]
    y = b.op(op, b.input("x", DATA.shape), *inputs, domain=domain, **attributes)
    b.output(y, DATA.shape)
    if not imported:
        del b.opsets[domain]
    return b.model()


def near(got: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(got, expected)


@pytest.mark.idiom("L1")
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("op", ["Quant", "IntQuant"])
def test_every_domain_has_it(domain, op):
    graph = canonical(model(0.02, domain=domain, op=op))
    assert ops(graph) == ["quantize", "dequantize"]
    assert near(run(graph, {"x": DATA})[0], quantized(DATA, 0.02, 0, 8))


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("narrow", [0, 1])
def test_range_of_every_width(bits, signed, narrow):
    scale = 4 / (1 << bits)
    graph = canonical(model(scale, 0, bits, signed=signed, narrow=narrow))
    params = params_of(graph.nodes[0].output)
    assert params.storage_dtype.bits == (8 if bits <= 8 else 16)
    assert params.qmax - params.qmin == (1 << bits) - 1 - narrow
    expected = quantized(DATA, scale, 0, bits, signed=signed, narrow=narrow)
    assert near(run(graph, {"x": DATA})[0], expected)


@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_the_range_is_written_in_every_opset(opset):
    graph = canonical(model(0.3, 0, 4, opset=opset))
    assert near(run(graph, {"x": DATA})[0], quantized(DATA, 0.3, 0, 4))


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1)])
def test_scales_of_one_channel_axis(shape):
    scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32).reshape(shape)
    graph = canonical(model(scale))
    params = params_of(graph.nodes[0].output)
    assert params.axis == 1 and params.scale.shape == (4,)
    assert near(run(graph, {"x": DATA})[0], quantized(DATA, scale, 0, 8))


def test_zero_points():
    graph = canonical(model(0.02, 37, 8, signed=0))
    assert near(run(graph, {"x": DATA})[0], quantized(DATA, 0.02, 37, 8, signed=0))
    assert int(params_of(graph.nodes[0].output).zero_point) == 37


def test_parameters_may_be_computed_from_constants():
    b = Builder(13)
    scale = b.op("Mul", b.init(np.float32(0.1)), b.op("Identity", b.init(np.float32(0.5))))
    rest = [b.init(np.float32(0)), b.init(np.float32(8))]
    y = b.op("Quant", b.input("x", DATA.shape), scale, *rest, domain=DOMAINS[0])
    b.output(y, DATA.shape)
    expected = quantized(DATA, np.float32(0.1) * np.float32(0.5), 0, 8)
    assert near(run(canonical(b.model()), {"x": DATA})[0], expected)


def test_producers_that_import_no_domain_are_read():
    assert ops(canonical(model(0.02, imported=False))) == ["quantize", "dequantize"]


def net(style: str) -> onnx.ModelProto:
    """``x -> Quant -> Conv(Quant w, Quant bias) -> Relu -> Quant``, or its Q/DQ twin."""
    b, rng = Builder(13), np.random.default_rng(1)
    weight = rng.normal(0, 0.2, (5, 4, 3, 3)).astype(np.float32)
    scale = np.array([0.01, 0.02, 0.03, 0.015, 0.01], np.float32)
    bias = rng.normal(0, 0.2, 5).astype(np.float32)
    sb = np.float32(0.25) * scale

    def quant(x: str, s: Any, bits: int, low: int, high: int, shape: Any = None) -> str:
        if style == "qonnx":
            s = np.asarray(s, np.float32)
            inputs = [b.init(s if shape is None else s.reshape(shape))]
            inputs += [b.init(np.float32(0)), b.init(np.float32(bits))]
            at: dict[str, Any] = {
                "signed": int(low < 0),
                "narrow": int(bits == 4),
                "rounding_mode": "ROUND",
            }
            return b.op("Quant", x, *inputs, domain=DOMAINS[1], **at)
        dtype: Any = {8: np.int8 if low < 0 else np.uint8, 4: np.int8, 32: np.int32}[bits]
        at = {"axis": 0} if np.ndim(s) else {}
        if bits == 32:
            data = np.rint(bias / np.asarray(s)).astype(np.int32)
            return b.dq(b.init(data), s, 0, np.int32, **at)
        stored = b.q(x, s, 0, dtype, **at)
        if bits == 4:
            limits = [b.init(np.array(v, dtype)) for v in (low, high)]
            stored = b.op("Clip", stored, *limits)
        return b.dq(stored, s, 0, dtype, **at)

    x = quant(b.input("x", DATA.shape), 0.25, 4, -7, 7)
    w = quant(b.init(weight), scale, 4, -7, 7, (5, 1, 1, 1))
    offset = quant(b.init(bias), sb, 32, -(2**31), 2**31 - 1)
    y = b.op("Relu", b.op("Conv", x, w, offset))
    b.output(quant(y, 0.01, 8, 0, 255), [2, 5, 1, 1])
    return b.model()


@pytest.mark.idiom("L1")
def test_a_network_has_the_digest_of_its_qdq_twin():
    graph = canonical(net("qonnx"))
    assert [node for node in ops(graph) if node not in ("quantize", "dequantize")] == ["Conv"]
    assert graph.digest == canonical(net("qcdq")).digest


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"scale": 0.1, "rounding_mode": "FLOOR"}, "rounding mode FLOOR"),
        ({"scale": 0.1, "rounding_mode": "HALF_UP"}, "rounding mode HALF_UP"),
        ({"scale": 0.1, "zero": 0.5}, "between two integers"),
        ({"scale": 0.1, "zero": 400}, "outside of its range"),
        ({"scale": 0.1, "bits": 3.5}, "bit width"),
        ({"scale": 0.1, "bits": [4, 8]}, "bit width"),
        ({"scale": 0.1, "bits": 20, "signed": 0}, "unsigned integers of 20 bits"),
        ({"scale": np.ones((1, 4, 3, 1))}, "several axes"),
    ],
)
def test_what_has_no_qdq_form_is_carried(fields, says):
    check_carried(model(**fields), says)


def test_run_time_scales_are_carried():
    b = Builder(13)
    rest = [b.init(np.float32(0)), b.init(np.float32(8))]
    scale = b.op("Abs", b.input("s", []))
    b.output(b.op("Quant", b.input("x", [3]), scale, *rest, domain=DOMAINS[0]), [3])
    check_carried(b.model(), "its scale is not constant")


@pytest.mark.idiom("L1")
@pytest.mark.parametrize("variant", ["BipolarQuant", "Quant"])
def test_bipolar_values_are_plus_and_minus_one(variant):
    b = Builder(13)
    inputs = [b.input("x", [6]), b.init(np.float32(0.25))]
    if variant == "Quant":
        inputs += [b.init(np.float32(0)), b.init(np.float32(1))]
    b.output(b.op(variant, *inputs, domain=DOMAINS[0]), [6])
    graph = canonical(b.model())
    data = np.array([-2, -0.01, -0.0, 0, 0.01, 3], np.float32)
    assert run(graph, {"x": data})[0].tolist() == [-0.25, -0.25, 0.25, 0.25, 0.25, 0.25]
    assert graph.nodes[-1].operand(0).quant is not None


def trunc(inputs: int = 7, zero: float = 0.0, **attributes: Any) -> onnx.ModelProto:
    b = Builder(13)
    numbers = [0.1, zero, 10, 0.4, 0, 8] if inputs == 7 else [0.1, zero, 10, 8]
    names = [b.init(np.float32(number)) for number in numbers]
    at = {"signed": 1, **attributes}
    b.output(b.op("Trunc", b.input("x", [400]), *names, domain=DOMAINS[0], **at), [400])
    return b.model()


def test_trunc_rounds_quotients_of_integers():
    codes = np.arange(-200, 200).astype(np.float32)
    graph = canonical(trunc(rounding_mode="ROUND"))
    got = run(graph, {"x": codes * np.float32(0.1)})[0]
    assert np.array_equal(got, np.rint(codes / 4) * np.float32(0.4))


@pytest.mark.parametrize(
    ("fields", "says"),
    [({}, "rounding mode FLOOR"), ({"rounding_mode": "ROUND", "inputs": 5}, "old form"),
     ({"rounding_mode": "ROUND", "zero": 1.0}, "zero point")],
)  # fmt: skip
def test_other_truncations_are_carried(fields, says):
    check_carried(trunc(**fields), says)


@pytest.mark.idiom("L5")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quark_is_qdq_in_another_domain(dtype):
    graphs: list[str] = []
    for domain, prefix in (("com.amd.quark", "Extended"), ("com.vai.quantize", "Vitis"), ("", "")):
        b = Builder(21)
        params = [b.init(np.float32(0.1)), b.init(np.array(3, dtype))]
        stored = b.op(f"{prefix}QuantizeLinear", b.input("x", [5]), *params, domain=domain)
        b.output(b.op(f"{prefix}DequantizeLinear", stored, *params, domain=domain), [5])
        graphs.append(canonical(b.model()).digest)
    assert len(set(graphs)) == 1


@pytest.mark.idiom("L5")
def test_quark_storage_in_floats_is_carried():
    b = Builder(21)
    params = [b.init(np.float32(0.1)), b.init(np.float16(0))]
    b.output(
        b.op("ExtendedQuantizeLinear", b.input("x", [5]), *params, domain="com.amd.quark"), [5],
        onnx.TensorProto.FLOAT16,
    )  # fmt: skip
    check_carried(b.model(), "float16")
