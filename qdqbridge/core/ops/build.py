"""Values that stand behind new nodes, and constants: what rewrites are made of.

The nodes are proposals: an editor links them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Origin, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, TensorType, ValueType
from qdqbridge.core.ops.attributes import IN_FLOAT32
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REQUANTIZE

# A transpose moved through an operator: types, constants and attributes with their axes permuted.
#
# Everywhere, axis ``i`` of what comes out is axis ``perm[i]`` of what goes in. Parameters along an
# axis go where that axis goes.

Perm = tuple[int, ...]
T = TypeVar("T")


def inverse(perm: Perm) -> Perm:
    """Returns the permutation that undoes another."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def permuted_shape(shape: Shape, perm: Perm) -> Shape:
    """Returns the shape of a transposition."""
    return None if shape is None else tuple(shape[axis] for axis in perm)


def permuted_type(type_: ValueType, perm: Perm) -> ValueType:
    """Returns the type of a transposition; its parameters lie along their axis still."""
    shape = permuted_shape(type_.shape, perm)
    if isinstance(type_, QuantType):
        return QuantType(permuted_params(type_.params, perm), shape)
    return TensorType(type_.dtype, shape)


def permuted_params(params: QuantParams, perm: Perm) -> QuantParams:
    """Returns the parameters of a transposition; scales of blocks have axes of their own."""
    if params.axis is None:
        return params
    axis = perm.index(params.axis)
    if not params.blocked:
        return params.with_axis(axis)
    scale, zero_point = params.scale.transpose(perm), params.zero_point.transpose(perm)
    return replace(params, scale=scale, zero_point=zero_point, axis=axis)


def widened(value: Value, rank: int) -> Value:
    """Returns a constant with as many axes of extent 1 in front as make it one of ``rank`` axes."""
    data, quant = value.constant, value.quant
    assert data is not None
    lead = (1,) * (rank - len(data.shape))
    if not lead:
        return value
    shape = lead + data.shape
    wide = data.map(lambda array: array.reshape(shape), shape=shape)
    if quant is None:
        return Value(TensorType(data.dtype, shape), value.name, constant=wide)
    params = quant.params
    if params.axis is not None:
        params = params.with_axis(params.axis + len(lead))
    if params.blocked:
        scale, zero_point = (a.reshape(*lead, *a.shape) for a in (params.scale, params.zero_point))
        params = replace(params, scale=scale, zero_point=zero_point)
    return Value(QuantType(params, shape), value.name, constant=wide)


def permuted_constant(value: Value, perm: Perm) -> Value:
    """Returns a constant of as many axes as there are in ``perm`` transposed, as a view."""
    data = value.constant
    assert data is not None
    return Value(permuted_type(value.type, perm), value.name, constant=data.permuted(perm))


def permuted_operand(value: Value, perm: Perm) -> Value | None:
    """Returns a constant operand of a node whose axes are permuted; None if it has more axes.

    It may have fewer axes than the node, as NumPy broadcasts; a single element stays as it is.
    """
    data, params = value.constant, None if value.quant is None else value.quant.params
    assert data is not None
    if data.size == 1 and len(data.shape) <= 1 and (params is None or params.per_tensor):
        return value
    rank = len(perm)
    return None if len(data.shape) > rank else permuted_constant(widened(value, rank), perm)


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
    return result(QUANTIZE, IN_FLOAT32, [value], QuantType(params, value.type.shape), origin, name)


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
