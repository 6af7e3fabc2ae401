"""What others compute of the same numbers: onnx, onnxruntime, and published searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import qdqbridge as qb
from qdqbridge.autoquant.choosers import MSE, Context, MinMax
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.targets.running import Runner
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"]
FORMATS = {
    "u8": Format(DType.UINT8),
    "s8": Format(DType.INT8),
    "s8 symmetric": Format(DType.INT8, symmetric=True),
    "u16": Format(DType.UINT16),
    "s16 symmetric": Format(DType.INT16, symmetric=True),
}


def conversions(params, shape):
    """A model that stores its input and reads it back; both are outputs."""
    stored = helper.np_dtype_to_tensor_dtype(params.storage_dtype.numpy)
    scale = numpy_helper.from_array(params.scale, "scale")
    zero = numpy_helper.from_array(params.zero_point.astype(params.storage_dtype.numpy), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    values = [("x", TensorProto.FLOAT), ("q", stored), ("y", TensorProto.FLOAT)]
    x, q, y = (helper.make_tensor_value_info(name, type_, shape) for name, type_ in values)
    graph = helper.make_graph(nodes, "conversions", [x], [q, y], [scale, zero])
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def engines(model: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "onnx", ReferenceEvaluator(model).run
    levels = ort.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        yield str(level), session.run


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_those_of_onnx_and_onnxruntime(name):
    """A million values over all five formats, every code of ours equal, every float as well."""
    rng = np.random.default_rng(sum(map(ord, name)))
    for _ in range(10):
        low, high = -(10.0 ** rng.uniform(-4, 4)), 10.0 ** rng.uniform(-4, 4)
        params = FORMATS[name].params(low, high)
        x = rng.uniform(1.2 * low, 1.2 * high, 19_000).astype(np.float32)
        halves = (np.arange(-500, 500) + np.float32(0.5)) * np.float32(params.scale)
        x = np.concatenate([x, halves.astype(np.float32)])
        ours = quantize(x, params)
        floor = params.qmin
        for engine, run in engines(conversions(params, x.shape)):
            q, y = run(None, {"x": x})
            # A restricted range leaves out the smallest code, which ONNX's storage has.
            np.testing.assert_array_equal(np.maximum(q, floor).astype(q.dtype), ours, engine)
            np.testing.assert_array_equal(y, dequantize(q, params), engine)


class Reader(quantization.CalibrationDataReader):
    def __init__(self, images):
        self.samples = iter([{"input": images[i : i + 1]} for i in range(len(images))])

    def get_next(self) -> Any:
        return next(self.samples, None)


def test_extremes_are_those_of_onnxruntimes_calibrator(tmp_path):
    """Theirs over all intermediate outputs of all samples, graph optimizations disabled."""
    path = MODELS / "digits_cnn_float.onnx"

    calibrator = quantization.create_calibrator(
        path, None, str(tmp_path / "a.onnx"), quantization.CalibrationMethod.MinMax
    )
    calibrator.collect_data(Reader(IMAGES[:24]))
    theirs = calibrator.compute_data()
    graph = qb.load(path)
    values = [v for node in graph.nodes for v in node.outputs]
    runner = Runner(graph, values, optimized=False)
    seen = {value.name: TensorStats() for value in values}
    for i in range(24):
        for value, array in zip(values, runner.run({"input": IMAGES[i : i + 1]}), strict=True):
            seen[value.name] = seen[value.name].merged(TensorStats.of(array))
    compared = 0
    for name, stats in seen.items():
        if name in theirs.data:
            low, high = (np.asarray(bound).item() for bound in theirs[name].range_value)
            assert (stats.minimum, stats.maximum) == (low, high)
            compared += 1
    assert compared >= 12


def squared(values, params):
    wide = values.astype(np.float64)
    return float(np.sum((dequantize(quantize(values, params), params) - wide) ** 2))


def observed(values, format, bins=2048, step=1e-5):
    """PyTorch's HistogramObserver: quantiles are cut off one side at a time while the error falls.

    Written from the description of its search; the errors are those of the raw values here.
    """
    counts, edges = np.histogram(values, bins)
    cumulative = np.cumsum(counts) / counts.sum()
    alpha, beta, first, last = 0.0, 1.0, 0, bins - 1
    best, least = format.params(edges[0], edges[-1]), float("inf")
    while alpha < beta:
        before = first, last
        left = max(first, int(np.searchsorted(cumulative, alpha + step)))
        right = min(last, int(np.searchsorted(cumulative, beta - step)))
        if left - first > last - right:
            alpha, first = alpha + step, left
        else:
            beta, last = beta - step, right
        if (first, last) == before:
            continue
        params = format.params(edges[first], edges[last + 1])
        found = squared(values, params)
        if found > least:
            break
        best, least = params, found
    return best


@pytest.mark.parametrize("name", ["u8", "s8 symmetric"])
@pytest.mark.parametrize("kind", ["normal", "laplace", "lognormal", "relu", "softmax"])
def test_errors_are_at_most_those_of_pytorchs_observer(kind, name):
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(20_000)
    values = {
        "normal": normal,
        "laplace": rng.laplace(size=20_000),
        "lognormal": rng.lognormal(0, 1, 20_000),
        "relu": np.maximum(normal, 0),
        "softmax": np.exp(4 * normal) / np.exp(4 * normal).sum(),
    }[kind].astype(np.float32)
    stats, format = TensorStats.of(values), FORMATS[name]
    ours = squared(values, MSE()(stats, format, Context()))
    unresolved = 5e-3  # how values lie within a bin, our histogram does not say
    assert ours <= squared(values, observed(values, format)) * (1 + unresolved)
    assert ours <= squared(values, MinMax()(stats, format, Context())) * (1 + unresolved)


@pytest.mark.parametrize("name", ["mlp", "cnn", "mobile"])
def test_quantized_networks_are_closer_than_onnxruntimes(name, tmp_path):
    """``scripts/bench quantize`` compares more networks and methods."""
    path = MODELS / f"digits_{name}_float.onnx"
    seen, fresh = IMAGES[:64], IMAGES[64:192]

    quant_pre_process(path, tmp_path / "prepared.onnx", skip_symbolic_shape=True)
    quantization.quantize_static(
        tmp_path / "prepared.onnx",
        tmp_path / "theirs.onnx",
        Reader(seen),
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    qb.save(qb.quantize(path, {"input": seen}), tmp_path / "ours.onnx")
    files = (path, tmp_path / "theirs.onnx", tmp_path / "ours.onnx")
    real, theirs, ours = (run(file, fresh).astype(np.float64) for file in files)
    assert np.sum((ours - real) ** 2) < np.sum((theirs - real) ** 2)


def run(path, x):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": x})[0])


@pytest.mark.parametrize("storage", [DType.UINT8, DType.INT8], ids=str)
def test_a_fused_softmax_counts_in_whole_parts_of_the_scales_reciprocal(storage):
    """With a whole one it computes what it does unfused, but for a result in many thousands."""
    format = Format(storage, whole_reciprocal=True)
    x = (np.random.default_rng(0).standard_normal((4000, 2)) * 3).astype(np.float32)
    for high in (1.0, 0.77, 0.3):
        params = format.params(0, high)
        unfused, fused = (run(None, {"x": x})[0] for _, run in [*engines(_softmax(params))][1:])
        steps = np.rint((fused - unfused) / params.scale)
        assert np.abs(steps).max() <= 1 and (steps != 0).mean() <= 1e-3
        assert np.rint(fused.max() / params.scale) == 255


def _softmax(params):
    """A model of a Softmax between stored integers."""
    stored = params.storage_dtype.numpy.type
    constants = {
        "sx": np.float32(0.06), "zx": stored(0), "sy": params.scale,
        "zy": params.zero_point.astype(stored),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["qx"]),
        helper.make_node("DequantizeLinear", ["qx", "sx", "zx"], ["real"]),
        helper.make_node("Softmax", ["real"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "sy", "zy"], ["qy"]),
        helper.make_node("DequantizeLinear", ["qy", "sy", "zy"], ["out"]),
    ]
    x, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "out")
    )
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "softmax", [x], [out], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
