"""ConstantOfShape and AffineGrid, whose extents are an operand, and SpaceToDepth's other order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, wide


def extents_of(context: CompositionContext, vector: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents of the function."""
    if context.rank(vector) != 1:
        raise NoRow("its extents are no vector")
    (count,) = context.static(vector)
    variables: list[Any] = [tirx.Var(f"size_{i}", "int64") for i in range(count)]
    found = context.emitter.emit(relax.op.tensor_to_shape(vector))
    context.emitter.builder.match_cast(found, relax.ShapeType(variables))
    return variables


def _constant_of_shape(context: CompositionContext) -> Sequence[Expr]:
    dtype, attributes = context.result_dtype(), context.node.record(OpaqueAttrs)
    if dtype.is_small_float or not (dtype.is_integer or dtype.is_float):
        raise NoRow(f"a tensor of {dtype} is filled")
    value = attributes.node.number("value") or 0
    fill = context.emitter.number(np.asarray(value, tvm_dtype(dtype)))
    extents = extents_of(context, context.arg(0))
    return [relax.op.full(relax.ShapeExpr(extents), fill, tvm_dtype(dtype))]


def _space_to_depth(context: CompositionContext) -> Sequence[Expr]:
    """Blocks of space behind each channel (mode CRD, opset 28); TVM's importer has one order."""
    x, size = context.arg(0), context.onnx.int_("blocksize", 1)
    n, c, h, w = context.extents(x)
    split = context("reshape", x, (n, c, h // size, size, w // size, size))
    permuted = context("permute_dims", split, [0, 1, 3, 5, 2, 4])
    return [context("reshape", permuted, (n, c * size * size, h // size, w // size))]


def _affine_grid(context: CompositionContext) -> Sequence[Expr]:
    """Where each pixel of a result looks, from -1 to 1, as a matrix per image says; x comes first.

    An axis of one pixel with ``align_corners`` looks at 1, as in onnxruntime: ONNX divides by 0.
    """
    theta = wide(context, context.arg(0))
    count, axes, columns = context.extents(theta)
    size = context.integers(1)
    if columns != axes + 1 or context.static(size) != (axes + 2,):
        raise NoRow(f"its matrices are of {axes} x {columns}, its size of {context.static(size)}")
    images, _, *space = context.constant_ints(1) or context.bound(size)
    context.emitter.need_same(count, images)
    result = _column(context, theta, axes)
    for column, extent in enumerate(reversed(space)):
        place = context.along(
            _pixels(context, extent, context.dtype(theta)), axes - column, axes + 2
        )
        result = context("add", context("multiply", _column(context, theta, column), place), result)
    return [context.cast(result, context.dtype(context.arg(0)))]


def _column(context: CompositionContext, theta: Expr, column: int) -> Expr:
    """Returns a column of every matrix, with axes of space that broadcast."""
    count, axes, _ = context.extents(theta)
    sliced = context("strided_slice", theta, axes=[2], begin=[column], end=[column + 1])
    return context("reshape", sliced, [count, *[1] * axes, axes])


def _pixels(context: CompositionContext, extent: Any, dtype: str) -> Expr:
    """Returns where pixels are: their middles, or the outer ones at the ends if corners align."""
    aligned, one, two = (
        context.onnx.flag("align_corners"),
        *(context.number(n, "int64") for n in (1, 2)),
    )
    counted = context.counted(extent)
    whole = context.emitter.run_time_extent(counted, 0, "int64")
    below = context("subtract", context("subtract", whole, one), counted)
    parts = context("maximum", context("subtract", whole, one), one) if aligned else whole
    above = context("subtract", parts, context("multiply", below, two))
    top = above if aligned else context("subtract", above, one)
    return context("divide", context.cast(top, dtype), context.cast(parts, dtype))


COMPUTED_SIZES: Mapping[str, Composition] = {
    "AffineGrid": _affine_grid,
    "ConstantOfShape": _constant_of_shape,
    "SpaceToDepth": _space_to_depth,
}
