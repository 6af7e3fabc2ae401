"""NonMaxSuppression, as onnxruntime computes it.

TVM's importer takes numbers that only the run knows for others, and what is left out for its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root

_REAL, _COUNT = "float32", "int64"
_INDICES = 3
"""An image, a class, a box."""
_Box = tuple[Any, Any, Any, Any]
"""Where a box begins and ends along two axes: begin, end, begin, end."""


def _suppression(context: CompositionContext) -> Sequence[Expr]:
    """Of each image and class the best boxes, none of which overlaps a better one too far."""
    boxes, scores = context.arg(0), context.arg(1)
    if {context.dtype(boxes), context.dtype(scores)} != {_REAL}:
        raise NoRow("its boxes or scores are no float32")
    images, count, _ = context.extents(boxes)
    _, classes, _ = context.extents(scores)
    for have, want in zip(context.extents(scores), (images, classes, count), strict=True):
        context.emitter.need_same(have, want)
    lowest = -np.inf  # without a threshold every score counts
    limits = [
        context("reshape", context.cast(context.arg(index), kind), (1,)) if context.has(index)
        else context.number([default], kind)
        for index, kind, default in ((2, _COUNT, 0), (3, _REAL, 0.0), (4, _REAL, lowest))
    ]  # fmt: skip
    order = context("argsort", scores, axis=2, descending=True, dtype=_COUNT)
    most = images * classes * count
    rows, found = _call_nms_loops(context, [boxes, scores, order, *limits], most)
    (kept,) = context.bound(found, "kept")
    return [context("strided_slice", rows, axes=[0], begin=[0], end=[kept])]


def _call_nms_loops(context: CompositionContext, operands: Sequence[Expr], most: Any) -> list[Expr]:
    """Emits a call of the loops; returns all rows that there is room for, and how many count."""
    centred = context.onnx.flag("center_point_box")
    thresholded = context.has(4)
    function = _nms_primfunc([context.extents(x) for x in operands[:3]], centred, thresholded)
    variable = context.emitter.builder.add_func(function, "non_max_suppression")
    shapes: Any = ([most, _INDICES], [1])
    types = [relax.TensorType(shape, _COUNT) for shape in shapes]
    args: Any = list(operands)
    both = context.emitter.emit(relax.call_tir(variable, args, types))
    return [context.emitter.emit(context.emitter.item(both, index)) for index in range(2)]


def _nms_primfunc(extents: Sequence[Sequence[Any]], centred: bool, thresholded: bool) -> Any:
    """Returns the PrimFunc ``(boxes, scores, order, most, overlap, score, rows, found)``."""
    opened: dict[str, Any] = {}

    def own(extent: Any) -> Any:
        if isinstance(extent, int):
            return extent
        return opened.setdefault(str(extent), tirx.Var(f"n{len(opened)}", "int64"))

    images, count, _ = map(own, extents[0])
    classes = own(extents[1][1])

    def body() -> None:
        boxes = T.arg("boxes", T.buffer((images, count, 4), _REAL))
        scores = T.arg("scores", T.buffer((images, classes, count), _REAL))
        order = T.arg("order", T.buffer((images, classes, count), _COUNT))
        most = T.arg("most", T.buffer((1,), _COUNT))
        overlap = T.arg("overlap", T.buffer((1,), _REAL))
        lowest = T.arg("lowest", T.buffer((1,), _REAL))
        rows = T.arg("rows", T.buffer((images * classes * count, _INDICES), _COUNT))
        found = T.arg("found", T.buffer((1,), _COUNT))
        with root():
            first = T.alloc_buffer((1,), _COUNT)
            T.buffer_store(found, tirx.const(0, _COUNT), [0])
            with T.serial(images) as image, T.serial(classes) as class_:
                T.buffer_store(first, found[0], [0])
                with T.serial(count) as place:
                    box = order[image, class_, place]
                    wanted = found[0] - first[0] < most[0]
                    if thresholded:
                        wanted = tirx.all(wanted, scores[image, class_, box] > lowest[0])
                    with T.If(wanted), T.Then():
                        alone = _apart(
                            boxes, rows, (image, box), (first[0], found[0]), overlap[0], centred
                        )
                        with T.If(alone), T.Then():
                            for index, each in enumerate((image, class_, box)):
                                T.buffer_store(rows, each, [found[0], index])
                            T.buffer_store(found, found[0] + 1, [0])

    return prim_func(body)


def _apart(
    boxes: Any, rows: Any, at: tuple[Any, Any], kept: tuple[Any, Any], overlap: Any, centred: bool
) -> Any:
    """Emits what looks at the boxes that are kept; returns whether a box is apart from them all."""
    alone = T.alloc_buffer((1,), "bool")
    T.buffer_store(alone, tirx.const(True, "bool"), [0])
    with T.serial(*kept) as other:
        better = _box(boxes, at[0], rows[other, 2], centred)
        apart = tirx.Not(_overlap(better, _box(boxes, *at, centred), overlap))
        T.buffer_store(alone, tirx.all(alone[0], apart), [0])
    return alone[0]


def _box(boxes: Any, image: Any, box: Any, centred: bool) -> _Box:
    a, b, c, d = (boxes[image, box, index] for index in range(4))
    if centred:
        half = [each / tirx.const(2.0, _REAL) for each in (c, d)]
        return a - half[0], a + half[0], b - half[1], b + half[1]
    return tirx.min(a, c), tirx.max(a, c), tirx.min(b, d), tirx.max(b, d)


def _overlap(one: _Box, other: _Box, most: Any) -> Any:
    """True where two boxes share more of what they cover together; those without an area do not."""
    sides = [tirx.min(one[i + 1], other[i + 1]) - tirx.max(one[i], other[i]) for i in (0, 2)]
    none = tirx.const(0.0, _REAL)
    areas = [(b - a) * (d - c) for a, b, c, d in (one, other)]
    shared = sides[0] * sides[1]
    together = areas[0] + areas[1] - shared
    meet = [each > none for each in (*sides, *areas, together)]
    return tirx.all(*meet, shared / together > most)


SUPPRESSION: Mapping[str, Composition] = {"NonMaxSuppression": _suppression}
