"""Codes that move: of types that real numbers do not tell apart, and of scales along an axis."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import qdqbridge as qb
from tests.onnx_io.digest_trips import HOSTED, hosted, saved
from tests.onnx_models import Builder, canonical, load, run

INT32 = TensorProto.INT32
HALVES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


def stays(graph: qb.Graph) -> None:
    """Holds that a file and both modules give the graph's digest back."""
    assert saved(graph).digest == graph.digest
    pytest.importorskip("tvm")
    for variant in HOSTED:
        assert hosted(graph, variant).digest == graph.digest


def moved(b: Builder, x: str, op: str, value: Any) -> str:
    """Adds a movement of a matrix of three columns."""
    match op:
        case "Transpose":
            return b.op(op, x, perm=[1, 0])
        case "Pad":
            return b.op(op, x, b.init(np.array([0, 1, 1, 0])), b.init(value))
        case "Concat":
            return b.op(op, x, x, axis=0)
        case "Slice":
            return b.op(op, x, *(b.init(np.array([i])) for i in (2, -4, 1, -1)))
        case _:
            return b.op(op, x, b.init(np.array([-1, 1])))


@pytest.mark.relax
@pytest.mark.parametrize("op", ["Transpose", "Pad", "Slice", "Reshape", "Concat"])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
@pytest.mark.parametrize("half", HALVES)
def test_codes_that_half_floats_do_not_tell_apart(half: str, dtype: Any, op: str) -> None:
    """A file wrote the movement of their real numbers, whose codes are others."""
    (elem, real), b = HALVES[half], Builder(21)
    params = [b.init(np.asarray(0.5, real)), b.init(np.asarray(3, dtype))]
    b.input("x", ["n", 3], helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    out = moved(b, "x", op, np.asarray(12345, dtype))
    b.output(out, None, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    b.output(b.op("DequantizeLinear", out, *params), None, elem)
    graph = canonical(b.model())
    stays(graph)
    codes = np.arange(12300, 12306, dtype=dtype).reshape(2, 3)
    meant, real_ones = run(load(b.model()), {"x": codes})
    assert op in ("Pad", "Concat") or np.array_equal(np.sort(meant, None), codes.reshape(-1))
    for each in (graph, saved(graph)):
        found = run(each, {"x": codes})
        np.testing.assert_array_equal(found[0], meant)
        np.testing.assert_array_equal(found[1], real_ones)


@pytest.mark.parametrize("opset", [21, 25])
@pytest.mark.parametrize("half", HALVES)
def test_codes_that_a_half_float_rounds_between(half: str, opset: int) -> None:
    """One of float32 was rounded anew as if no half float stood between, or refused by name."""
    (elem, real), b = HALVES[half], Builder(opset)
    params = [b.init(np.float32(2**-8)), b.init(np.uint16(30000))]
    x = b.op("QuantizeLinear", b.input("x", [64]), *params)
    x = b.op("Cast", b.op("DequantizeLinear", x, *params), to=elem)
    scale, zero = b.init(np.asarray(2**-7, real)), b.init(np.int16(0))
    b.output(b.op("QuantizeLinear", x, scale, zero), None, TensorProto.INT16)
    model = b.model()
    model.ir_version = 13 if opset == 25 else 10
    feeds = {"x": np.random.default_rng(0).normal(size=64).astype(np.float32) * 30}
    (meant,) = ReferenceEvaluator(model).run(None, feeds)  # type: ignore[misc]
    graph = canonical(model)
    for each in (graph, saved(graph)):
        np.testing.assert_array_equal(run(each, feeds)[0], meant)
    assert saved(graph).digest == graph.digest


def test_a_pad_of_int32_codes_writes_a_code() -> None:
    """It was written as a float beside integers, and the real number instead of its code."""
    b = Builder(21)
    b.input("x", [1, 3], INT32)
    out = moved(b, "x", "Pad", np.int32(6))
    b.output(out, None, INT32)
    b.output(b.op("DequantizeLinear", out, b.init(np.float32(0.5)), b.init(np.int32(0))))
    graph = canonical(b.model())
    assert saved(graph).digest == graph.digest
    codes, _ = run(saved(graph), {"x": np.ones((1, 3), np.int32)})
    assert codes.tolist() == [[6, 1, 1, 1], [6, 6, 6, 6]]


@pytest.mark.relax
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2"])
@pytest.mark.parametrize("half", HALVES)
def test_half_floats_rounded_to_less_than_a_byte(half: str, dtype: str) -> None:
    (elem, real), b = HALVES[half], Builder(25)
    params = [b.init(np.asarray(0.5, real)), b.init(np.asarray(1, getattr(ml_dtypes, dtype)))]
    codes = b.op("QuantizeLinear", b.input("x", [2, 3], elem), *params)
    b.output(b.op("DequantizeLinear", codes, *params), None, elem)
    model = b.model()
    model.ir_version = 13
    stays(canonical(model))


@pytest.mark.relax
def test_two_movements_of_scales_along_an_axis_are_one() -> None:
    b = Builder(21)
    scale, zero = b.init(np.array([0.5, 0.25, 1], np.float32)), b.init(np.array([1, 2, 3], np.int8))
    x = b.op("QuantizeLinear", b.input("x", ["n", 3]), scale, zero, axis=1)
    x = b.op("Transpose", b.op("Unsqueeze", x, b.init(np.array([0]))), perm=[2, 1, 0])
    x = b.op("Unsqueeze", b.op("Transpose", x, perm=[2, 1, 0]), b.init(np.array([3])))
    b.output(b.op("DequantizeLinear", x, scale, zero, axis=2))
    graph = canonical(b.model())
    assert [node.op.name for node in graph.nodes] == ["quantize", "Unsqueeze", "dequantize"]
    stays(graph)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_scan_of_no_steps_gives_its_state(axis: int, quantized: bool) -> None:
    """onnxruntime refuses it along the first axis, and ended the process along others."""
    info, b = helper.make_tensor_value_info, Builder(21)
    nodes = [helper.make_node("Add", ["state", "row"], ["next"])]
    if quantized:
        params = [b.init(np.float32(0.5)), b.init(np.int8(0))]
        nodes += [
            helper.make_node("QuantizeLinear", ["row", *params], ["code"]),
            helper.make_node("DequantizeLinear", ["code", *params], ["out"]),
        ]
    nodes += [] if quantized else [helper.make_node("Neg", ["row"], ["out"])]
    rows = [info(name, TensorProto.FLOAT, [None]) for name in ("state", "row", "next", "out")]
    body = helper.make_graph(nodes, "body", rows[:2], rows[2:])
    x = b.input("x", ["n", 3] if axis == 0 else [3, "n"])
    name = b.op(
        "Scan", b.input("s", [3]), x, outputs=2, body=body, num_scan_inputs=1,
        scan_input_axes=[axis],
    )  # fmt: skip
    b.output(name, None)
    b.output(f"{name}:1", None)
    state = np.arange(3, dtype=np.float32)
    empty = np.zeros((0, 3) if axis == 0 else (3, 0), np.float32)
    found = run(canonical(b.model()), {"s": state, "x": empty})
    assert found[0].tolist() == [0, 1, 2]
    assert found[1].shape == (0, 3)


@pytest.mark.relax
def test_weights_of_less_than_a_byte_that_are_joined() -> None:
    b = Builder(21)
    params = [b.init(np.float32(0.25)), b.init(np.asarray(0, ml_dtypes.int4))]
    codes = [np.arange(i, i + 6).reshape(2, 3).astype(ml_dtypes.int4) for i in (-7, 1)]
    parts = [b.op("DequantizeLinear", b.init(each), *params) for each in codes]
    b.output(b.op("MatMul", b.input("x", ["n", 2]), b.op("Concat", *parts, axis=1)))
    stays(canonical(b.model()))
