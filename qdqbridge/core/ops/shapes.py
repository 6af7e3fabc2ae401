"""What the ``check`` functions of the operator table share: known extents and complaints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantType


def sliced(extent: int, start: int, end: int, step: int) -> range:
    """Returns the elements that a Slice takes; backwards from before the first, from the first."""
    return range(extent)[slice(0 if step < 0 and start < -extent else start, end, step)]


def known(value: Value | None, axis: int) -> int | None:
    """Returns the extent of an axis where it is a number; negative axes count from the end."""
    if value is None or value.type.shape is None:
        return None
    shape = value.type.shape
    if not -len(shape) <= axis < len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) else None


def differ(a: int | None, b: int | None) -> bool:
    """True where both extents are known and unequal."""
    return a is not None and b is not None and a != b


def axes_fit(axes: Sequence[int], rank: int | None) -> Iterator[str]:
    """Complains of axes outside ``[0, rank)`` and of repeated ones."""
    if rank is None:
        return
    for axis in axes:
        if not 0 <= axis < rank:
            yield f"axis {axis} does not exist in an operand of rank {rank}"
    if len(set(axes)) != len(axes):
        yield f"axes {tuple(axes)} name an axis twice"


def vector_fits(value: Value | None, length: int | None, what: str) -> Iterator[str]:
    """Complains of an optional operand that is not a vector of ``length`` elements."""
    if value is None:
        return
    if value.rank is not None and value.rank != 1:
        yield f"{what} has rank {value.rank}, not 1"
    elif differ(known(value, 0), length):
        yield f"{what} has {known(value, 0)} elements, not {length}"


def per_tensor(node: Node, index: int, what: str) -> Iterator[str]:
    """Complains of a quantized operand with more than one scale, if others are quantized too."""
    return per_channel(node, index, None, what)


def per_channel(node: Node, index: int, axis: int | None, what: str) -> Iterator[str]:
    """Complains of a quantized operand with scales along another axis, if others are quantized too.

    Args:
        node: The node.
        index: Which operand.
        axis: The one of its channels; None where it has to be per tensor.
        what: The operand in words.
    """
    value = node.optional(index)
    if value is None or not isinstance(value.type, QuantType):
        return
    params = value.type.params
    if params.per_tensor or (axis is not None and (params.blocked or params.axis == axis)):
        return
    others = (v for i, v in node.data_operands() if i != index)
    if any(isinstance(other.type, QuantType) for other in others):
        along = "" if axis is None else f" or along axis {axis}"
        yield f"{what} is quantized per axis {params.axis}; it has to be per tensor{along}"


def spatial_lengths(
    rank: int, attributes: Sequence[tuple[str, Sequence[int], int, int]]
) -> Iterator[str]:
    """Complains of attribute lists of wrong length or with too small entries.

    Args:
        rank: Number of spatial axes.
        attributes: ``(name, entries, entries per axis, smallest entry)``.
    """
    for name, entries, per_axis, smallest in attributes:
        if len(entries) != per_axis * rank:
            yield f"{name} has {len(entries)} entries for {rank} spatial axes"
        if any(entry < smallest for entry in entries):
            yield f"{name} {tuple(entries)} has an entry below {smallest}"
