"""Values that are others seen through transposes and reshapes: kernels read these in place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, UNSQUEEZE
from qdqbridge.tvm.relax.kernels.operands import any_open

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
