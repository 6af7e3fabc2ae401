"""ConstantOfShape, whose extents are an operand, and SpaceToDepth's other order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.foreign.nodes import ForeignAttrs
from qdqbridge.qnn.emit.dtypes import tvm_dtype
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, CompositionSite


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


COMPUTED_SIZES: Mapping[str, Composition] = {
    "ConstantOfShape": _constant_of_shape,
    "SpaceToDepth": _space_to_depth,
}
