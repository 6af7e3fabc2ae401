"""One-node models in other encodings, their Q/DQ twins, and onnxruntime's word on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import QuantParams
from tests.exact_sessions import exact_session
from tests.onnx_models import Builder

Array = NDArray[Any]
MS = "com.microsoft"
TYPES = {
    np.dtype(np.uint8): onnx.TensorProto.UINT8,
    np.dtype(np.int8): onnx.TensorProto.INT8,
    np.dtype(np.int32): onnx.TensorProto.INT32,
    np.dtype(np.int64): onnx.TensorProto.INT64,
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    np.dtype(np.bool_): onnx.TensorProto.BOOL,
}


def elem_type(dtype: Any) -> int:
    """Returns ONNX's number of a NumPy dtype."""
    return TYPES[np.dtype(dtype)]


def ort_run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Returns what onnxruntime computes, not optimized, with sums that do not saturate."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    results: Any = exact_session(model, options).run(None, dict(inputs))
    return list(results)


def codes(shape: Sequence[int], dtype: Any, seed: int) -> Array:
    """Returns random integers over the whole range of a type."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


@dataclass
class Q:
    """A quantized operand: its data or shape, scale, zero point and axis."""

    scale: Any
    zero: Any
    dtype: Any = np.uint8
    axis: int | None = None

    def names(self, b: Builder) -> tuple[str, str]:
        """Enters scale and zero point as initializers."""
        zero = np.broadcast_to(np.asarray(self.zero, self.dtype), np.shape(self.scale))
        return b.init(np.asarray(self.scale, np.float32)), b.init(np.array(zero))


@dataclass
class Case:
    """A model and data for it."""

    builder: Builder
    feeds: dict[str, Array] = field(default_factory=dict)

    def stored(self, name: str, shape: Sequence[int], dtype: Any, seed: int) -> str:
        """Adds a graph input of stored integers with random data."""
        self.feeds[name] = codes(shape, dtype, seed)
        return self.builder.input(name, list(shape), elem_type(dtype))

    def float(self, name: str, shape: Sequence[int], seed: int, spread: float = 1.0) -> str:
        """Adds a float graph input with random data."""
        data = np.random.default_rng(seed).normal(0, spread, shape)
        self.feeds[name] = data.astype(np.float32)
        return self.builder.input(name, list(shape))

    def model(self, *outputs: str, elem: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
        """Returns the model."""
        for name in outputs:
            self.builder.output(name, None, elem)
        model = self.builder.model()
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        return model


def twin(
    b: Builder, op: str, x: Sequence[tuple[str, Q]], y: Q | None, *, extra: Sequence[str] = (),
    front: Sequence[str] = (), **attributes: Any,
) -> str:  # fmt: skip
    """Adds ``DQ… -> op -> Q``; returns the stored result (the float one without ``y``)."""
    operands = [
        b.op(
            "DequantizeLinear", name, *q.names(b),
            axis=q.axis,
        )
        for name, q in x
    ]  # fmt: skip
    real = b.op(op, *front, *operands, *extra, **attributes)
    return real if y is None else b.op("QuantizeLinear", real, *y.names(b))


def params_of(value: Value) -> QuantParams:
    """Returns the parameters of a quantized value."""
    assert value.quant is not None
    return value.quant.params


def lsb(a: Array, b: Array) -> Array:
    """Returns the differences of stored integers."""
    return np.abs(a.astype(np.int64) - b.astype(np.int64))


def int4_bytes(values: Array) -> Array:
    """Packs codes 0..15 along the last axis, low nibble first."""
    low, high = values[..., ::2], values[..., 1::2]
    return (low | (high << 4)).astype(np.uint8)
