"""Quantized operands and results as kernels of products take them: bytes, centred weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import QuantParams, Shape
from qdqbridge.tvm.relax.kernels.kernel import Array

_HALF = 128
Open = tuple["int | None", ...]
"""Extents of a tensor; None for those that only the run knows."""
_ELEMENTS = 1 << 30
"""Tensors with more elements could need indices beyond int32."""


@dataclass(frozen=True, slots=True)
class ActivationCodes:
    """An activation of at most 8 bits, one scale, as uint8 codes.

    Attributes:
        params: Its parameters, as it is stored.
        signed: True where int8 is stored; codes are 128 more.
    """

    params: QuantParams
    signed: bool

    def code(self, stored: int) -> int:
        """Returns a stored value, or a zero point, as a uint8 code."""
        return stored + _HALF if self.signed else stored

    @property
    def zero_point(self) -> int:
        """The zero point as a uint8 code."""
        return self.code(int(self.params.zero_point))


def codes_of(value: Value) -> ActivationCodes | None:
    """Returns how an activation is stored; None where it is not in bytes, or not quantized."""
    quant = value.quant
    if quant is None or not quant.params.per_tensor:
        return None
    dtype = quant.params.storage_dtype
    if not dtype.is_integer or dtype.bits > 8:
        return None
    return ActivationCodes(quant.params, dtype.is_signed)


def centred_weight(node: Node) -> Array | None:
    """Returns the constant weight of a product minus its zero points: itself as int8, or int16.

    Returns:
        None where it is not constant, has more than 8 bits, or parameters along another axis than
        that of the output channels.
    """
    value, geometry = node.operand(1), geometry_of(node)
    axis = None if geometry is None else geometry.axis
    quant, constant = value.quant, value.constant
    if quant is None or constant is None or quant.params.blocked:
        return None
    params = quant.params
    if not params.storage_dtype.is_integer or params.storage_dtype.bits > 8:
        return None
    if params.axis not in (None, axis):
        return None
    stored = constant.numpy()
    if params.symmetric and params.storage_dtype is DType.INT8:
        return stored
    zero_point = params.aligned(params.zero_point, stored.shape)
    return stored.astype(np.int16) - zero_point.astype(np.int16)


def by_channel(weight: Array, node: Node) -> Array:
    """Returns the weight of a product of matrices as (units, inner)."""
    geometry = geometry_of(node)
    return weight if geometry is None or geometry.axis == 0 else np.ascontiguousarray(weight.T)


def along(values: tuple[int, ...], neutral: int) -> tuple[int, int]:
    """Returns one entry per spatial axis for an image; a sequence is an image of one row."""
    return (neutral, values[0]) if len(values) == 1 else (values[0], values[1])


def image_of(shape: tuple[int | None, ...]) -> tuple[int, int]:
    """Returns rows and columns of channels-last images, or sequences, of known extents."""
    rows = known_extent(shape[1]) if len(shape) == 4 else 1
    return rows, known_extent(shape[-2])


def known_extent(extent: int | None) -> int:
    """Returns an extent that is not the first one."""
    assert extent is not None
    return extent


def any_open(shape: Shape) -> Open | None:
    """Returns a shape with None for open extents; None where one is 0, or there are too many."""
    if shape is None:
        return None
    found = tuple(None if isinstance(extent, str) else extent for extent in shape)
    size = np.prod([extent for extent in found if extent is not None], dtype=np.int64)
    return found if 0 < size < _ELEMENTS else None


def leading(shape: Shape) -> Open | None:
    """Returns a shape in which every extent but the last may be open (None).

    Returns:
        None where the last one is open, one is 0, or there are too many elements.
    """
    return None if not shape or isinstance(shape[-1], str) else any_open(shape)


def extents(shape: Shape) -> tuple[int | None, ...] | None:
    """Returns a shape of which at most the first extent is open (None).

    Returns:
        None where another extent is open, one is 0, or there are too many elements.
    """
    if not shape or any(isinstance(extent, str) for extent in shape[1:]):
        return None
    found = tuple(None if isinstance(extent, str) else extent for extent in shape)
    size = np.prod([extent for extent in found if extent is not None], dtype=np.int64)
    return found if 0 < size < _ELEMENTS else None
