"""Single-operator QDQ models, run by onnxruntime, and the same operator by our table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, ValueType, per_tensor
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.runtime.products import keep_fused_products, saturates

Array = np.ndarray

ort.set_default_logger_severity(3)


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand of a test: stored values with their parameters, or plain values.

    Attributes:
        values: Stored integers, or floats.
        params: How the integers stand for real numbers; None for plain values.
        fixed: True to write it as an initializer (weights, axes), False to feed it.
    """

    values: Array
    params: QuantParams | None = None
    fixed: bool = False

    @property
    def type(self) -> ValueType:
        """The type the graph would give it."""
        if self.params is None:
            return TensorType(DType.of(self.values.dtype), self.values.shape)
        return QuantType(self.params, self.values.shape)

    @property
    def real(self) -> Array:
        """Its values as float32."""
        return self.values if self.params is None else dequantize(self.values, self.params)


def _onnx_type(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


def model(
    op: str,
    operands: Sequence[Operand | None],
    results: Sequence[QuantParams | None],
    attributes: Mapping[str, Any],
    *,
    opset: int = 21,
) -> tuple[bytes, dict[str, Array]]:
    """Returns a serialized ``DequantizeLinear -> op -> QuantizeLinear`` model, and its feed."""
    nodes, inputs, initializers, names = [], [], [], []
    feed: dict[str, Array] = {}

    def value(name: str, array: Array, *, fixed: bool) -> None:
        if fixed:
            initializers.append(onnx.numpy_helper.from_array(array, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, _onnx_type(array.dtype), array.shape))
            feed[name] = array

    constant = any(operand is not None and operand.fixed for operand in operands)
    for i, operand in enumerate(operands):
        if operand is None:
            names.append("")
            continue
        value(f"x{i}", operand.values, fixed=operand.fixed)
        names.append(f"x{i}")
        if operand.params is not None:
            params = operand.params
            value(f"s{i}", np.asarray(params.scale), fixed=constant)
            zero_point = np.asarray(params.zero_point).astype(params.storage_dtype.numpy)
            value(f"z{i}", zero_point, fixed=constant)
            axis: dict[str, Any] = {} if params.axis is None else {"axis": params.axis}
            nodes.append(
                helper.make_node("DequantizeLinear", [f"x{i}", f"s{i}", f"z{i}"], [f"f{i}"], **axis)
            )
            names[-1] = f"f{i}"
    outs = [f"y{i}" for i in range(len(results))]
    nodes.append(helper.make_node(op, names, outs, "op", **attributes))
    outputs = []
    for i, params in enumerate(results):
        name, dtype = f"y{i}", int(TensorProto.FLOAT)
        if params is not None:
            value(f"ys{i}", np.asarray(params.scale), fixed=constant)
            zero_point = np.asarray(params.zero_point).astype(params.storage_dtype.numpy)
            value(f"yz{i}", zero_point, fixed=constant)
            nodes.append(helper.make_node("QuantizeLinear", [name, f"ys{i}", f"yz{i}"], [f"q{i}"]))
            name, dtype = f"q{i}", _onnx_type(params.storage_dtype.numpy)
        outputs.append(helper.make_tensor_value_info(name, dtype, None))
    graph = helper.make_graph(nodes, "one", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports)
    proto.ir_version = 10
    return proto.SerializeToString(), feed


@lru_cache(maxsize=64)
def session(serialized: bytes, *, optimized: bool, precise: bool) -> ort.InferenceSession:
    """Returns a session.

    Args:
        serialized: The model.
        optimized: Whether onnxruntime fuses its nodes.
        precise: Whether fused products of uint8 do not saturate on processors without VNNI; those
            of int8 never do, and lose their kernels by it.
    """
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    if precise:
        keep_fused_products(options)
    if not (precise and saturates()):
        options.add_session_config_entry("session.qdqisint8allowed", "1")  # fuse s8 x s8 too
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def theirs(
    op: str,
    operands: Sequence[Operand | None],
    results: Sequence[QuantParams | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    optimized: bool = False,
) -> list[Array]:
    """Returns what onnxruntime computes."""
    serialized, feed = model(op, operands, results, attributes or {}, opset=opset)
    signed = any(o is not None and o.values.dtype == np.int8 for o in operands[:1])
    run = session(serialized, optimized=optimized, precise=not signed)
    return [np.asarray(part) for part in run.run(None, feed)]


def ours(
    name: str,
    attributes: Any,
    operands: Sequence[Operand | None],
    results: Sequence[QuantParams | None],
) -> list[Array]:
    """Returns what the operator table computes, as the interpreter will ask it."""
    row = BY_NAME[name]
    types = [None if operand is None else operand.type for operand in operands]
    wanted: list[ValueType] = [
        TensorType(DType.FLOAT32, None) if params is None else QuantType(params, None)
        for params in results
    ]
    stored = [None if operand is None else operand.values for operand in operands]
    quantized = any(isinstance(type_, QuantType) for type_ in types)
    if quantized and row.contract is not None:
        answer = row.contract(attributes, stored, types, wanted)
        if answer is not None:
            return list(answer)
    real = [None if operand is None else operand.real for operand in operands]
    return [
        part if params is None else quantize(part, params)
        for part, params in zip(row.compute(attributes, real), results, strict=True)
    ]


def ideal(name: str, attributes: Any, operands: Sequence[Operand | None]) -> tuple[Array, ...]:
    """Returns the real-valued result in float64."""
    wide = [
        None
        if operand is None
        else dequantize(operand.values, operand.params, np.float64)
        if operand.params is not None
        else operand.values.astype(np.float64)
        if operand.values.dtype == np.float32
        else operand.values
        for operand in operands
    ]
    return BY_NAME[name].compute(attributes, wide)


def random_params(
    rng: np.random.Generator, dtype: DType, *, nice: bool, low: float = -7, high: float = 1
) -> QuantParams:
    """Returns per-tensor parameters; ``nice`` scales are powers of 2 or tenths (ties)."""
    if nice:
        scale = np.float32(2.0 ** rng.integers(int(low), int(high) + 1))
        scale *= np.float32(rng.choice([1.0, 1.0, 3.0, 0.1]))
    else:
        scale = np.float32(2.0 ** rng.uniform(low, high))
    span = (dtype.qmin, dtype.qmax) if dtype.bits <= 8 else (-1000, 1000)
    zero_point = int(rng.integers(max(span[0], dtype.qmin), span[1] + 1))
    return per_tensor(dtype, scale, zero_point)


def pairs(seed: int, dtype: DType, count: int) -> Iterator[tuple[QuantParams, QuantParams]]:
    """Yields parameters of an operand and a result: nice, related and unrelated ones."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        px = random_params(rng, dtype, nice=i % 3 != 2)
        py = random_params(rng, dtype, nice=i % 3 != 2)
        if i % 3 == 1:
            factor = np.float32(rng.choice([0.5, 1.0, 2.0, 3.0]))
            py = per_tensor(dtype, float(px.scale) * float(factor), int(py.zero_point))
        yield px, py


def stored(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Returns random stored values over the whole range of an integer type."""
    return rng.integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.numpy)


def quantized(
    rng: np.random.Generator, shape: tuple[int, ...], params: QuantParams, *, fixed: bool = False
) -> Operand:
    """Returns a random quantized operand."""
    return Operand(stored(rng, params.storage_dtype, shape), params, fixed)


def assert_equal(
    name: str,
    attributes: Any,
    operands: Sequence[Operand | None],
    result: QuantParams | None,
    fields: Mapping[str, Any] | None = None,
    *,
    given: Sequence[Operand | None] | None = None,
    opset: int = 21,
) -> int:
    """Asserts that onnxruntime and the table agree in every stored value; returns how many.

    ``fields`` and ``given`` are the attributes and inputs of the ONNX node.
    """
    inputs = operands if given is None else given
    (their,) = theirs(name, inputs, [result], fields, opset=opset)
    (our,) = ours(name, attributes, operands, [result])
    assert mismatches(their, our) == 0, (name, attributes, result)
    return our.size


def mismatches(a: Array, b: Array) -> int:
    """Returns how many stored values differ; shapes and dtypes have to agree."""
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape, a.dtype, b.dtype)
    return int((a != b).sum())


