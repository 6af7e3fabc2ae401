"""Nodes between quantized values as QLinear operators, where ONNX or com.microsoft has one.

Operand orders: ONNX QLinearConv-10, QLinearMatMul-10; onnxruntime docs/ContribOperators.md.
onnxruntime's QLinearSoftmax and QLinearAveragePool round otherwise than the operators they stand
for (measured on 1.31: 1.5 to 6 %, 6 to 25 % of the outputs by 1), so they are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.accumulator import leaves_int32
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.elementwise import ADD, CONCAT, MUL, WHERE
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.unary import LEAKY_RELU, SIGMOID
from qdqbridge.onnx_io.codecs import encode
from qdqbridge.onnx_io.writer.clamps import clip_stored
from qdqbridge.onnx_io.writer.spec import RowWriter, stem

_EIGHT = (DType.INT8, DType.UINT8)
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class QLinear:
    """A QLinear node before it has a result.

    Attributes:
        op_type: The operator.
        inputs: Tensor names.
        attributes: As ``onnx.helper.make_attribute`` takes them.
    """

    op_type: str
    domain: str
    inputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def qlinear_row(writer: RowWriter, node: Node) -> bool:
    """Adds a node in QOperator form; False where there is none.

    Args:
        writer: Where the row goes.
        node: Any node.
    """
    if node.op not in _FORMS or len(node.outputs) != 1:
        return False
    result = node.output
    if result.quant is None or not _is_per_tensor_8bit(result):
        return False
    if any(v is not None and v.producer is not None and _wide(v) for v in node.inputs):
        return False
    if node.op in (CONV, DENSE, MATMUL) and leaves_int32(node):
        return False
    form = _FORMS[node.op](writer, node)
    if form is None:
        return False
    target, params = writer.tensors.of(result), result.quant.params
    # A QLinear operator saturates at its type only: a narrower range is a Clip of stored integers
    # behind it.
    whole = target if params.full_range else writer.free.take(f"{stem(target)}_unclamped")
    type_ = TensorType(params.storage_dtype, result.type.shape)
    writer.row(
        form.op_type, form.inputs, whole, type_, dict(form.attributes), node, domain=form.domain
    )
    if form.domain:
        writer.spec.imports.setdefault(form.domain, 1)
    if not params.full_range:
        clip_stored(writer, whole, result)
    return True


def _is_per_tensor_8bit(value: Value) -> bool:
    """True for 8-bit values with one float32 scale."""
    quant = value.quant
    if quant is None or quant.dtype not in _EIGHT:
        return False
    return quant.params.per_tensor and quant.params.expressed_dtype is DType.FLOAT32


def _wide(value: Value) -> bool:
    return value.quant is not None and value.quant.dtype not in _EIGHT


def _one_storage_type(node: Node, *values: Value) -> bool:
    """True where values and the result are plain and stored in one type."""
    dtypes = {value.type.dtype for value in (*values, node.output)}
    return len(dtypes) == 1 and all(_is_per_tensor_8bit(value) for value in values)


def _triple(writer: RowWriter, value: Value) -> tuple[str, str, str]:
    assert value.quant is not None
    tensor = writer.stored(value)
    return (tensor, *writer.parameters.of(value.quant.params, stem(tensor)))


def _output_qparam_names(writer: RowWriter, node: Node) -> tuple[str, str]:
    assert node.output.quant is not None
    return writer.parameters.of(node.output.quant.params, stem(writer.tensors.of(node.output)))


def _qlinear_bias(writer: RowWriter, bias: Value | None) -> list[str] | None:
    """Returns the operand of an int32 bias, nothing where there is none, None where it is float."""
    if bias is None:
        return []
    if bias.constant is None or bias.quant is None or bias.quant.dtype is not DType.INT32:
        return None
    return [writer.stored(bias)]


def _is_qlinear_weight(value: Value, axis: int) -> bool:
    quant = value.quant
    if quant is None or quant.dtype not in _EIGHT or value.constant is None:
        return False
    if quant.params.blocked or quant.params.expressed_dtype is not DType.FLOAT32:
        return False
    return quant.params.axis in (None, axis)


def _conv(writer: RowWriter, node: Node) -> QLinear | None:
    x, w = node.operand(0), node.operand(1)
    bias = _qlinear_bias(writer, node.optional(2))
    if bias is None or not _one_storage_type(node, x) or not _is_qlinear_weight(w, 0):
        return None
    inputs = [*_triple(writer, x), *_triple(writer, w), *_output_qparam_names(writer, node), *bias]
    return QLinear("QLinearConv", "", inputs, _encode_qlinear_attrs(writer, node))


def _qlinear_dense(writer: RowWriter, node: Node) -> QLinear | None:
    x, w = node.operand(0), node.operand(1)
    bias = _qlinear_bias(writer, node.optional(2))
    if (
        bias is None
        or x.rank is None
        or not _one_storage_type(node, x)
        or not _is_qlinear_weight(w, 0)
    ):
        return None
    result = _output_qparam_names(writer, node)
    if x.rank == 2 and (x.type.dtype is DType.UINT8 or w.type.dtype is DType.INT8):
        operands = [*_triple(writer, x), *_triple(writer, w), *(bias or [""]), *result]
        return QLinear("QGemm", _MICROSOFT, operands, {"transB": 1})
    if bias or w.constant is None:
        return None
    swapped = w.constant.map(np.transpose, shape=w.constant.shape[::-1])
    tensor = writer.constant(swapped, writer.tensors.of(w))
    assert w.quant is not None
    parameters = writer.parameters.of(w.quant.params, stem(tensor))
    return QLinear("QLinearMatMul", "", [*_triple(writer, x), tensor, *parameters, *result])


def _matmul(writer: RowWriter, node: Node) -> QLinear | None:
    a, b = node.operand(0), node.operand(1)
    if not _one_storage_type(node, a, b):
        return None
    operands = [*_triple(writer, a), *_triple(writer, b), *_output_qparam_names(writer, node)]
    return QLinear("QLinearMatMul", "", operands)


def _binary(writer: RowWriter, node: Node) -> QLinear | None:
    a, b = node.operand(0), node.operand(1)
    if not _one_storage_type(node, a, b):
        return None
    operands = [*_triple(writer, a), *_triple(writer, b), *_output_qparam_names(writer, node)]
    return QLinear(f"QLinear{node.op.name}", _MICROSOFT, operands)


def _unary(writer: RowWriter, node: Node) -> QLinear | None:
    x = node.operand(0)
    if not _one_storage_type(node, x):
        return None
    operands = [*_triple(writer, x), *_output_qparam_names(writer, node)]
    return QLinear(
        f"QLinear{node.op.name}", _MICROSOFT, operands, _encode_qlinear_attrs(writer, node)
    )


def _write_qlinear_concat(writer: RowWriter, node: Node) -> QLinear | None:
    values = [value for value in node.inputs if value is not None]
    if not _one_storage_type(node, *values):
        return None
    operands = [name for value in values for name in _triple(writer, value)]
    inputs = [*_output_qparam_names(writer, node), *operands]
    return QLinear("QLinearConcat", _MICROSOFT, inputs, _encode_qlinear_attrs(writer, node))


def _where(writer: RowWriter, node: Node) -> QLinear | None:
    condition, a, b = (node.operand(index) for index in range(3))
    if not _one_storage_type(node, a, b):
        return None
    operands = [*_triple(writer, a), *_triple(writer, b), *_output_qparam_names(writer, node)]
    return QLinear("QLinearWhere", _MICROSOFT, [writer.stored(condition), *operands])


def _encode_qlinear_attrs(writer: RowWriter, node: Node) -> dict[str, Any]:
    encoded = encode(node.op.name, node.attributes, node.inputs, writer.opset)
    return {k: v for k, v in encoded.attributes.items() if v not in ([], ())}


_FORMS: Mapping[Operator, Callable[[RowWriter, Node], QLinear | None]] = MappingProxyType(
    {
        CONV: _conv,
        DENSE: _qlinear_dense,
        MATMUL: _matmul,
        ADD: _binary,
        MUL: _binary,
        CONCAT: _write_qlinear_concat,
        WHERE: _where,
        **dict.fromkeys((GLOBAL_AVERAGE_POOL, SIGMOID, LEAKY_RELU), _unary),
    }
)
