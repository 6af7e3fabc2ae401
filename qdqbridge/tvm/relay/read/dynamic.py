"""Rows of dynamic quantization, which graphs have as ONNX's own nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.onnx_io.assembly import standard_operator
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.opaque.spans import opaque_of_span
from qdqbridge.tvm.qnn.read.reader import CallReader, Read
from qdqbridge.tvm.relay.dialect.dynamic import MATMUL, QUANTIZE, SCALE, ZERO_POINT


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


ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    QUANTIZE: _dynamic_quantize_row(0),
    SCALE: _dynamic_quantize_row(1),
    ZERO_POINT: _dynamic_quantize_row(2),
    MATMUL: matmul_integer,
}
