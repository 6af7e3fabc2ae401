"""A rounding with parameters at run time is quantize and dequantize, on every engine."""

from importlib.util import find_spec

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import link
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.run_time_parameters import (
    CODES,
    DISABLED,
    FLOAT_CODES,
    SIMULATE,
    SimulatedAttrs,
)
from qdqbridge.targets.running import Runner

STORAGES = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT4, DType.UINT4, None)
CHANNELS = 5


def graph_of(axis, opset=17, *, floats=False):
    shape = () if axis is None else (CHANNELS,)
    data = TensorType(DType.FLOAT32, ("n", CHANNELS, 4))
    inputs = [
        Value(data, "x"),
        Value(TensorType(DType.INT32, ()), "code"),
        Value(TensorType(DType.FLOAT32, shape), "scale"),
        Value(TensorType(DType.INT32, shape), "zero_point"),
        Value(TensorType(DType.INT32, ()), "low"),
        Value(TensorType(DType.INT32, ()), "high"),
    ]
    output = Value(data, "y")
    node = Node(SIMULATE, SimulatedAttrs(axis, floats), inputs, [output])
    link(node)
    return Graph(inputs, [output], ["y"], [node], opset=opset)


def cases(axis):
    """Yields feeds and what is expected: every storage type, and none."""
    rng = np.random.default_rng(1)
    shape = () if axis is None else (CHANNELS,)
    for storage in STORAGES:
        x = (rng.standard_normal((3, CHANNELS, 4)) * 5).astype(np.float32)
        x[0, 0, :3] = np.nan, np.inf, -np.inf
        own = storage or DType.INT8
        low = own.qmin + 1 if own.is_signed else own.qmin
        scale = np.asarray(rng.uniform(1e-3, 0.1, shape), np.float32)
        zero_point = np.asarray(rng.integers(low, own.qmax, shape), np.int32)
        params = QuantParams(own, scale, zero_point, axis=axis, qmin=low, qmax=own.qmax)
        feeds = {
            "x": x,
            "code": np.array(DISABLED if storage is None else CODES[storage], np.int32),
            "scale": params.scale,
            "zero_point": params.zero_point,
            "low": np.array(params.qmin, np.int32),
            "high": np.array(params.qmax, np.int32),
        }
        yield feeds, x if storage is None else dequantize(quantize(x, params), params)


def float_cases(axis):
    """Yields the same of float8: ties, what is below the least and beyond the largest number."""
    rng = np.random.default_rng(2)
    shape = () if axis is None else (CHANNELS,)
    for storage, number in FLOAT_CODES.items():
        scale = np.asarray(rng.uniform(1e-3, 0.1, shape), np.float32)
        zero_point = np.zeros(shape, np.int32)
        params = QuantParams(storage, scale, zero_point, axis=axis)
        every = np.arange(256, dtype=np.uint8).view(storage.numpy).astype(np.float32)
        numbers = np.sort(every[np.isfinite(every)])
        middles = (numbers[1:] + numbers[:-1]) / 2
        beyond = [3 * numbers[-1], -3 * numbers[-1], np.inf, -np.inf, np.nan, -0.0]
        steps = np.append(np.concatenate([numbers, middles]), beyond).astype(np.float32)
        steps = np.resize(steps, (-(-steps.size // 20), CHANNELS, 4))
        x = steps * params.aligned(scale, steps.shape).astype(np.float32)
        feeds = {
            "x": x, "code": np.array(number, np.int32), "scale": params.scale,
            "zero_point": params.zero_point,
            "low": np.array(0, np.int32), "high": np.array(0, np.int32),
        }  # fmt: skip
        yield feeds, dequantize(quantize(x, params), params)


@pytest.mark.parametrize("axis", [None, 1])
def test_the_interpreter(axis):
    graph = graph_of(axis)
    for feeds, expected in cases(axis):
        np.testing.assert_array_equal(evaluate(graph, feeds)[0]["y"], expected)
    for feeds, expected in (*float_cases(axis), *cases(axis)):
        found = evaluate(graph_of(axis, floats=True), feeds)[0]["y"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("axis", [None, 1])
def test_onnxruntime(axis, opset):
    runner = Runner(graph_of(axis, opset))
    for feeds, expected in cases(axis):
        np.testing.assert_array_equal(runner.run(feeds)[0], expected)
    runner = Runner(graph_of(axis, opset, floats=True))
    for feeds, expected in (*float_cases(axis), *cases(axis)):
        np.testing.assert_array_equal(runner.run(feeds)[0], expected)


@pytest.mark.parametrize("axis", [None, 1])
def test_tvm(axis):
    if find_spec("tvm_ffi") is None:
        return  # the TVM that has Relay has no Relax
    from qdqbridge.tvm.relax.executable import compile_relax

    compiled = compile_relax(graph_of(axis))
    for feeds, expected in cases(axis):
        np.testing.assert_array_equal(compiled.run(feeds)["y"], expected)
    compiled = compile_relax(graph_of(axis, floats=True))
    for feeds, expected in (*float_cases(axis), *cases(axis)):
        np.testing.assert_array_equal(compiled.run(feeds)["y"], expected)


def test_the_module_has_the_calls_of_relay():
    if find_spec("tvm_ffi") is None:
        return
    from qdqbridge.tvm.relax.emit import emit

    text = emit(graph_of(1))[0].script()
    assert "qnn.simulated_quantize" in text
    assert "qnn.simulated_dequantize" in text
