"""Forms that change no number: Gemm's attributes, Softmax of old opsets, tied weights, -0.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.pipeline import session
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.attributes import QuantizeAttrs
from qdqbridge.errors import InvalidModelError
from tests.core.canonical.idiom_models import X, constant_of, node_of, notes_of, settled
from tests.onnx_models import Array, Builder, ints, load, ops, run

UNITS = np.float32(0.1) * np.float32(0.01)


def gemm(codes: Array, *, alpha: float = 1.0, trans_a: int = 0) -> onnx.ModelProto:
    b = Builder()
    x = b.qdq(b.input("x", [6, 5] if trans_a else [5, 6]), 0.1, 128)
    bias = b.weight(np.array([100, -3000, 7, 0], np.int32), np.float32(alpha) * UNITS)
    y = b.op("Gemm", x, b.weight(codes, 0.01), bias, transB=1, transA=trans_a, alpha=alpha)
    b.output(b.qdq(y, 0.5, 128))
    return b.model()


@pytest.mark.idiom("D9")
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 4.0, -2.0])
def test_gemm_with_a_transposed_operand_or_a_power_of_two_is_dense(
    alpha: float, trans_a: int, tmp_path: Path
) -> None:
    codes = ints((4, 6), 1)
    model = gemm(codes, alpha=alpha, trans_a=trans_a)
    g = settled(model)
    assert ops(g) == ["quantize", *["Transpose"] * trans_a, "Dense", "dequantize"]
    node = node_of(g, "Dense")
    np.testing.assert_array_equal(constant_of(node, 1), codes * np.int8(np.sign(alpha)))
    weight = node.operand(1).quant
    assert weight is not None
    assert weight.params.scale == np.float32(0.01) * np.float32(abs(alpha))
    path, exported = tmp_path / "model.onnx", tmp_path / "exported.onnx"
    path.write_bytes(model.SerializeToString())
    qb.save(g, exported)
    x = np.random.default_rng(0).normal(0, 4, (6, 5) if trans_a else (5, 6)).astype(np.float32)
    name = g.output_names[0]
    ours, theirs = (session(p).run({"x": x}, [name])[name] for p in (exported, path))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.idiom("D9")
@pytest.mark.parametrize("case", ["no power of two", "no mirror image"])
def test_another_alpha_keeps_gemm(case: str) -> None:
    codes = ints((4, 6), 1)
    codes[0, 0] = -128
    g = settled(gemm(codes, alpha=0.3 if case == "no power of two" else -2.0))
    assert "Gemm" in ops(g)
    assert any("Gemm with alpha" in reason for reason in notes_of(g, "gemm-is-dense"))


def old_softmax(op: str, *, opset: int, batch: int | str, quantized: bool) -> onnx.ModelProto:
    b = Builder(opset)
    x = b.input("x", [batch, 3, 4])
    x = b.qdq(x, X, 128) if quantized else x
    if opset < 13:
        y = b.op(op, x, axis=1)
    else:
        y = b.op(op, b.op("Flatten", x, axis=1), axis=1)
        y = b.op("Reshape", y, b.init(np.array([0, 3, 4])))
    b.output(b.qdq(y, 2**-7, 10) if quantized else y)
    return b.model()


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("quantized", [True, False])
def test_a_softmax_over_several_axes_is_one_of_a_matrix(
    op: str, batch: int | str, quantized: bool
) -> None:
    old, new = (old_softmax(op, opset=o, batch=batch, quantized=quantized) for o in (12, 13))
    g = settled(old)
    assert [name for name in ops(g) if "quantize" not in name] == ["Flatten", op, "Reshape"]
    if batch == "N":
        assert g.digest == canonicalize(load(new)).digest
    data = {"x": np.random.default_rng(0).normal(0, 2, (2, 3, 4)).astype(np.float32)}
    for ours, want in zip(run(g, data), run(canonicalize(load(new)), data), strict=True):
        np.testing.assert_array_equal(ours, want)


def test_a_softmax_over_unknown_axes_stays() -> None:
    b = Builder(12)
    b.output(b.op("Softmax", b.input("x", ["N", "H", "W"]), axis=2))
    b.output(b.op("Softmax", b.input("y", ["N", "H", "W", 4]), axis=2))
    assert ops(canonicalize(load(b.model()))).count("Softmax") == 2


@pytest.mark.parametrize("bound", ["min", "max"])
def test_a_clip_attribute_that_is_nan_is_refused(bound: str) -> None:
    b = Builder(10)
    bounds: dict[str, Any] = {"min": 0.0, "max": 1.0, bound: float("nan")}
    b.output(b.op("Clip", b.input("x", [2, 3]), **bounds))
    with pytest.raises(InvalidModelError, match="a bound of Clip is NaN"):
        load(b.model())


@pytest.mark.idiom("G6")
def test_pads_of_both_zeros_are_two() -> None:
    def model(*values: float, quantized: bool) -> onnx.ModelProto:
        b = Builder()
        x = b.input("x", [1, 2])
        x = b.qdq(x, X, 128) if quantized else b.op("Sigmoid", x)
        pads = b.init(np.array([0, 1, 0, 1]))
        for value in values:
            b.output(b.op("Pad", x, pads, b.init(np.float32(value))))
        return b.model()

    for quantized in (True, False):
        both = settled(model(0.0, -0.0, quantized=quantized))
        assert ops(both).count("Pad") == 2
        data = {"x": np.ones((1, 2), np.float32)}
        signs = [np.signbit(y[0, 0]) for y in run(both, data)]
        assert signs == [False, True]
        one, other = (settled(model(v, quantized=quantized)).digest for v in (0.0, -0.0))
        assert one != other


@pytest.mark.idiom("A13")
@pytest.mark.parametrize(
    ("precision", "half", "kept"),
    [(0, False, None), (0, True, DType.FLOAT16), (TensorProto.FLOAT, True, None),
     (TensorProto.FLOAT16, False, DType.FLOAT16), (TensorProto.BFLOAT16, True, DType.BFLOAT16)],
)  # fmt: skip
def test_the_type_of_the_division_is_kept(precision: int, half: bool, kept: DType | None) -> None:
    (node,) = canonicalize(load(_dividing(precision, half=half))).nodes
    assert node.record(QuantizeAttrs).precision is kept


def test_a_division_in_a_type_that_no_scale_has_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="precision is float64"):
        load(_dividing(TensorProto.DOUBLE, half=False))


def _dividing(precision: int, *, half: bool) -> onnx.ModelProto:
    b = Builder(23)
    scale: Any = np.float16(0.1) if half else np.float32(0.1)
    x = b.input("x", [2, 4], TensorProto.FLOAT16 if half else TensorProto.FLOAT)
    given = {"precision": precision} if precision else {}
    b.output(b.q(x, scale, 3, **given), elem_type=TensorProto.UINT8)
    return b.model()


@pytest.mark.idiom("B14")
def test_tied_weights_have_one_transposed_copy() -> None:
    b = Builder()
    w = b.init(ints((300, 300), 1))
    y = b.input("x", [2, 300])
    for _ in range(2):
        y = b.op("MatMul", b.qdq(y, X, 128), b.dq(w, 0.01, 0, np.int8))
    b.output(b.qdq(y, 2.0, 128))
    g = canonicalize(load(b.model()))
    constants = {n.operand(1).constant for n in g.nodes if n.op.name == "Dense"}
    assert len(constants) == 1
    pytest.importorskip("tvm")
    assert [a.nbytes for a in qb.to_relax(g, keep_params=True)[1].values()] == [300 * 300]
