"""The numbers in small integer vectors that are computed from shapes; extents may be names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import Array, Attributes, Flow, OnnxOp, Operands, Row
from qdqbridge.core.graph.symbols import product, quotient, terms, total
from qdqbridge.core.graph.types import Dim, Shape
from qdqbridge.core.ops.attributes import AxisAttrs, CastAttrs, ShapeAttrs, SliceAttrs
from qdqbridge.core.ops.stored import present

Extents: TypeAlias = "list[Dim]"
MOST = 64
"""Elements of a vector that is followed: shapes have one for each axis."""


def shape_extents(attributes: ShapeAttrs, shape: Shape) -> Extents | None:
    """Returns what a Shape of a tensor gives."""
    return None if shape is None else list(shape[attributes.start : attributes.end])


def computed_extents(
    name: str, attributes: Attributes, parts: Sequence[Extents | None]
) -> Extents | None:
    """Returns the elements of an operator's result, from those of its operands.

    Args:
        name: The operator; its result has rank 0 or 1.
        parts: The elements of each operand, None where they are not known.

    Returns:
        None where the elements do not follow.
    """
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or not known:
        return None
    if name == "Concat":
        joined = [dim for part in known for dim in part]
        return joined if len(joined) <= MOST else None
    if isinstance(attributes, CastAttrs):
        return _cast_extents(attributes.to, known[0])
    if name in ("Squeeze", "Unsqueeze", "Identity", "Reshape"):
        return known[0]
    if isinstance(attributes, SliceAttrs):
        return _sliced(attributes, known[0])
    if name == "Gather" and isinstance(attributes, AxisAttrs):
        return _gathered(known[0], known[1])
    if name == "Where" and len(known) == 3:
        return _elementwise(known, _selected)
    if name in ("ReduceProd", "Size"):
        found = product(known[0])
        return None if found is None else [found]
    operation = _BINARY.get(name)
    return None if operation is None or len(known) != 2 else _elementwise(known, operation)


def counted_extent(start: Dim, limit: Dim) -> Dim | None:
    """Returns how many numbers there are from ``start`` to ``limit``; None where it may be none."""
    found = _difference(limit, start)
    return found if found is not None and not_negative(found) else None


def sliced_shape(shape: Shape, parts: Sequence[Extents | None]) -> tuple[Dim | None, ...] | None:
    """Returns the shape of a Slice whose bounds are computed from shapes.

    Args:
        shape: That of the data.
        parts: Starts, ends, axes and steps; None where they are not known.
    """
    if shape is None or len(parts) < 3 or None in parts[:3]:
        return None
    starts, ends, axes = (part or [] for part in parts[:3])
    steps = parts[3] if len(parts) > 3 else [1] * len(axes)
    result: list[Dim | None] = list(shape)
    if steps is None or any(not isinstance(axis, int) for axis in axes):
        return None
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = int(axis) % len(shape)
        rest = counted_extent(end, shape[at])
        whole = start == 0 and step == 1 and not_negative(end) and rest is not None
        result[at] = end if whole else None
    return tuple(result)


def not_negative(dim: Dim) -> bool:
    """True where an extent is not negative whatever the names in it stand for."""
    if isinstance(dim, int):
        return dim >= 0
    return all(coefficient > 0 for _, coefficient in terms(dim))


def _cast_extents(to: DType, data: Extents) -> Extents | None:
    if to not in (DType.INT32, DType.INT64):
        return None
    return data if all(isinstance(i, str) or to.qmin <= i <= to.qmax for i in data) else None


def _sliced(attributes: SliceAttrs, data: Extents) -> Extents | None:
    if attributes.axes != (0,):
        return None
    start, end, step = attributes.starts[0], attributes.ends[0], attributes.steps[0]
    return data[0 if step < 0 and start < -len(data) else start : end : step]


def _gathered(data: Extents, indices: Extents) -> Extents | None:
    picks = [i for i in indices if isinstance(i, int)]
    if len(picks) == len(indices) and all(-len(data) <= i < len(data) for i in picks):
        return [data[i] for i in picks]
    return None


def _elementwise(parts: Sequence[Extents], operation: Callable[..., Dim | None]) -> Extents | None:
    length = max(len(part) for part in parts)
    if any(len(part) not in (1, length) for part in parts):
        return None
    rows = zip(*(part * length if len(part) == 1 else part for part in parts), strict=False)
    found = [operation(*row) for row in rows]
    kept = [dim for dim in found if dim is not None]
    return kept if len(kept) == len(found) else None


def _selected(condition: Dim, a: Dim, b: Dim) -> Dim | None:
    return None if isinstance(condition, str) else (a if condition else b)


def _difference(a: Dim, b: Dim) -> Dim | None:
    return total([a, product([b, -1])])


def _quotient(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int) and a >= 0 and b > 0:
        return a // b
    return quotient(a, b)


def _equal(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    if a == b:
        return 1
    number, name = (a, b) if isinstance(a, int) else (b, a)
    return 0 if isinstance(number, int) and number < 0 and not_negative(name) else None


_BINARY: dict[str, Callable[[Dim, Dim], Dim | None]] = {
    "Add": lambda a, b: total([a, b]),
    "Sub": _difference,
    "Mul": lambda a, b: product([a, b]),
    "Div": _quotient,
    "Equal": _equal,
}

FOLLOWED = (
    "Concat", "Cast", "Squeeze", "Unsqueeze", "Identity", "Reshape", "Slice", "Gather", "Where",
    *_BINARY,
)  # fmt: skip
"""Rows of the operator table that :func:`computed_extents` follows."""


# ---- Shape: the extents of a tensor as numbers ---------------------------------------------------


def _compute_shape_op(attributes: ShapeAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (np.array(x.shape[attributes.start : attributes.end], np.int64),)


SHAPE = Row(
    name="Shape", flow=Flow.FLOAT, attributes=ShapeAttrs, compute=_compute_shape_op, data=(),
    onnx=(
        OnnxOp(
            name="Shape", defaults={"start": 0, "end": None}, later={"start": 15, "end": 15},
            unsaid=("start", "end"),
        ),
    ),
    numerics="Extents, exact; the same of a tensor and of its stored integers.",
)  # fmt: skip

OPERATORS = (SHAPE,)
