"""A kernel: a description of code, the PrimFunc made of it, and the operands of one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import Dim, QuantParams, Shape
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, UNSQUEEZE
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """Where a node is computed.

    Attributes:
        channels_last: True where the node's data operand and results are channels-last; their
            types have the shapes in which they are stored.
        threads: How many threads the machine has; the work is spread over no more.
    """

    cpu: Cpu
    channels_last: bool
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One call of a PrimFunc in destination-passing style: ``inputs, constants, outputs``.

    Attributes:
        name: What profiles call it, a C identifier.
        description: Everything that shapes the code. Kernels with equal descriptions (of one
            type) share one PrimFunc, so nothing about one tensor's numbers belongs here.
        build: Makes the PrimFunc of a description; it has to be without ``global_symbol``.
        inputs: The values it reads, as they are stored.
        constants: Packed weights, biases, multipliers, tables: C-contiguous arrays.
        outputs: The values it writes.
        work: Operations of one call (two per multiplication and addition), for shares of the
            limit, an open extent counting as 1; 0 where that says nothing.
        extend: Returns the kernel that also computes the node that alone reads its only output, or
            None where it cannot; called as ``extend(kernel, node)``.
    """

    name: str
    description: Hashable
    build: Callable[[Any], Any]
    inputs: tuple[Value, ...]
    constants: tuple[Array, ...]
    outputs: tuple[Value, ...]
    work: int = 0
    extend: Callable[[Kernel, Node], Kernel | None] | None = None


KernelMatch = Callable[[Node, KernelPlace], "Kernel | None"]
"""Returns the kernel of a node, or None where its family has none for it."""


# ---- Quantized operands and results as kernels of products take them: bytes, centred weights -----


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


# ---- Values that are others seen through transposes and reshapes: kernels read these in place ----


Stride: TypeAlias = "int | tuple[Dim, ...]"
"""Elements from one index to the next: a number, or a number and the names of open extents, whose
product it is."""

_RESHAPES = frozenset((RESHAPE, FLATTEN, UNSQUEEZE, SQUEEZE))


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in memory, and how its elements are looked at.

    Attributes:
        value: The value whose tensor it is.
        shape: Extents of the view, open ones by name.
        strides: Elements from one index of an axis to the next.
    """

    value: Value
    shape: tuple[Dim, ...]
    strides: tuple[Stride, ...]


def strides_of(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Returns the strides of a tensor in C order; an open extent may only be the first."""
    steps = (math.prod(extent or 1 for extent in shape[axis + 1 :]) for axis in range(len(shape)))
    return tuple(steps)


def full_view(value: Value) -> View | None:
    """Returns a value as it is; None where an extent is 0, or there are too many elements."""
    shape = value.type.shape
    if not shape or any_open(shape) is None:
        return None
    strides = tuple(_symbolic_stride(shape[axis + 1 :]) for axis in range(len(shape)))
    return View(value, shape, strides)


def _symbolic_stride(extents: tuple[Dim, ...]) -> Stride:
    known = math.prod(extent for extent in extents if isinstance(extent, int))
    names = sorted(extent for extent in extents if isinstance(extent, str))
    return (known, *names) if names else known


def view_of(value: Value) -> View | None:
    """Returns a value, seen through the transposes and reshapes that made it."""
    node, own = value.producer, full_view(value)
    if node is None or own is None or not _same_codes(node):
        return own
    if node.op in _RESHAPES:
        source = full_view(node.operand(0))
        inner = view_of(node.operand(0))
        plain = inner is not None and source is not None and inner.strides == source.strides
        return View(inner.value, own.shape, own.strides) if plain and inner else own
    if isinstance(node.attributes, TransposeAttrs):
        inner = view_of(node.operand(0))
        if inner is not None:
            perm = node.attributes.perm
            shape = tuple(inner.shape[axis] for axis in perm)
            return View(inner.value, shape, tuple(inner.strides[axis] for axis in perm))
    return own


def _same_codes(node: Node) -> bool:
    """True where a data-movement operator leaves codes and what they mean alone."""
    before, after = node.operand(0), node.output
    if before.quant is None or after.quant is None:
        return before.quant is after.quant and before.type.dtype is after.type.dtype
    return before.quant.params == after.quant.params