def proven_ties(
    a: Array, b: Array, real: Array, params: QuantParams, tolerance: float | Array
) -> bool:
    """True where every difference is one code, with the ideal result next to the midpoint.

    Args:
        a: Stored values of one computation.
        b: Stored values of the other.
        real: The exact real result in float64.
        params: Per-tensor parameters of the result.
        tolerance: How far from the midpoint between both codes the ideal result may lie, in
            units of the result's scale: the error bound of the float32 computation.
    """
    wrong = a != b
    if not mismatches(a, b):
        return True
    first, second = a[wrong].astype(np.int64), b[wrong].astype(np.int64)
    if np.abs(first - second).max() > 1:
        return False
    midpoint = (first + second) / 2 - float(params.zero_point)
    distance = np.abs(real[wrong] / float(params.scale) - midpoint)
    return bool((distance <= np.broadcast_to(np.asarray(tolerance), a.shape)[wrong]).all())


def per_axis(
    rng: np.random.Generator, dtype: DType, count: int, axis: int, *, zero_points: bool = False
) -> QuantParams:
    """Returns random parameters along an axis; zero points are 0 unless asked for."""
    scale = (2.0 ** rng.uniform(-8, -4, count)).astype(np.float32)
    points = rng.integers(dtype.qmin, dtype.qmax + 1, count) if zero_points else np.zeros(count)
    return QuantParams(dtype, scale, points.astype(np.int32), axis=axis)


def product_bias(
    rng: np.random.Generator, x: Operand, w: Operand, count: int, *, alpha: float = 1.0
) -> Operand:
    """Returns a random int32 bias whose scale is that of the products of ``x`` and ``w``."""
    assert x.params is not None and w.params is not None
    first = np.multiply(np.float32(alpha), x.params.scale, dtype=np.float32)
    scale = np.multiply(first, w.params.scale, dtype=np.float32)
    zero_point = np.zeros(scale.shape, np.int32)
    params = QuantParams(DType.INT32, scale, zero_point, axis=0 if scale.ndim else None)
    return Operand(rng.integers(-3000, 3000, count).astype(np.int32), params, True)


def dot_error(
    name: str, attributes: Any, operands: Sequence[Operand], result: QuantParams, count: int
) -> Array:
    """Returns the error bound of a float32 sum of products, in units of the result's scale.

    ``(n + 4) * 2**-24`` times the sum of absolute products, for any order of summation.
    """
    absolute = [
        np.abs(dequantize(operand.values, operand.params, np.float64))
        if operand.params is not None
        else np.abs(operand.values.astype(np.float64))
        for operand in operands
    ]
    (total,) = BY_NAME[name].compute(attributes, absolute)
    return (count + 4) * 2.0**-24 * np.abs(total) / float(result.scale)


def fused_operators(
    op: str,
    operands: Sequence[Operand | None],
    results: Sequence[QuantParams | None],
    attributes: Mapping[str, Any],
) -> list[str]:
    """Returns the operators onnxruntime runs after all its optimizations."""
    serialized, _ = model(op, operands, results, attributes)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "optimized.onnx")
        options = ort.SessionOptions()
        options.optimized_model_filepath = path
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(path).graph.node]
