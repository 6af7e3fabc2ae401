"""Shapes, types and constants whose axes are in another order."""

from __future__ import annotations

import numpy as np

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Value
from qdqbridge.graph.types import QuantType, Shape, TensorType, ValueType
from qdqbridge.qnn.layout.permutation import channels_first
from qdqbridge.qnn.layout.sides import broadcast_constant


def turned_shape(shape: Shape, perm: tuple[int, ...]) -> Shape:
    """Returns a shape whose axes are in another order."""
    return None if shape is None else tuple(shape[axis] for axis in perm)


def turned_type(type_: ValueType, perm: tuple[int, ...]) -> ValueType:
    """Returns a type whose axes are in another order, its channels' axis among them."""
    shape = turned_shape(type_.shape, perm)
    if isinstance(type_, QuantType):
        axis = type_.params.axis
        return QuantType(type_.params.with_axis(None if axis is None else perm.index(axis)), shape)
    return TensorType(type_.dtype, shape)


def turned_constant(value: Value, rank: int, axes: int) -> Value:
    """Returns a constant operand of a node whose operands are channels-first now.

    Args:
        value: The constant.
        rank: Rank of the node.
        axes: How many axes the constant shall have, if those in front have extent 1.
    """
    assert (value.constant is not None and broadcast_constant(value)) or value.rank == rank
    data = value.constant
    assert data is not None
    padded = (1,) * (rank - len(data.shape)) + data.shape
    perm = channels_first(rank)
    shape = tuple(padded[axis] for axis in perm)
    type_ = turned_type(value.type.with_shape(padded), perm)
    if broadcast_constant(value) and all(extent == 1 for extent in shape[: rank - axes]):
        shape = shape[rank - axes :]
        type_ = type_.with_shape(shape)
    turned: Constant = data.map(
        lambda array: np.transpose(array.reshape(padded), perm).reshape(shape), shape=shape
    )
    return Value(type_, value.name, constant=turned)
