"""Operators that TVM's own ONNX frontend has imported: they come back as the file had them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("tvm")

from tests.onnx_models import Builder, canonical
from tests.tvm.relax.frontend_cases import GROUPS, Make, op, through_tvm
from tests.tvm.relax.read_cases import same

pytestmark = pytest.mark.relax


IMPORTED: Mapping[str, Make] = {
    "Clip below": op("Max", np.float32(-0.5)),
    "Clip above": op("Min", np.float32(1.5)),
}
"""What TVM's importer makes of operators: ONNX bounds the other side by the last finite number."""


def model(
    group: str, *, quantized: bool, instead: Mapping[str, Make] = MappingProxyType({})
) -> onnx.ModelProto:
    """Every operator of a group alone, or between DequantizeLinear and QuantizeLinear."""
    opset, shape, operators = GROUPS[group]
    operators = {name: instead.get(name, make) for name, make in operators.items()}
    b = Builder(opset)
    x = b.input("x", shape)
    for name, make in operators.items():
        if not quantized:
            kind = onnx.TensorProto.FLOAT16 if name == "Cast" else onnx.TensorProto.FLOAT
            b.output(make(b, x), None, kind)
        elif name != "Cast":
            b.output(b.qdq(make(b, b.qdq(x, 0.03125, 100)), 0.0625, 90))
    return b.model()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
def test_operators_come_back(group: str, *, quantized: bool) -> None:
    found = model(group, quantized=quantized)
    same(through_tvm(found), canonical(model(group, quantized=quantized, instead=IMPORTED)))


def test_weights_and_biases_are_stored_ones() -> None:
    b = Builder(13)
    x = b.qdq(b.input("x", [1, 4, 6, 6]), 0.03125, 100)
    codes = np.random.default_rng(0).integers(-128, 128, (3, 4, 3, 3)).astype(np.int8)
    scales = np.array([0.5, 0.25, 0.125], np.float32)
    w = b.weight(codes, scales, axis=0)
    bias = b.weight(np.array([1, -2, 3], np.int32), scales * np.float32(0.03125), axis=0)
    b.output(b.qdq(b.op("Relu", b.op("Conv", x, w, bias)), 0.25, 0))
    found = b.model()
    same(through_tvm(found), canonical(found))


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax_of_old_opsets(axis: int) -> None:
    b = Builder(11)
    b.output(b.op("Softmax", b.input("x", [2, 3, 4]), axis=axis))
    found = b.model()
    same(through_tvm(found), canonical(found))


def test_half_floats() -> None:
    b = Builder(19)
    x = b.input("x", [1, 8], onnx.TensorProto.FLOAT16)
    scale: Any = np.float16(0.03125)
    w = b.weight(np.ones((4, 8), np.int8), np.full(4, 0.5, np.float16), axis=0)
    y = b.op("Gemm", b.qdq(x, scale, 3), w, transB=1)
    b.output(b.qdq(y, np.float16(0.25), 7), None, onnx.TensorProto.FLOAT16)
    found = b.model()
    same(through_tvm(found), canonical(found))


ZEROS = {"one": np.int8(0), "each": np.arange(4, dtype=np.int8)}


@pytest.mark.parametrize("zero_point", ZEROS.values(), ids=list(ZEROS))
def test_dynamic_quantization(zero_point: Any) -> None:
    """TVM takes both operators apart; they are found again, the data's parameters too."""
    b = Builder(13)
    x = b.input("x", [2, 8])
    results = ["codes", "scale", "zero"]
    b.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], results))
    w = b.init(np.random.default_rng(0).integers(-128, 128, (8, 4)).astype(np.int8))
    product = b.op("MatMulInteger", "codes", w, "zero", b.init(np.asarray(zero_point)))
    real = b.op("Cast", product, to=onnx.TensorProto.FLOAT)
    b.output(b.op("Mul", real, "scale"), [2, 4])
    found = b.model()
    again = through_tvm(found)
    same(again, canonical(found))
    assert [n.op.name for n in again.nodes][:2] == ["DynamicQuantizeLinear", "MatMulInteger"]


@pytest.mark.parametrize("zero_point", ZEROS.values(), ids=list(ZEROS))
def test_products_of_quantize_dynamic(zero_point: Any) -> None:
    """With the scale of the weight, as onnxruntime's tool writes it, they are one operator."""
    b = Builder(13)
    x = b.input("x", [2, 8])
    codes = b.op("DynamicQuantizeLinear", x, outputs=3)
    w = b.init(np.random.default_rng(0).integers(-128, 128, (8, 4)).astype(np.int8))
    product = b.op("MatMulInteger", codes, w, f"{codes}:2", b.init(np.asarray(zero_point)))
    real = b.op("Cast", product, to=onnx.TensorProto.FLOAT)
    scale = b.op("Mul", f"{codes}:1", b.init(np.full(zero_point.shape, 0.02, np.float32)))
    b.output(b.op("Mul", real, scale), [2, 4])
    found = b.model()
    again = through_tvm(found)
    same(again, canonical(found))
    assert [n.op.name for n in again.nodes] == ["DynamicDense"]


@pytest.mark.parametrize("axis", [None, 1])
def test_parameters_that_the_run_finds(axis: int | None) -> None:
    n = Builder(21)
    x, scale = n.input("x", [4, 6]), n.input("scale", [] if axis is None else [6])
    zero_point = n.init(np.full(() if axis is None else 6, 3, np.int8))
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    q = n.op("QuantizeLinear", x, scale, zero_point, **along)
    n.output(n.op("DequantizeLinear", q, scale, zero_point, **along))
    same(through_tvm(n.model()), canonical(n.model()))


def test_dequantized_codes_of_dynamic_quantization() -> None:
    n = Builder(21)
    codes = n.op("DynamicQuantizeLinear", n.input("x", [4, 6]), outputs=3)
    n.output(n.op("DequantizeLinear", codes, f"{codes}:1", f"{codes}:2"))
    same(through_tvm(n.model()), canonical(n.model()))
