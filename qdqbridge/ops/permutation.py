"""A transpose moved through an operator: types, constants and attributes with their axes permuted.

Everywhere, axis ``i`` of what comes out is axis ``perm[i]`` of what goes in. Parameters along an
axis go where that axis goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qdqbridge.graph.graph import Value
from qdqbridge.graph.operator import Attributes
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType, Shape, TensorType, ValueType
from qdqbridge.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ExpandAttrs,
    PadAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TileAttrs,
)

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
    shape = tuple(data.shape[axis] for axis in perm)
    moved = data.map(lambda array: array.transpose(perm), shape=shape)
    return Value(permuted_type(value.type, perm), value.name, constant=moved)


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


def permuted_attributes(attributes: Attributes, perm: Perm) -> Attributes:
    """Returns the attributes of an operator whose operands are transposed."""
    rule = _RULES.get(type(attributes))
    return attributes if rule is None else rule(attributes, perm)


def _axes(axes: Sequence[int], perm: Perm) -> tuple[int, ...]:
    return tuple(perm.index(axis) for axis in axes)


def _set(axes: Sequence[int], perm: Perm) -> tuple[int, ...]:
    return tuple(sorted(_axes(axes, perm)))


def _entries(entries: Sequence[T], perm: Perm) -> tuple[T, ...]:
    """Returns one entry per axis in the new order of the axes."""
    return tuple(entries[axis] for axis in perm)


def _halves(entries: Sequence[T], perm: Perm) -> tuple[T, ...]:
    """Returns begins and ends, one of each per axis."""
    rank = len(perm)
    return _entries(entries[:rank], perm) + _entries(entries[rank:], perm) if entries else ()


def _resize(a: ResizeAttrs, perm: Perm) -> ResizeAttrs:
    return replace(
        a,
        scales=None if a.scales is None else _entries(a.scales, perm),
        sizes=None if a.sizes is None else _entries(a.sizes, perm),
        roi=_halves(a.roi, perm),
    )


def _expand(a: ExpandAttrs, perm: Perm) -> ExpandAttrs:
    return a if a.shape is None else replace(a, shape=_entries(a.shape, perm))


_RULES: dict[type[Attributes], Callable[[Any, Perm], Attributes]] = {
    AxisAttrs: lambda a, perm: replace(a, axis=perm.index(a.axis)),
    SplitAttrs: lambda a, perm: replace(a, axis=perm.index(a.axis)),
    SoftmaxAttrs: lambda a, perm: replace(a, axes=_set(a.axes, perm)),
    ReduceAttrs: lambda a, perm: replace(a, axes=_set(a.axes, perm)),
    AxesAttrs: lambda a, perm: replace(a, axes=_set(a.axes, perm)),
    SliceAttrs: lambda a, perm: replace(a, axes=_axes(a.axes, perm)),
    PadAttrs: lambda a, perm: replace(a, pads=_halves(a.pads, perm)),
    TileAttrs: lambda a, perm: replace(a, repeats=_entries(a.repeats, perm)),
    ExpandAttrs: _expand,
    ResizeAttrs: _resize,
}
