"""What goes by indices: gathers, scatters, the largest, and shapes as numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.operators.movement import need_known
from qdqbridge.tflite_io.schema import Op

_LISTED = 1 << 20
"""Up to so many numbers are written out."""


def gather(c: SubgraphConversion, op: Op) -> None:
    """GATHER along one axis; per batch where the first axes of both operands are the same."""
    x, places = c.real(op.inputs[0]), c.long(op, 1)
    axis, batches = int(op.option("Axis")), int(op.option("BatchDims"))
    if batches == 0:
        c.put(op, c.to.node("Gather", [x, places], label=c.label(op), axis=axis))
        return
    rank, listed = c.rank(op.inputs[0]), c.rank(op.inputs[1])
    batches += listed if batches < 0 else 0
    axis += rank if axis < 0 else 0
    if not 0 < batches <= min(axis, listed) or axis >= rank:
        raise UnknownForm(f"it gathers along axis {axis}, {batches} axes of batches")
    if axis > batches:  # GatherND wants the gathered axis first, and leaves the places there
        between = list(range(batches, axis))
        perm = [*range(batches), axis, *between, *range(axis + 1, rank)]
        x = c.to.node("Transpose", [x], perm=perm)
    rows = c.to.node("Unsqueeze", [places, c.longs([listed])])
    found = c.to.node("GatherND", [x, rows], label=c.label(op), batch_dims=batches)
    if axis > batches:
        middle = list(range(listed, listed + axis - batches))
        rest = range(listed + axis - batches, listed + rank - batches - 1)
        perm = [*range(batches), *middle, *range(batches, listed), *rest]
        found = c.to.node("Transpose", [found], perm=perm)
    c.put(op, found)


def gather_nd(c: SubgraphConversion, op: Op) -> None:
    """GATHER_ND."""
    operands = [c.real(op.inputs[0]), c.long(op, 1)]
    c.put(op, c.to.node("GatherND", operands, label=c.label(op)))


def scatter_nd(c: SubgraphConversion, op: Op) -> None:
    """SCATTER_ND (indices, updates, shape): sums into zeros."""
    zero = c.to.constant(np.zeros((), c.dtype(c.tensor(op.outputs[0])).numpy))
    base = c.to.node("Expand", [zero, c.long(op, 2)])
    operands = [base, c.long(op, 0), c.real(op.inputs[1])]
    c.put(op, c.to.node("ScatterND", operands, label=c.label(op), reduction="add"))


def top_k(c: SubgraphConversion, op: Op) -> None:
    """TOPK_V2 along the last axis."""
    count = c.to.node("Reshape", [c.long(op, 1), c.longs([1])])
    values, index = c.to.nodes("TopK", [c.real(op.inputs[0]), count], 2, label=c.label(op), axis=-1)
    c.put(op, values)
    c.put_stored(op, c.cast(index, c.dtype(c.tensor(op.outputs[1]))), 1)
    c.wide_names[op.outputs[1]] = index


def one_hot(c: SubgraphConversion, op: Op) -> None:
    """ONE_HOT (indices, depth, on, off); a negative index is none: ONNX counts from the end."""
    on, off = (c.to.node("Reshape", [c.real(op.inputs[i]), c.longs([1])]) for i in (2, 3))
    index, depth = c.long(op, 0), c.long(op, 1)
    negative = c.to.node("Less", [index, c.to.constant(np.int64(0))])
    index = c.to.node("Where", [negative, depth, index])
    operands = [index, depth, c.to.node("Concat", [off, on], axis=0)]
    c.put(op, c.to.node("OneHot", operands, label=c.label(op), axis=int(op.option("Axis", -1))))


def where(c: SubgraphConversion, op: Op) -> None:
    """WHERE: the positions of what is not zero, a row each."""
    found = c.to.node("NonZero", [c.stored(op.inputs[0])], label=c.label(op))
    c.put_stored(op, c.to.node("Transpose", [found], perm=[1, 0]))


def update_slice(c: SubgraphConversion, op: Op) -> None:
    """DYNAMIC_UPDATE_SLICE (tensor, update, starts): starts are clamped so that it fits."""
    x, update = c.real(op.inputs[0]), c.real(op.inputs[1])
    extents, sizes = c.shape(op.inputs[0]), c.shape(op.inputs[1])
    need_known((*extents, *sizes))
    starts = c.to.node(
        "Min",
        [c.long(op, 2), c.longs([e - s for e, s in zip(extents, sizes, strict=True)])],
    )
    starts = c.to.node("Max", [starts, c.to.constant(np.zeros(len(sizes), np.int64))])
    if int(np.prod(sizes, dtype=object)) * len(sizes) > _LISTED:
        raise UnknownForm("it updates more than a million elements")
    grid = np.stack(np.meshgrid(*(np.arange(s) for s in sizes), indexing="ij"), axis=-1)
    places = c.to.node("Add", [c.to.constant(grid.astype(np.int64)), starts])
    c.put(op, c.to.node("ScatterND", [x, places, update], label=c.label(op)))


def shape(c: SubgraphConversion, op: Op) -> None:
    """SHAPE."""
    found = c.to.node("Shape", [c.stored(op.inputs[0])], label=c.label(op))
    kind = c.dtype(c.tensor(op.outputs[0]))
    c.put_stored(op, found if kind is DType.INT64 else c.cast(found, kind))


def rank(c: SubgraphConversion, op: Op) -> None:
    """RANK, which is known."""
    c.put_stored(op, c.to.constant(np.asarray(c.rank(op.inputs[0]), np.int32)))


def number_range(c: SubgraphConversion, op: Op) -> None:
    """RANGE (start, limit, delta); of constant floats TFLite's count, which it takes in float32."""
    given = [c.array(i) for i in op.inputs]
    if all(array is not None and array.dtype == np.float32 for array in given):
        start, limit, delta = (array.reshape(()) for array in given if array is not None)
        with np.errstate(all="ignore"):
            count = np.ceil(np.abs((limit - start) / delta))
        if count < _LISTED:
            steps = np.full(int(count), delta, np.float32)
            steps[:1] = start
            numbers = np.add.accumulate(steps, dtype=np.float32)
            c.put_stored(op, c.to.constant(numbers))
            return
    scalars = [c.to.node("Reshape", [c.stored(i), c.longs([])]) for i in op.inputs]
    c.put_stored(op, c.to.node("Range", scalars, label=c.label(op)))


ROWS: Mapping[str, Row] = {
    "DYNAMIC_UPDATE_SLICE": update_slice,
    "GATHER": gather,
    "GATHER_ND": gather_nd,
    "ONE_HOT": one_hot,
    "RANGE": number_range,
    "RANK": rank,
    "SCATTER_ND": scatter_nd,
    "SHAPE": shape,
    "TOPK_V2": top_k,
    "WHERE": where,
}
