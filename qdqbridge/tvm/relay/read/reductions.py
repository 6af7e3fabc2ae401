"""Rows of matrix products and reductions that only Relay writes so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ReduceAttrs, SoftmaxAttrs, TransposeAttrs
from qdqbridge.tvm.qnn.read.reader import CallReader, Ints


def dense(reader: CallReader) -> Value:
    """``nn.dense(x, w)``: ``x @ transpose(w)``."""
    return reader.emit("MatMul", [reader.real(0), _permuted(reader, reader.value(1))])


def matmul(reader: CallReader) -> Value:
    """``nn.matmul(a, b; transpose_a, transpose_b)``."""
    a, b = reader.real(0), reader.real(1)
    a = _permuted(reader, a) if reader.flag("transpose_a") else a
    b = _permuted(reader, b) if reader.flag("transpose_b") else b
    return reader.emit("MatMul", [a, b])


def batch_matmul(reader: CallReader) -> Value:
    """``nn.batch_matmul(a, b; transpose_a, transpose_b)``; b is transposed by default."""
    a, b = reader.real(0), reader.real(1)
    a = _permuted(reader, a) if reader.flag("transpose_a") else a
    b = _permuted(reader, b) if reader.flag("transpose_b", default=True) else b
    return reader.emit("MatMul", [a, b])


def _permuted(reader: CallReader, value: Value) -> Value:
    """Returns matrices transposed; those that were transposed just before, as they were."""
    value = reader.plain(value)
    rank = len(reader.shape(value))
    swap = (*range(rank - 2), rank - 1, rank - 2)
    node = value.producer
    if node is not None and node.attributes == TransposeAttrs(swap):
        return node.operand(0)
    return reader.transposed(value, swap)


def reduced_axes(reader: CallReader) -> Ints:
    """Returns every reduced axis, from the front and sorted."""
    rank = len(reader.shape(reader.value(0)))
    given = reader.call.attrs.get("axis")
    axes = range(rank) if given is None or given == () else reader.ints("axis")
    wrapped = sorted({axis % rank for axis in axes})
    if reader.flag("exclude"):
        wrapped = [axis for axis in range(rank) if axis not in wrapped]
    return tuple(wrapped)


def variance(reader: CallReader) -> Value:
    """``variance(x, mean; axis, keepdims)``: the mean of the squared differences."""
    if reader.flag("unbiased"):
        raise reader.refusal("it is unbiased (divides by n - 1)")
    x, mean = reader.real(0), reader.real(1)
    difference = reader.emit("Sub", [x, mean], type_=x.type)
    squared = reader.emit("Mul", [difference, difference], type_=x.type)
    return reader.emit(
        "ReduceMean", [squared], ReduceAttrs(reduced_axes(reader), reader.flag("keepdims"))
    )


def fast_softmax(reader: CallReader) -> Value:
    """``nn.fast_softmax(x; axis)``: what TVM's FastMath writes."""
    return reader.emit("Softmax", [reader.real(0)], SoftmaxAttrs((reader.axis(),)))


def l2_normalize(reader: CallReader) -> Value:
    """``nn.l2_normalize(x; eps, axis)``: ``x / sqrt(max(sum(x * x), eps))``."""
    x = reader.real(0)
    shape = reader.shape(x)
    axes = reduced_axes(reader)
    kept = tuple(1 if i in axes else extent for i, extent in enumerate(shape))
    type_ = TensorType(x.type.dtype, kept)
    squares = reader.emit("Mul", [x, x], type_=x.type)
    total = reader.emit("ReduceSum", [squares], ReduceAttrs(axes), type_)
    least = reader.constant(np.asarray(reader.number("eps"), np.float32))
    bounded = reader.emit("Max", [total, least], type_=type_)
    return reader.emit("Div", [x, reader.emit("Sqrt", [bounded], type_=type_)])


ROWS: Mapping[str, Callable[[CallReader], Value]] = {
    "nn.dense": dense,
    "nn.matmul": matmul,
    "nn.batch_matmul": batch_matmul,
    "variance": variance,
    "nn.fast_softmax": fast_softmax,
    "nn.l2_normalize": l2_normalize,
}
