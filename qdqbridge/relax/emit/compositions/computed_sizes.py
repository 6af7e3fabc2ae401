"""ConstantOfShape and Resize, whose extents are an operand, and SpaceToDepth's other order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.foreign import ForeignAttrs
from qdqbridge.ops.attributes import ResizeAttrs
from qdqbridge.qnn.dialect.resize import open_resize
from qdqbridge.qnn.emit.dtypes import tvm_dtype
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, CompositionSite

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                "asymmetric")  # fmt: skip
_SIZES = 3


def _extents(site: CompositionSite, vector: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents of the function."""
    if site.rank(vector) != 1:
        raise NoRow("its extents are no vector")
    (count,) = site.static(vector)
    variables: list[Any] = [tirx.Var(f"size_{i}", "int64") for i in range(count)]
    found = site.scope.emit(relax.op.tensor_to_shape(vector))
    site.scope.builder.match_cast(found, relax.ShapeType(variables))
    return variables


def _constant_of_shape(site: CompositionSite) -> Sequence[Expr]:
    dtype, attributes = site.result_dtype(), site.node.attributes
    assert isinstance(attributes, ForeignAttrs)
    if dtype.is_small_float or not (dtype.is_integer or dtype.is_float):
        raise NoRow(f"a tensor of {dtype} is filled")
    value = attributes.node.number("value") or 0
    fill = site.scope.number(np.asarray(value, tvm_dtype(dtype)))
    extents = _extents(site, site.arg(0))
    return [relax.op.full(relax.ShapeExpr(extents), fill, tvm_dtype(dtype))]


def _resize(site: CompositionSite) -> Sequence[Expr]:
    """Resize to sizes of run time: batch and channels stay, which is checked where it matters."""
    onnx, x = site.onnx, site.arg(0)
    mode = onnx.string("mode", "nearest")
    coordinates = onnx.string("coordinate_transformation_mode", "half_pixel")
    policy = onnx.string("keep_aspect_ratio_policy", "stretch")
    rank = site.scope.rank(x)
    if len(site.node.inputs) <= _SIZES or onnx.optional(_SIZES) is None or onnx.opset < 11:
        raise NoRow("its scales are known at run time only")
    if onnx.operand(_SIZES).constant is not None or onnx.ints("axes", None) is not None:
        raise NoRow("it resizes some axes")
    if coordinates not in _COORDINATES or policy != "stretch" or onnx.flag("antialias"):
        raise NoRow("it crops, smooths or keeps an aspect ratio")
    if mode != "nearest" and rank not in (3, 4, 5):
        raise NoRow(f"it interpolates {rank} axes")
    attributes = ResizeAttrs(
        mode, coordinates, onnx.string("nearest_mode", "round_prefer_floor"), None, (1,) * rank,
        cubic_coeff_a=onnx.float_("cubic_coeff_a", -0.75),
        exclude_outside=mode == "cubic" and onnx.flag("exclude_outside"),
    )  # fmt: skip
    dtype = site.scope.dtype(x)
    if dtype not in ("float32", "float16"):
        raise NoRow(f"it resizes {dtype}")
    extents = _extents(site, site.arg(_SIZES))
    if mode != "nearest":  # which axes are interpolated depends on which are resized
        for axis in range(2):
            site.scope.need_same(extents[axis], site.scope.extents(x)[axis])

    def resize(data: te.Tensor, zero: te.Tensor) -> te.Tensor:
        return open_resize(attributes, data, extents, zero)

    fence = site.scope.number(np.zeros(2, np.int32))
    real = site.scope.cast(x, "float32")
    call = site.scope.builder.call_te(resize, real, fence, primfunc_name_hint="resize")
    return [site.scope.cast(site.scope.emit(call), dtype)]


def _space_to_depth(site: CompositionSite) -> Sequence[Expr]:
    """Blocks of space behind each channel (mode CRD, opset 28); TVM's importer has one order."""
    x, size = site.arg(0), site.onnx.int_("blocksize", 1)
    n, c, h, w = site.extents(x)
    split = site("reshape", x, (n, c, h // size, size, w // size, size))
    permuted = site("permute_dims", split, [0, 1, 3, 5, 2, 4])
    return [site("reshape", permuted, (n, c * size * size, h // size, w // size))]


COMPUTED_SIZES: Mapping[str, Composition] = {
    "ConstantOfShape": _constant_of_shape,
    "Resize": _resize,
    "SpaceToDepth": _space_to_depth,
}
