"""Products of integers, and of as many axes as an equation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.broadcasting import spread
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_MOST_AXES = 3


def _matmul_integer(site: CompositionSite) -> Sequence[Expr]:
    """``(a - za) @ (b - zb)`` in int32; TVM's importer loses shapes where extents are open."""
    operands = [_shifted(site, 0, 2, axis=-2), _shifted(site, 1, 3, axis=-1)]
    return [site("matmul", *site.scope.aligned(operands, 2), out_dtype="int32")]


def _conv_integer(site: CompositionSite) -> Sequence[Expr]:
    """``Conv(x - zx, w - zw)`` in int32: what is padded is the zero point."""
    x, w = _shifted(site, 0, 2, axis=1), _shifted(site, 1, 3, axis=0)
    window = window_of(site.onnx, kernel_of(site.onnx, 1))
    rank = len(window.kernel)
    if rank > _MOST_AXES:
        raise NoRow(f"its windows have {rank} axes")
    attributes = {
        "strides": window.strides,
        "padding": window.pads,
        "dilation": window.dilations,
        "groups": site.onnx.int_("group", 1),
    }
    return [site(f"nn.conv{rank}d", x, w, out_dtype="int32", **attributes)]


def _einsum(site: CompositionSite) -> Sequence[Expr]:
    """Relax's operator, so that half floats are summed in float32; TVM's importer writes loops."""
    operands = [site.arg(index) for index in range(len(site.node.inputs))]
    return [site("einsum", operands, site.onnx.string("equation", ""))]


def _shifted(site: CompositionSite, index: int, zero_index: int, *, axis: int) -> Expr:
    """Returns an operand less its zero point: one for all, or one for each element of an axis."""
    wide = site.cast(site.arg(index), "int32")
    if not site.has(zero_index):
        return wide
    shift = site.cast(site.arg(zero_index), "int32")
    extents, whole = site.extents(shift), site.extents(wide)
    if extents not in ([], [1]):
        if len(extents) == 1 and len(whole) > 1:
            shift = site.along(shift, axis % len(whole), len(whole))
        shift = site.scope.emit(spread(site.scope, shift, whole))
    return site("subtract", wide, shift)


PRODUCTS: Mapping[str, Composition] = {
    "ConvInteger": _conv_integer,
    "Einsum": _einsum,
    "MatMulInteger": _matmul_integer,
}
