"""Operands of a node as its span writes them: other element types, quantized constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.tvm.qnn.origin import Provenance, folded_params


def as_written(
    op: Operator, operands: Sequence[Value | None], provenance: Provenance | None
) -> list[Value | None]:
    """Returns the operands of a node as its span writes them, where they are the same numbers."""
    if provenance is None or op.name != provenance.op or len(operands) != len(provenance.operands):
        return list(operands)
    return [
        None if v is None else _restore_operand(v, i, provenance) for i, v in enumerate(operands)
    ]


def _restore_operand(value: Value, index: int, provenance: Provenance) -> Value:
    if value.quant is not None:
        return value
    if not provenance.operands[index]:
        dtype = provenance.plain.get(index)
        return (
            value
            if dtype is None or value.constant is None
            else _cast_constant_exactly(value, dtype)
        )
    node = value.producer
    if node is not None and node.op is DEQUANTIZE:
        source = node.operand(0)
        if source.constant is not None or not any(provenance.results):
            return source
    params = folded_params(provenance, index)
    if params is None or value.constant is None or not value.type.dtype.is_float:
        return value
    return _unfold_quantized(value, params)


def _cast_constant_exactly(value: Value, dtype: DType) -> Value:
    """Returns a constant in another element type, if that holds its numbers exactly."""
    assert value.constant is not None
    if value.type.dtype is dtype:
        return value
    array = value.constant.numpy()
    with np.errstate(all="ignore"):
        cast = array.astype(dtype.numpy)
        if not np.array_equal(cast.astype(array.dtype), array):
            return value
    return Value(TensorType(dtype, cast.shape), value.name, constant=Constant.of(cast))


def _unfold_quantized(value: Value, params: QuantParams) -> Value:
    """Returns a float constant as the quantized one that it was folded from."""
    assert value.constant is not None
    array = value.constant.numpy()
    if params.blocked or (params.axis is not None and array.shape != params.scale.shape):
        return value
    stored = quantize(array.astype(np.float32), params)
    if not np.array_equal(dequantize(stored, params).astype(array.dtype), array):
        return value
    return Value(QuantType(params, array.shape), value.name, constant=Constant.of(stored))
