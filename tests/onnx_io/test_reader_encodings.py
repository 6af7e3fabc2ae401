"""Every form of Q and DQ parameters, read as one thing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantParams, QuantType, per_tensor
from tests.onnx_models import (
    WEIGHT_SCALES,
    Builder,
    canonical,
    conv_model,
    load,
    ops,
    run,
)

SCALE = 2**-5


def pair(
    scale: Any = SCALE,
    zero_point: Any = 0,
    dtype: Any = np.uint8,
    *,
    shape: tuple[int, ...] = (2, 3),
    opset: int = 13,
    domain: str = "",
    elem: int = TensorProto.FLOAT,
    **attributes: Any,
) -> Graph:
    """``x -> Q -> DQ -> y``."""
    b = Builder(opset, domain)
    if domain:
        b.opsets[domain] = 1
    x = b.input("x", shape, elem)
    b.output(b.qdq(x, scale, zero_point, dtype, **attributes), None, elem)
    return load(b.model())


def params_of(g: Graph) -> QuantParams:
    (type_,) = {n.output.type for n in g.nodes if n.op.name == "quantize"}
    assert isinstance(type_, QuantType)
    return type_.params


# ---- opsets and domains -----------------------------------------------------------------------


@pytest.mark.idiom("A1", "L9")
@pytest.mark.parametrize("opset", [10, 13, 17, 19, 21, 23, 25])
def test_every_opset_reads_the_same(opset: int) -> None:
    g = canonical(conv_model(opset))
    verify(g)
    assert g.opset == opset
    assert ops(g) == ["quantize", "Conv", "dequantize"]
    reference = canonical(conv_model(10 if opset == 10 else 13))
    assert g.digest == reference.digest


@pytest.mark.idiom("B2")
def test_per_channel_weights_count() -> None:
    g = canonical(conv_model(13))
    weight = g.nodes[1].operand(1).quant
    assert weight is not None
    assert weight.params.scale.tolist() == WEIGHT_SCALES.tolist()
    assert weight.params.axis == 0
    assert canonical(conv_model(10)).digest != g.digest


@pytest.mark.idiom("A22")
def test_the_contrib_domain_is_the_same_operator() -> None:
    assert (
        canonical(conv_model(13, domain="com.microsoft")).digest == canonical(conv_model(13)).digest
    )


@pytest.mark.idiom("A22")
def test_the_contrib_domain_has_16_bits_early() -> None:
    g = pair(dtype=np.uint16, domain="com.microsoft")
    assert params_of(g) == per_tensor(DType.UINT16, SCALE)


def test_ai_onnx_is_the_default_domain() -> None:
    model = conv_model(13)
    for node in model.graph.node:
        node.domain = "ai.onnx"
    assert canonical(model).digest == canonical(conv_model(13)).digest


# ---- storage types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "opset", "expected"),
    [
        (np.int8, 13, DType.INT8), (np.uint8, 10, DType.UINT8), (np.int16, 21, DType.INT16),
        (np.uint16, 21, DType.UINT16), (ml_dtypes.int4, 21, DType.INT4),
        (ml_dtypes.uint4, 21, DType.UINT4), (ml_dtypes.int2, 25, DType.INT2),
        (ml_dtypes.uint2, 25, DType.UINT2),
        (ml_dtypes.float8_e4m3fn, 19, DType.FLOAT8_E4M3FN),
        (ml_dtypes.float8_e4m3fnuz, 19, DType.FLOAT8_E4M3FNUZ),
        (ml_dtypes.float8_e5m2, 19, DType.FLOAT8_E5M2),
        (ml_dtypes.float8_e5m2fnuz, 19, DType.FLOAT8_E5M2FNUZ),
    ],
    ids=str,
)  # fmt: skip
def test_storage_types(dtype: Any, opset: int, expected: DType) -> None:
    g = pair(0.5, 0, dtype, opset=opset)
    assert params_of(g).storage_dtype is expected
    x = np.array([[0, 0.5, 1], [-1, 1.5, -0.5]], np.float32)
    (y,) = run(g, {"x": x})
    if expected.is_integer:
        low, high = expected.qmin / 2, expected.qmax / 2
        np.testing.assert_array_equal(y, np.clip(x, low, high))
    else:
        np.testing.assert_array_equal(y, x)


@pytest.mark.idiom("B10")
def test_weights_of_every_storage_type() -> None:
    for dtype in (ml_dtypes.int4, ml_dtypes.uint4, np.int16, np.uint8, ml_dtypes.float8_e4m3fn):
        b = Builder(21)
        x = b.input("x", [1, 3])
        stored = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype)
        b.output(b.op("Add", x, b.weight(stored, 0.5)))
        (y,) = run(load(b.model()), {"x": np.zeros((1, 3), np.float32)})
        assert y.tolist() == [[0.5, 1, 1.5], [2, 2.5, 3]]


@pytest.mark.parametrize("elem", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["f16", "bf16"])
def test_half_precision_scales_keep_their_bits(elem: int) -> None:
    dtype = DType.FLOAT16 if elem == TensorProto.FLOAT16 else DType.BFLOAT16
    scale = np.asarray(0.1).astype(dtype.numpy)
    params = params_of(pair(scale, 3, np.uint8, opset=19, elem=elem))
    assert params.expressed_dtype is dtype
    assert params.scale.dtype == dtype.numpy
    assert float(params.scale) == float(scale)


def test_half_precision_data_is_computed_as_written() -> None:
    g = pair(np.float16(0.5), 3, np.uint8, opset=19, elem=TensorProto.FLOAT16)
    (y,) = run(g, {"x": np.array([[0, 0.25, 0.75], [-9, 5, 1]], np.float16)})
    assert y.dtype == np.float16
    assert y.tolist() == [[0, 0, 1], [-1.5, 5, 1]]


# ---- zero points, ranks, axes -----------------------------------------------------------------


@pytest.mark.idiom("A12")
def test_omitted_zero_points_are_zero() -> None:
    assert params_of(pair(zero_point=None)) == per_tensor(DType.UINT8, SCALE)
    b = Builder()
    b.output(b.op("Add", b.input("x", [3]), b.dq(b.init(np.array([1, 2, 3], np.int8)), 0.5, None)))
    (y,) = run(load(b.model()), {"x": np.zeros(3, np.float32)})
    assert y.tolist() == [0.5, 1, 1.5]


def test_an_empty_name_is_an_omitted_zero_point() -> None:
    b = Builder()
    scale = b.init(np.float32(SCALE))
    stored = b.op("QuantizeLinear", b.input("x", [3]), scale, "")
    b.output(b.op("DequantizeLinear", stored, scale, ""))
    assert params_of(load(b.model())) == per_tensor(DType.UINT8, SCALE)


@pytest.mark.idiom("A13")
@pytest.mark.parametrize(
    ("output_dtype", "expected"),
    [(TensorProto.INT8, DType.INT8), (TensorProto.INT16, DType.INT16), (0, DType.UINT8)],
    ids=str,
)
def test_output_dtype_says_what_an_omitted_zero_point_cannot(
    output_dtype: int, expected: DType
) -> None:
    b = Builder(21)
    scale = b.init(np.float32(SCALE))
    stored = b.op("QuantizeLinear", b.input("x", [3]), scale, output_dtype=output_dtype)
    b.output(b.op("DequantizeLinear", stored, scale))
    assert params_of(load(b.model())) == per_tensor(expected, SCALE)


@pytest.mark.idiom("A2", "A3")
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("zero_shape", [(), (1,), (1, 1, 1)], ids=str)
def test_one_element_is_a_scalar(shape: tuple[int, ...], zero_shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input("x", [2, 3])
    names = [b.init(np.full(shape, SCALE, np.float32)), b.init(np.full(zero_shape, 7, np.uint8))]
    stored = b.op("QuantizeLinear", x, *names)
    b.output(b.op("DequantizeLinear", stored, *names))
    assert params_of(load(b.model())) == per_tensor(DType.UINT8, SCALE, 7)


@pytest.mark.idiom("A14")
@pytest.mark.parametrize("axis", [0, 1, -1, 7])
def test_the_axis_of_a_scalar_says_nothing(axis: int) -> None:
    assert params_of(pair(axis=axis)) == per_tensor(DType.UINT8, SCALE)
    assert params_of(pair(axis=axis, shape=(4,))) == per_tensor(DType.UINT8, SCALE)


@pytest.mark.idiom("A15")
@pytest.mark.parametrize(("written", "axis"), [(0, 0), (-2, 0), (1, 1), (-1, 1), (None, 1)])
def test_axes_are_wrapped(written: int | None, axis: int) -> None:
    scale = np.array([0.5, 0.25, 0.125], np.float32)[: (2 if axis == 0 else 3)]
    params = params_of(pair(scale, 0, np.int8, axis=written))
    assert params.axis == axis
    assert params.scale.tolist() == scale.tolist()


@pytest.mark.idiom("B11")
def test_blocks() -> None:
    b = Builder(21)
    scale = np.array([[1, 2], [3, 4]], np.float32)
    w = b.weight(np.ones((2, 5), np.int8), scale, axis=1, block_size=3)
    b.output(b.op("Add", b.input("x", [2, 5]), w))
    (y,) = run(load(b.model()), {"x": np.zeros((2, 5), np.float32)})
    assert y.tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 4, 4]]


@pytest.mark.idiom("B12")
def test_blocks_without_a_size_follow_from_the_shapes() -> None:
    b = Builder(21)
    w = b.weight(np.ones((2, 4), np.int8), np.array([[1, 2], [3, 4]], np.float32), axis=1)
    b.output(b.op("Add", b.input("x", [2, 4]), w))
    (y,) = run(load(b.model()), {"x": np.zeros((2, 4), np.float32)})
    assert y.tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


# ---- cones of constants behind parameters -----------------------------------------------------


def cone(kind: str, b: Builder, scale: float, zero_point: int) -> tuple[str, str]:
    """Scale and zero point, computed by the file in one of the ways that producers do."""
    if kind == "Constant":
        s, z = (
            b.op("Constant", value=_tensor(v)) for v in (np.float32(scale), np.uint8(zero_point))
        )
        return s, z
    if kind == "value_float":
        z = b.op("Constant", value_int=zero_point)
        return b.op("Constant", value_float=scale), b.op("Cast", z, to=TensorProto.UINT8)
    if kind == "Identity":
        s, z = b.init(np.float32(scale)), b.init(np.uint8(zero_point))
        for _ in range(3):
            s, z = b.op("Identity", s), b.op("Identity", z)
        return s, z
    if kind == "Cast":
        s, z = b.init(np.float64(scale)), b.init(np.int64(zero_point))
        return b.op("Cast", s, to=TensorProto.FLOAT), b.op("Cast", z, to=TensorProto.UINT8)
    if kind == "CastLike":
        like = b.init(np.uint8(0))
        return b.init(np.float32(scale)), b.op("CastLike", b.init(np.int32(zero_point)), like)
    if kind == "Mul":
        s = b.op("Mul", b.init(np.float32(scale * 4)), b.init(np.float32(0.25)))
        return s, b.op(
            "Reshape", b.init(np.array([zero_point], np.uint8)), b.init(np.zeros(0, np.int64))
        )
    if kind == "DQ":
        s = b.dq(b.init(np.uint8(4)), scale / 4, 0)
        return s, b.init(np.uint8(zero_point))
    raise AssertionError(kind)


def _tensor(array: Any) -> TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.asarray(array))


@pytest.mark.idiom("A4", "A5", "A6")
@pytest.mark.parametrize(
    "kind", ["Constant", "value_float", "Identity", "Cast", "CastLike", "Mul", "DQ"]
)
def test_computed_parameters(kind: str) -> None:
    b = Builder(15)
    s, z = cone(kind, b, SCALE, 7)
    stored = b.op("QuantizeLinear", b.input("x", [2, 3]), s, z)
    b.output(b.op("DequantizeLinear", stored, s, z))
    g = load(b.model())
    assert params_of(g) == per_tensor(DType.UINT8, SCALE, 7)
    assert ops(g) == ["quantize", "dequantize"]


@pytest.mark.idiom("A8")
@pytest.mark.parametrize("like", ["shape", "fixed"])
def test_zero_points_made_by_constant_of_shape(like: str) -> None:
    b = Builder()
    scale = b.init(np.array([0.5, 0.25, 0.125], np.float32))
    shape = b.op("Shape", scale) if like == "shape" else b.init(np.array([3], np.int64))
    zero_point = b.op("ConstantOfShape", shape, value=_tensor(np.array([0], np.int8)))
    stored = b.op("QuantizeLinear", b.input("x", [2, 3]), scale, zero_point)
    b.output(b.op("DequantizeLinear", stored, scale, zero_point))
    params = params_of(load(b.model()))
    assert (params.axis, params.symmetric, params.storage_dtype) == (1, True, DType.INT8)


def test_parameters_computed_at_run_time_are_carried() -> None:
    b = Builder(13)
    x = b.input("x", [4])
    scale = b.op("ReduceMax", x, keepdims=0)
    zero = b.init(np.uint8(0))
    b.output(b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero))
    g = canonical(b.model())
    assert "quantize" not in ops(g)
    (y,) = run(g, {"x": np.array([1, 2, 4, 0.5], np.float32)})
    assert y.tolist() == [0, 0, 4, 0]


@pytest.mark.idiom("A26")
def test_initializers_among_the_inputs_are_constants_with_a_note() -> None:
    model = conv_model()
    from onnx import helper

    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    g = canonical(model)
    assert [v.name for v in g.inputs] == ["x"]
    assert g.digest == canonical(conv_model()).digest
    noted = [n.culprits for n in g.notes if n.rule == "input-with-initializer"]
    assert noted == [tuple(t.name for t in model.graph.initializer)]


@pytest.mark.parametrize("kind", ["Constant", "Identity", "Cast"])
def test_movers_of_integers_whose_zero_point_is_computed(kind: str) -> None:
    b = Builder()
    x = b.input("x", [2, 3])
    scale, zero = b.init(np.float32(0.5)), np.int8(0)
    if kind == "Constant":
        z = b.op("Constant", value=_tensor(zero))
    elif kind == "Identity":
        z = b.op("Identity", b.init(zero))
    else:
        z = b.op("Cast", b.init(np.int64(0)), to=TensorProto.INT8)
    moved = b.op("Transpose", b.op("QuantizeLinear", x, scale, z))
    b.output(b.op("DequantizeLinear", moved, scale, z))
    g = canonical(b.model())
    assert ops(g) == ["quantize", "Transpose", "dequantize"]
    assert params_of(g) == per_tensor(DType.INT8, 0.5)
