"""Engines that round to float16 on the way are recognized, and their faults still are faults."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, static_shape
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.targets.comparison.bounds import exact, half_of, with_halves
from qdqbridge.targets.comparison.causes import HALF, UNEXPLAINED, blame
from tests.onnx_models import Builder, ints

TYPES = (DType.FLOAT16, DType.BFLOAT16)


def params(storage: DType, scale: float, zero_point: int = 0, dtype: DType = DType.FLOAT16):
    real = np.asarray(scale, dtype.numpy)
    return QuantParams(storage, real, np.asarray(zero_point), expressed_dtype=dtype)


def dense(dtype: DType, count: int = 128, units: int = 64) -> Node:
    types = params(DType.UINT8, 0.0367, 131, dtype), params(DType.INT8, 0.0113, 0, dtype)
    inputs = [
        Value(QuantType(p, shape))
        for p, shape in zip(types, ((8, count), (units, count)), strict=True)
    ]
    result = Value(QuantType(params(DType.UINT8, 0.11, 120, dtype), (8, units)))
    return Node(BY_NAME["Dense"], NO_ATTRIBUTES, inputs, [result])


def feeds(node: Node, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [static_shape(v.type.shape) or () for v in node.inputs if v is not None]
    return [
        rng.integers(60, 200, shapes[0]).astype(np.uint8),
        rng.integers(-128, 128, shapes[1]).astype(np.int8),
    ]


def causes(node: Node, operands: list[np.ndarray], theirs: np.ndarray) -> dict[str, int]:
    (ours,) = evaluate_node(node, operands)
    known = with_halves(node, operands, exact(node, operands))
    return blame(ours, theirs, np.asarray(ours != theirs), known, node.output.type).causes


def in_halves(node: Node, operands: list[np.ndarray], rounded: set[int], *, result: bool):
    """Computes a Dense as onnxruntime would, with some roundings to the half type."""
    half = half_of(node)
    assert half is not None
    reals = []
    for i, (value, stored) in enumerate(zip(node.inputs, operands, strict=True)):
        assert value is not None and value.quant is not None
        real = dequantize(stored, value.quant.params)
        reals.append(real.astype(half.numpy).astype(np.float32) if i in rounded else real)
    total = reals[0] @ reals[1].T
    total = total.astype(half.numpy) if result else total
    assert node.output.quant is not None
    return quantize(total, node.output.quant.params)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rounded", [set(), {0}, {1}, {0, 1}])
@pytest.mark.parametrize("result", [False, True])
def test_every_placing_of_the_roundings_is_explained(dtype, rounded, result) -> None:
    node = dense(dtype)
    seen = 0
    for seed in range(4):
        operands = feeds(node, seed)
        found = causes(node, operands, in_halves(node, operands, rounded, result=result))
        assert UNEXPLAINED not in found
        seen += found.get(HALF, 0)
    assert seen > 0 or not (rounded or result)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_fault_beyond_the_roundings_stays_unexplained(dtype) -> None:
    node = dense(dtype)
    operands = feeds(node, 0)
    theirs = in_halves(node, operands, {1}, result=True)
    known = with_halves(node, operands, exact(node, operands))
    assert known is not None and node.output.quant is not None
    scale = float(node.output.quant.params.scale)
    widest = max(float((high - low).max()) for low, high in known.halves) / scale
    assert widest < (0.3 if dtype is DType.FLOAT16 else 2.4)  # one ulp of the result
    (ours,) = evaluate_node(node, operands)
    inside = (ours > 5) & (ours < 250)
    wrong = np.where(inside, theirs.astype(int) + 4, theirs).astype(np.uint8)
    assert causes(node, operands, wrong)[UNEXPLAINED] == np.count_nonzero(inside)


def test_float32_has_no_such_excuse() -> None:
    node = dense(DType.FLOAT32)
    operands = feeds(node, 0)
    known = exact(node, operands)
    assert with_halves(node, operands, known) is known
    (ours,) = evaluate_node(node, operands)
    assert set(causes(node, operands, ours ^ 1)) == {UNEXPLAINED}


@pytest.mark.parametrize("name", ["Add", "Mul", "Sub", "Div"])
def test_a_float_operand_may_have_been_read_before_it_was_rounded(name) -> None:
    rng = np.random.default_rng(3)
    full = rng.normal(1, 0.1, (4, 100)).astype(np.float32), rng.normal(2, 0.1, (4, 100))
    operands = [a.astype(np.float16) for a in full]
    half = TensorType(DType.FLOAT16, (4, 100))
    node = Node(BY_NAME[name], NO_ATTRIBUTES, [Value(half), Value(half)], [Value(half)])
    (real,) = node.op.compute(node.attributes, [a.astype(np.float32) for a in full])
    theirs = np.asarray(real).astype(np.float16)
    found = causes(node, operands, theirs)
    assert found[HALF] > 0
    assert UNEXPLAINED not in found
    assert causes(node, operands, (theirs * 1.02).astype(np.float16))[UNEXPLAINED] > 300


def test_the_interpreter_computes_half_islands_in_float32_and_rounds_once() -> None:
    x = np.linspace(-4, 4, 64, dtype=np.float32).reshape(1, 64).astype(ml_dtypes.bfloat16)
    node = Node(
        BY_NAME["Gelu"],
        BY_NAME["Gelu"].attributes(),
        [Value(TensorType(DType.BFLOAT16, (1, 64)))],
        [Value(TensorType(DType.BFLOAT16, (1, 64)))],
    )
    (wide,) = node.op.compute(node.attributes, [x.astype(np.float32)])
    (got,) = evaluate_node(node, [x])
    np.testing.assert_array_equal(got, wide.astype(ml_dtypes.bfloat16))


def halves_model(path: Path) -> Path:
    """``Conv -> (residual) Add, Concat, InstanceNormalization, Softmax`` in float16."""
    half = np.float16
    b = Builder(21)
    x = b.qdq(b.input("x", [2, 4, 6, 6], TensorProto.FLOAT16), half(0.037), 120)
    w = b.weight(ints((4, 4, 3, 3), 1), half(0.0113))
    bias = b.init(np.array([0.3, -1.7, 2.2, 0.01], half))
    y = b.op("Conv", x, w, bias, pads=[1, 1, 1, 1])
    norm = b.op("InstanceNormalization", y, b.init(np.ones(4, half)), b.init(np.zeros(4, half)))
    y = b.qdq(b.op("Add", b.qdq(y, half(0.4), 120), x), half(0.43), 118)
    joined = b.op("Concat", b.qdq(norm, half(0.02), 128), b.op("Softmax", y, axis=1), axis=1)
    b.output(b.qdq(joined, half(0.02), 128), elem_type=TensorProto.FLOAT16)
    b.output(norm, elem_type=TensorProto.FLOAT16)
    path.write_bytes(b.model().SerializeToString())
    return path


def test_onnxruntime_on_a_float16_file_is_explained(tmp_path: Path) -> None:
    path = halves_model(tmp_path / "halves.onnx")
    x = np.random.default_rng(0).normal(0, 1.3, (2, 4, 6, 6)).astype(np.float16)
    found = qb.compare(qb.load(path), path, {"x": x}, local=True)
    assert found.unexplained == 0
    assert sum(value.causes.get(HALF, 0) for value in found.values) > 0
