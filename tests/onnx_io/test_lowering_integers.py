"""Integer products: MatMulInteger, ConvInteger, and the fused ones with float results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qdqbridge.errors import InvalidModelError
from tests.onnx_io.lowering_cases import MS, Case, Q, codes, ort_run
from tests.onnx_models import Builder, canonical, load, ops, run

X = Q(0.031, 117)
SCALES = np.array([0.002, 0.003, 0.0011, 0.0024])


@pytest.mark.idiom("K8")
@pytest.mark.parametrize("run_time_scale", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_integer_product_to_float(run_time_scale, bias):
    case = Case(Builder(17))
    b, x = case.builder, case.stored("x", [5, 8], np.uint8, 1)
    sx, zx = X.names(b)
    if run_time_scale:
        case.feeds["s"] = np.array(X.scale, np.float32)
        sx = b.input("s", [])
    sw, zw = Q(SCALES, np.array([0, 3, -2, 0]), np.int8).names(b)
    w = b.init(codes([8, 4], np.int8, 2))
    extra = [b.init(np.array([0.5, -1, 3, 0], np.float32))] if bias else []
    model = case.model(b.op("MatMulIntegerToFloat", x, w, sx, sw, zx, zw, *extra, domain=MS))
    graph = canonical(model)
    assert ("MatMulInteger" in ops(graph)) == run_time_scale
    assert np.array_equal(run(graph, case.feeds)[0], ort_run(model, case.feeds)[0])


@pytest.mark.idiom("D15", "K8")
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_quantization_stays_dynamic(bias):
    case = Case(Builder(17))
    b, x = case.builder, case.float("x", [5, 8], 1)
    sw, zw = Q(SCALES, 0, np.int8).names(b)
    extra = [b.init(np.array([0.5, -1, 3, 0], np.float32))] if bias else []
    w = b.init(codes([8, 4], np.int8, 2))
    y = b.op("DynamicQuantizeMatMul", x, w, sw, zw, *extra, domain=MS)
    model = case.model(y)
    graph = canonical(model)
    assert ops(graph) == ["DynamicDense"]
    assert np.array_equal(run(graph, case.feeds)[0], ort_run(model, case.feeds)[0])


@pytest.mark.idiom("K7")
@pytest.mark.parametrize("zero_points", [0, 1, 2])
def test_matmul_integer_is_carried(zero_points):
    case = Case(Builder(17))
    b, x = case.builder, case.stored("x", [5, 8], np.uint8, 1)
    zeros = [b.init(np.uint8(13)), b.init(np.array([1, 2, 3, 200], np.uint8))][:zero_points]
    w = b.init(codes([8, 4], np.uint8, 2))
    model = case.model(b.op("MatMulInteger", x, w, *zeros), elem=onnx.TensorProto.INT32)
    assert np.array_equal(run(canonical(model), case.feeds)[0], ort_run(model, case.feeds)[0])


def conv_integer(channels: int, *zeros: Any) -> tuple[onnx.ModelProto, Case]:
    case = Case(Builder(17))
    b, x = case.builder, case.stored("x", [1, channels, 6, 6], np.uint8, 1)
    w = b.init(codes([4, channels, 3, 3], np.uint8, 2))
    names = [b.init(np.asarray(zero, np.uint8)) for zero in zeros]
    y = b.op("ConvInteger", x, w, *names, pads=[1, 0, 0, 1])
    return case.model(y, elem=onnx.TensorProto.INT32), case


@pytest.mark.idiom("K7")
@pytest.mark.parametrize("zeros", [(), (13,), (13, 120), (0, 255)])
def test_conv_integer_is_an_exact_float_convolution(zeros):
    model, case = conv_integer(3, *zeros)
    graph = canonical(model)
    assert "Conv" in ops(graph)
    assert np.array_equal(run(graph, case.feeds)[0], ort_run(model, case.feeds)[0])


def test_conv_integer_with_sums_beyond_float32_is_carried():
    model, case = conv_integer(160, 13)
    graph = canonical(model)
    assert ops(graph) == ["ConvInteger"]
    assert np.array_equal(run(graph, case.feeds)[0], ort_run(model, case.feeds)[0])


@pytest.mark.idiom("K7")
@pytest.mark.parametrize("channels", [3, 400])
def test_conv_integer_with_zero_points_per_channel(channels):
    # onnxruntime has no kernel for it; the model with the differences as weights is the reference.
    zeros = np.array([1, 100, 128, 200], np.uint8)
    model, case = conv_integer(channels, 13, zeros)
    weight = next(t for t in model.graph.initializer if t.dims == [4, channels, 3, 3])
    data = onnx.numpy_helper.to_array(weight).astype(np.int64) - zeros.reshape(4, 1, 1, 1)
    x = np.pad(case.feeds["x"].astype(np.int64) - 13, ((0, 0), (0, 0), (1, 0), (0, 1)))
    views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", views, data)
    graph = canonical(model)
    assert ("ConvInteger" in ops(graph)) == (channels > 3)
    assert np.array_equal(run(graph, case.feeds)[0], expected)


def test_conv_integer_with_a_zero_point_of_another_type_is_refused():
    model, _ = conv_integer(3, 13)
    zero = next(t for t in model.graph.initializer if t.name == model.graph.node[0].input[2])
    zero.CopyFrom(onnx.numpy_helper.from_array(np.array(13, np.int8), zero.name))
    with pytest.raises(InvalidModelError, match="another type"):
        load(model)


@pytest.mark.idiom("K8")
@pytest.mark.parametrize("seed", range(30))
def test_zero_points_per_row_are_subtracted_from_each_row(seed: int):
    rng = np.random.default_rng(seed)
    kinds = [np.dtype(kind) for kind in rng.choice(["uint8", "int8"], 2)]
    rows, terms, columns = (int(n) for n in rng.integers(1, 9, 3) + np.array([1, 0, 0]))
    lead = ((), (2,), (1, 3))[int(rng.integers(3))]
    a, b, za = (
        rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
        for kind, shape in zip(
            (*kinds, kinds[0]), ((*lead, rows, terms), (terms, columns), (rows,)), strict=True
        )
    )
    zb = rng.integers(0, 100, ((), (columns,))[seed % 2]).astype(kinds[1])
    builder = Builder(17)
    names = [builder.input("a", a.shape, onnx.helper.np_dtype_to_tensor_dtype(a.dtype))]
    names += [builder.init(each) for each in (b, za, zb)]
    builder.output(builder.op("MatMulInteger", *names), elem_type=onnx.TensorProto.INT32)
    wanted = (a.astype(np.int64) - za[:, None]) @ (b.astype(np.int64) - zb)
    assert np.array_equal(run(canonical(builder.model()), {"a": a})[0], wanted)
