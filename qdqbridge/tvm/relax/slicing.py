"""Slices whose places the run computes, also those of no element, whose extent TVM takes for less.

TVM 0.27 gives ``x[3:1]`` the extent -2, and begins in front of the data where a negative step
begins in front of them (ONNX's Slice begins at the first element then).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, te, tirx

from qdqbridge.tvm.qnn.dialect.kernel import stage

Prim = Any
_NO_STEP = -1
"""The extent of a slice whose step is 0, which nothing can be allocated for."""
_FARTHEST = 2**62
"""A step so far leaves any data; sums with longer ones, and their opposites, are no int64."""


def computed_slice(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    """Returns a ``dynamic_strided_slice`` as loops over the extents that ONNX gives it.

    Source: ONNX Slice-13.
    """
    x, begins, ends, steps = call.args
    rank = len(x.ty.shape.values)

    def lengths(x: te.Tensor, begins: te.Tensor, ends: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def length(axis: Prim) -> Prim:
            extent = x.shape[0]
            for other in range(1, rank):
                extent = tirx.Select(axis == other, x.shape[other], extent)
            return _length(extent, begins[axis], ends[axis], steps[axis])

        return stage([rank], length, "slice_extents")

    extents = builder.emit_te(lengths, x, begins, ends, steps, primfunc_name_hint="slice_extents")
    shape: list[Prim] = [tirx.Var("s", "int64") for _ in range(rank)]
    found = builder.emit(relax.op.tensor_to_shape(extents))
    builder.match_cast(found, relax.ShapeType(shape))

    def cut(x: te.Tensor, begins: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def element(*at: Prim) -> Prim:
            return x(*_places(x.shape, at, begins, steps))

        return stage(shape, element, "slice")

    return builder.call_te(cut, x, begins, steps, primfunc_name_hint="slice")


def _places(
    extents: Sequence[Prim], at: Sequence[Prim], begins: te.Tensor, steps: te.Tensor
) -> list[Prim]:
    """Returns where the elements of a result stand in what it is cut from."""
    return [
        _begin(extent, begins[axis], steps[axis]) + place * steps[axis]
        for axis, (extent, place) in enumerate(zip(extents, at, strict=True))
    ]


def _begin(extent: Prim, begin: Prim, step: Prim) -> Prim:
    return _between(_counted(extent, begin), 0, _last(extent, step))


def _last(extent: Prim, step: Prim) -> Prim:
    return tirx.Select(step < 0, extent - 1, extent)


def _counted(extent: Prim, index: Prim) -> Prim:
    return tirx.Select(index < 0, index + extent, index)


def _between(value: Prim, low: Prim, high: Prim) -> Prim:
    """Returns a value within bounds; the upper one where no value is within both."""
    return tirx.min(tirx.max(value, low), high)


def _length(extent: Prim, begin: Prim, end: Prim, step: Prim) -> Prim:
    backwards: Prim = step < 0
    before: Prim = tirx.Select(backwards, _tir_int64(-1), _tir_int64(0))
    end = _between(_counted(extent, end), before, _last(extent, step))
    begin = _begin(extent, begin, step)
    covered: Prim = tirx.Select(backwards, begin - end, end - begin)
    step = _between(step, -_FARTHEST, _FARTHEST)
    size: Prim = tirx.Select(backwards, -step, step)
    none: Prim = size == 0
    stepped = tirx.ceildiv(tirx.max(covered, 0), tirx.Select(none, _tir_int64(1), size))
    return tirx.Select(none, _tir_int64(_NO_STEP), stepped)


def _tir_int64(value: int) -> Prim:
    return tirx.const(value, "int64")
