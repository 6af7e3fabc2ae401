"""Small graphs, built without ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Origin, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    Shape,
    TensorType,
    ValueType,
    per_tensor,
)
from qdqbridge.core.ops.table import BY_NAME

Array = np.ndarray[Any, Any]

U8 = per_tensor(DType.UINT8, 2**-5, 128)
S8 = per_tensor(DType.INT8, 2**-6)
W8 = per_tensor(DType.INT8, 2**-7)
OUT = per_tensor(DType.UINT8, 2**-3, 10)


def quant(storage: DType, scale: Any, zero_point: Any = 0, **fields: Any) -> QuantParams:
    """Returns parameters of any granularity from anything that NumPy takes for an array."""
    return QuantParams(storage, np.asarray(scale), np.asarray(zero_point), **fields)


def plain(name: str, shape: Shape, dtype: DType = DType.FLOAT32) -> Value:
    return Value(TensorType(dtype, shape), name)


def stored(name: str, params: QuantParams, shape: Shape) -> Value:
    return Value(QuantType(params, shape), name)


def const(array: Any, params: QuantParams | None = None, name: str = "c") -> Value:
    data = Constant.of(np.asarray(array))
    type_: ValueType = (
        TensorType(data.dtype, data.shape) if params is None else QuantType(params, data.shape)
    )
    return Value(type_, name, constant=data)


def apply(
    op: str,
    *operands: Value | None,
    type_: ValueType | None = None,
    attributes: Attributes | None = None,
    name: str = "",
) -> Value:
    """Returns the result of a node; float of the longest operand's shape if no type is given."""
    assert operands[0] is not None
    shape = max((v.type.shape for v in operands if v is not None), key=lambda s: len(s or ()))
    value = Value(type_ or TensorType(DType.FLOAT32, shape), name or op.lower())
    row = BY_NAME[op]
    given = row.attributes() if attributes is None else attributes
    Node(row, given, operands, [value], Origin((name or op.lower(),)))
    return value


def q(value: Value, params: QuantParams, name: str = "q") -> Value:
    return apply("quantize", value, type_=QuantType(params, value.type.shape), name=name)


def dq(value: Value, name: str = "dq") -> Value:
    return apply("dequantize", value, name=name)


def rq(value: Value, params: QuantParams, name: str = "rq") -> Value:
    return apply("requantize", value, type_=QuantType(params, value.type.shape), name=name)


def typed(shape: Shape, params: QuantParams | None = None) -> ValueType:
    return TensorType(DType.FLOAT32, shape) if params is None else QuantType(params, shape)


def graph(inputs: Sequence[Value], *outputs: Value) -> Graph:
    result = Graph(
        list(inputs), list(outputs), [f"y{i}" for i in range(len(outputs))], [], name="test"
    )
    Editor(result).finish()
    return result


def names(graph_: Graph) -> list[str]:
    return [node.op.name for node in graph_.nodes]
