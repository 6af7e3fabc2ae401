"""Values that stand behind new nodes, and constants: what rewrites are made of.

The nodes are proposals: an editor links them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Origin, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REQUANTIZE


def result(
    op: Operator,
    attributes: Attributes,
    operands: Sequence[Value | None],
    type_: ValueType,
    origin: Origin = NO_ORIGIN,
    name: str = "",
) -> Value:
    """Returns the result of a new node with one result."""
    value = Value(type_, name)
    Node(op, attributes, operands, [value], origin)
    return value


def quantized(
    value: Value, params: QuantParams, origin: Origin = NO_ORIGIN, name: str = ""
) -> Value:
    """Returns ``quantize(value)``."""
    return result(
        QUANTIZE, NO_ATTRIBUTES, [value], QuantType(params, value.type.shape), origin, name
    )


def requantized(
    value: Value, params: QuantParams, origin: Origin = NO_ORIGIN, name: str = ""
) -> Value:
    """Returns ``requantize(value)``."""
    return result(
        REQUANTIZE, NO_ATTRIBUTES, [value], QuantType(params, value.type.shape), origin, name
    )


def dequantized(value: Value, dtype: DType, origin: Origin = NO_ORIGIN, name: str = "") -> Value:
    """Returns ``dequantize(value)``."""
    return result(
        DEQUANTIZE, NO_ATTRIBUTES, [value], TensorType(dtype, value.type.shape), origin, name
    )


def retyped(node: Node, operands: Sequence[Value | None], type_: ValueType, name: str) -> Value:
    """Returns the result of ``node`` applied to other operands, in another type."""
    return result(node.op, node.attributes, operands, type_, node.origin, name)


def constant(elements: Constant | NDArray[Any], params: QuantParams | None, name: str) -> Value:
    """Returns a constant value, quantized where ``params`` are given."""
    data = elements if isinstance(elements, Constant) else Constant.of(elements)
    type_: ValueType = (
        TensorType(data.dtype, data.shape) if params is None else QuantType(params, data.shape)
    )
    return Value(type_, name, constant=data)


def evaluated(node: Node) -> NDArray[Any]:
    """Returns the result of a node whose operands are constants; ask first what that takes.

    Raises:
        InvalidModelError: The constants do not fit together.
    """
    operands = [
        None if v is None or v.constant is None else v.constant.numpy() for v in node.inputs
    ]
    return np.asarray(computed(node, operands)[0])
