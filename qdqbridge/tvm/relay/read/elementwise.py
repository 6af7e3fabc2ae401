"""Rows of what only Relay writes so, element by element, and of what computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ReduceAttrs, SoftmaxAttrs, TransposeAttrs
from qdqbridge.core.ops.build import permuted_shape
from qdqbridge.core.ops.normalization import OVER_CHANNELS
from qdqbridge.onnx_io.assembly import standard_operator
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.opaque.spans import opaque_of_span
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read.call import Result
from qdqbridge.tvm.qnn.read.reader import CallReader, Ints, Read
from qdqbridge.tvm.relay.dialect.dynamic import MATMUL, QUANTIZE, SCALE, ZERO_POINT

_FAST = {"fast_tanh": "Tanh", "fast_exp": "Exp", "fast_erf": "Erf"}


def fast(reader: CallReader) -> Value:
    """``fast_<op>(x)``: an approximation of ``op`` that TVM's FastMath writes."""
    return reader.emit(_FAST[reader.name], [reader.real(0)])


def rsqrt(reader: CallReader) -> Value:
    """``1 / sqrt(x)``."""
    return reader.emit("Reciprocal", [reader.emit("Sqrt", [reader.real(0)])])


def prelu(reader: CallReader) -> Value:
    """``nn.prelu(x, slope; axis)``: a slope per channel."""
    x, slope = reader.real(0), reader.real(1)
    rank, axis = len(reader.shape(x)), reader.axis(default=1)
    if len(reader.shape(slope)) == 1 and axis != rank - 1:
        slope = reader.unsqueezed(slope, tuple(range(1, rank - axis)))
    return reader.emit("PRelu", [x, slope])


def on_channels(reader: CallReader) -> Read:
    """A norm whose channels may be on any axis: the shared row has them on axis 1."""
    x, axis = reader.real(0), reader.axis(default=1)
    rank, row = len(reader.shape(x)), read.ROWS[reader.name]
    if axis == 1 or rank < 2:
        return reader.shared()
    perm = (0, axis, *(i for i in range(1, rank) if i != axis))
    back = tuple(perm.index(i) for i in range(rank))
    first = Result(reader.call.result.dtype, permuted_shape(reader.call.result.shape, perm))
    args = (reader.transposed(x, perm, layout=True), *reader.call.args[1:])
    attrs, results = {**reader.call.attrs, "axis": 1}, (first, *reader.call.results[1:])
    found = row(reader.reading, replace(reader.call, args=args, attrs=attrs, results=results))
    values = found if isinstance(found, list) else [found]
    permuted = reader.transposed(reader.reading.value(values[0]), back, layout=True)
    return [permuted, *values[1:]] if isinstance(found, list) else permuted


def identity(reader: CallReader) -> Value:
    """Annotations and copies, which compute nothing."""
    return reader.value(0)


def filled(number: float) -> Callable[[CallReader], Value]:
    """Returns the row of a constant tensor of one number."""

    def row(reader: CallReader) -> Value:
        return reader.constant(np.full(reader.extents(), number, reader.result.dtype.numpy))

    return row


def full(reader: CallReader) -> Value:
    """``full(value; shape)``."""
    number = reader.array(0)
    if number is None:
        raise reader.refusal("its value is computed")
    return reader.constant(np.full(reader.extents(), number, reader.result.dtype.numpy))


ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    **dict.fromkeys(_FAST, fast),
    "rsqrt": rsqrt,
    "nn.prelu": prelu,
    **dict.fromkeys((row.tvm for row in OVER_CHANNELS), on_channels),
    "copy": identity,
    "annotation.cast_hint": identity,
    "annotation.stop_fusion": identity,
    "annotation.checkpoint": identity,
    "on_device": identity,
    "zeros": filled(0),
    "ones": filled(1),
    "full": full,
}


# ---- Rows of matrix products and reductions that only Relay writes so


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


REDUCTIONS_ROWS: Mapping[str, Callable[[CallReader], Value]] = {
    "nn.dense": dense,
    "nn.matmul": matmul,
    "nn.batch_matmul": batch_matmul,
    "variance": variance,
    "nn.fast_softmax": fast_softmax,
    "nn.l2_normalize": l2_normalize,
}


# ---- Rows of dynamic quantization, which graphs have as ONNX's own nodes -------------------------


def _dynamic_quantize_row(index: int) -> Callable[[CallReader], Value]:
    """Returns the row of a call that gives one of the results of ``DynamicQuantizeLinear``."""

    def row(reader: CallReader) -> Value:
        x = reader.real(0)
        results = _dynamic_quantize_results(reader, x)
        given = [reader.value(i) for i in range(1, len(reader.call.args))]
        if not all(a is b for a, b in zip(given, results[1:], strict=False)):
            raise reader.refusal("its scale or zero point is not that of its data")
        return results[index]

    return row


def _dynamic_quantize_results(reader: CallReader, x: Value) -> list[Value]:
    """Returns the results of the one node for all calls on ``x``."""
    provenance = reader.call.provenance
    memory, key = (
        reader.reading.memory,
        ("dynamic", x, () if provenance is None else provenance.names),
    )
    if key not in memory:
        operator = _operator(reader, "DynamicQuantizeLinear", 1, 3)
        types = [
            TensorType(DType.UINT8, x.type.shape),
            TensorType(DType.FLOAT32, ()),
            TensorType(DType.UINT8, ()),
        ]
        memory[key] = reader.reading.several(*operator, [x], types, reader.call)
    return memory[key]


def matmul_integer(reader: CallReader) -> list[Value]:
    """``qnn.matmul_integer(a, b, za, zb)``, zero points that a span says are left out as such."""
    provenance = reader.call.provenance
    operands: list[Value | None] = [reader.real(i) for i in range(len(reader.call.args))]
    operator = _operator(reader, "MatMulInteger", len(operands), 1)
    if provenance is not None and provenance.op == "MatMulInteger":
        absent = {
            *provenance.more.get("absent", ()),
            *range(len(provenance.operands), len(operands)),
        }
        operands = [_kept(value, i in absent) for i, value in enumerate(operands)]
        while operands[-1] is None and len(operands) > len(provenance.operands):
            operands.pop()
    return reader.reading.several(*operator, operands, reader.results, reader.call)


def _operator(
    reader: CallReader, op_type: str, operands: int, results: int
) -> tuple[Operator, OpaqueAttrs]:
    """Returns the node's operator as a span has it, else as ONNX does."""
    found = None if reader.call.provenance is None else opaque_of_span(reader.call.provenance.raw)
    if found is not None and found[1].op_type == op_type:
        return found
    return standard_operator(op_type, operands, results)


def _kept(value: Value | None, absent: bool) -> Value | None:
    """Returns an operand; None for zeros that stand for one that a file leaves out."""
    zeros = value is not None and value.constant is not None and not value.constant.numpy().any()
    return None if absent and zeros else value


DYNAMIC_ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    QUANTIZE: _dynamic_quantize_row(0),
    SCALE: _dynamic_quantize_row(1),
    ZERO_POINT: _dynamic_quantize_row(2),
    MATMUL: matmul_integer,
}
