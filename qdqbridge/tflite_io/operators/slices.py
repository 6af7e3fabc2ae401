"""TFLite's slices: SLICE, and STRIDED_SLICE with its masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op

_FAR = (1 << 31) - 1
"""An end behind every extent."""


def slices(c: SubgraphConversion, op: Op) -> None:
    """SLICE (tensor, begin, size); a size of -1 reaches to the end."""
    x = c.real(op.inputs[0])
    begin, size = c.array(op.inputs[1]), c.array(op.inputs[2])
    if begin is not None and size is not None:
        begin, size = begin.reshape(-1).astype(np.int64), size.reshape(-1).astype(np.int64)
        starts, ends = c.longs(begin), c.longs(np.where(size < 0, _FAR, begin + size))
    else:
        starts, sizes = c.long(op, 1), c.long(op, 2)
        open_ = c.to.node("Less", [sizes, c.to.constant(np.int64(0))])
        far = c.to.constant(np.int64(_FAR))
        ends = c.to.node("Where", [open_, far, c.to.node("Add", [starts, sizes])])
    c.put(op, c.to.node("Slice", [x, starts, ends], label=c.label(op)))


def strided_slice(c: SubgraphConversion, op: Op) -> None:
    """STRIDED_SLICE, Python's indexing: masks say what is left out, new, or a single index."""
    masks = {
        name: int(op.option(f"{name}Mask"))
        for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }
    rank, entries = c.rank(op.inputs[0]), c.shape(op.inputs[1])[0]
    strides = c.numbers(op, 3)
    starts, ends = c.long(op, 1), c.long(op, 2)
    if bool(op.option("Offset", False)):
        ends = c.to.node("Add", [starts, ends])
    indexed = _indexed(rank, entries, masks)
    picked = [entry for entry, _, _ in indexed]
    starts, ends = (_picked(c, vector, picked, entries) for vector in (starts, ends))
    single = np.asarray([bool(masks["ShrinkAxis"] >> e & 1) for e in picked])
    steps = np.asarray([1 if one else strides[e] for e, one in zip(picked, single, strict=True)])
    if 0 in steps:
        raise UnknownForm("a stride is 0")
    if single.any():
        last = c.to.node("Equal", [starts, c.to.constant(np.int64(-1))])
        after = c.to.node("Add", [starts, c.to.constant(np.int64(1))])
        far = c.to.constant(np.int64(_FAR))
        after = c.to.node("Where", [last, far, after])
        ends = c.to.node("Where", [c.to.constant(single), after, ends])
    starts = _masked(c, starts, [masks["Begin"] >> e & 1 for e in picked] & ~single, steps, 0)
    ends = _masked(c, ends, [masks["End"] >> e & 1 for e in picked] & ~single, steps, 1)
    x = c.real(op.inputs[0])
    if picked:
        axes = c.longs([axis for _, axis, _ in indexed])
        x = c.to.node("Slice", [x, starts, ends, axes, c.longs(steps)], label=c.label(op))
    dropped = [axis for (_, axis, _), one in zip(indexed, single, strict=True) if one]
    if dropped:
        x = c.to.node("Squeeze", [x, c.longs(dropped)], label=c.label(op))
    new = _new_axes(rank, entries, masks)
    if new:
        x = c.to.node("Unsqueeze", [x, c.longs(new)], label=c.label(op))
    c.put(op, x)


def _layout(rank: int, entries: int, masks: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Returns kind, entry and axis of what an index expression says, from left to right."""
    new = [e for e in range(entries) if masks["NewAxis"] >> e & 1]
    ellipsis = next((e for e in range(entries) if masks["Ellipsis"] >> e & 1), None)
    own = entries - len([e for e in new if e != ellipsis]) - (ellipsis is not None)
    skipped = rank - own
    if skipped < 0:
        raise UnknownForm(f"it indexes {own} axes of a tensor of rank {rank}")
    found: list[tuple[str, int, int]] = []
    axis = 0
    for entry in range(entries):
        if entry == ellipsis:
            found += [("whole", entry, axis + i) for i in range(skipped)]
            axis += skipped
        elif entry in new:
            found.append(("new", entry, -1))
        else:
            found.append(("index", entry, axis))
            axis += 1
    found += [("whole", -1, rest) for rest in range(axis, rank)]
    return found


def _indexed(rank: int, entries: int, masks: Mapping[str, int]) -> list[tuple[int, int, str]]:
    layout = _layout(rank, entries, masks)
    return [(entry, axis, kind) for kind, entry, axis in layout if kind == "index"]


def _new_axes(rank: int, entries: int, masks: Mapping[str, int]) -> list[int]:
    """Returns the places of new axes in the result."""
    places: list[int] = []
    place = 0
    for kind, entry, _ in _layout(rank, entries, masks):
        if kind == "index" and masks["ShrinkAxis"] >> entry & 1:
            continue
        if kind == "new":
            places.append(place)
        place += 1
    return places


def _picked(c: SubgraphConversion, vector: str, entries: Sequence[int], count: int) -> str:
    if list(entries) == list(range(count)):
        return vector
    return c.to.node("Gather", [vector, c.longs(entries)], axis=0)


def _masked(
    c: SubgraphConversion, vector: str, masked: np.ndarray, steps: np.ndarray, end: int
) -> str:
    """Returns starts or ends that reach to where a mask says "from the first, to the last"."""
    if not masked.any():
        return vector
    far = np.where((steps > 0) == bool(end), _FAR, -_FAR if end else 0)
    return c.to.node("Where", [c.to.constant(masked), c.longs(far), vector])


ROWS: Mapping[str, Row] = {
    "SLICE": slices,
    "STRIDED_SLICE": strided_slice,
}
