"""ConstantOfShape and AffineGrid, whose extents are an operand, and SpaceToDepth's other order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.foreign.nodes import ForeignAttrs
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite, wide


def extents_of(site: CompositionSite, vector: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents of the function."""
    if site.rank(vector) != 1:
        raise NoRow("its extents are no vector")
    (count,) = site.static(vector)
    variables: list[Any] = [tirx.Var(f"size_{i}", "int64") for i in range(count)]
    found = site.scope.emit(relax.op.tensor_to_shape(vector))
    site.scope.builder.match_cast(found, relax.ShapeType(variables))
    return variables


def _constant_of_shape(site: CompositionSite) -> Sequence[Expr]:
    dtype, attributes = site.result_dtype(), site.node.record(ForeignAttrs)
    if dtype.is_small_float or not (dtype.is_integer or dtype.is_float):
        raise NoRow(f"a tensor of {dtype} is filled")
    value = attributes.node.number("value") or 0
    fill = site.scope.number(np.asarray(value, tvm_dtype(dtype)))
    extents = extents_of(site, site.arg(0))
    return [relax.op.full(relax.ShapeExpr(extents), fill, tvm_dtype(dtype))]


def _space_to_depth(site: CompositionSite) -> Sequence[Expr]:
    """Blocks of space behind each channel (mode CRD, opset 28); TVM's importer has one order."""
    x, size = site.arg(0), site.onnx.int_("blocksize", 1)
    n, c, h, w = site.extents(x)
    split = site("reshape", x, (n, c, h // size, size, w // size, size))
    permuted = site("permute_dims", split, [0, 1, 3, 5, 2, 4])
    return [site("reshape", permuted, (n, c * size * size, h // size, w // size))]


def _affine_grid(site: CompositionSite) -> Sequence[Expr]:
    """Where each pixel of a result looks, from -1 to 1, as a matrix per image says; x comes first.

    An axis of one pixel with ``align_corners`` looks at 1, as in onnxruntime: ONNX divides by 0.
    """
    theta = wide(site, site.arg(0))
    count, axes, columns = site.extents(theta)
    size = site.integers(1)
    if columns != axes + 1 or site.static(size) != (axes + 2,):
        raise NoRow(f"its matrices are of {axes} x {columns}, its size of {site.static(size)}")
    images, _, *space = site.constant_ints(1) or site.bound(size)
    site.scope.need_same(count, images)
    result = _column(site, theta, axes)
    for column, extent in enumerate(reversed(space)):
        place = site.along(_pixels(site, extent, site.dtype(theta)), axes - column, axes + 2)
        result = site("add", site("multiply", _column(site, theta, column), place), result)
    return [site.cast(result, site.dtype(site.arg(0)))]


def _column(site: CompositionSite, theta: Expr, column: int) -> Expr:
    """Returns a column of every matrix, with axes of space that broadcast."""
    count, axes, _ = site.extents(theta)
    sliced = site("strided_slice", theta, axes=[2], begin=[column], end=[column + 1])
    return site("reshape", sliced, [count, *[1] * axes, axes])


def _pixels(site: CompositionSite, extent: Any, dtype: str) -> Expr:
    """Returns where pixels are: their middles, or the outer ones at the ends if corners align."""
    aligned, one, two = site.onnx.flag("align_corners"), *(site.number(n, "int64") for n in (1, 2))
    counted = site.counted(extent)
    whole = site.scope.run_time_extent(counted, 0, "int64")
    below = site("subtract", site("subtract", whole, one), counted)
    parts = site("maximum", site("subtract", whole, one), one) if aligned else whole
    above = site("subtract", parts, site("multiply", below, two))
    top = above if aligned else site("subtract", above, one)
    return site("divide", site.cast(top, dtype), site.cast(parts, dtype))


COMPUTED_SIZES: Mapping[str, Composition] = {
    "AffineGrid": _affine_grid,
    "ConstantOfShape": _constant_of_shape,
    "SpaceToDepth": _space_to_depth,
}
