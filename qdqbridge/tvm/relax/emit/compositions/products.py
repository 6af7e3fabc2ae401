"""Products of integers, and of as many axes as an equation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.broadcasting import Extent, common, known_to_agree, spread
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_MOST_AXES = 3


def _matmul_integer(context: CompositionContext) -> Sequence[Expr]:
    """``(a - za) @ (b - zb)`` in int32; TVM's importer loses shapes where extents are open."""
    operands = [_shifted(context, 0, 2, axis=-2), _shifted(context, 1, 3, axis=-1)]
    return [context("matmul", *context.emitter.aligned(operands, 2), out_dtype="int32")]


def _conv_integer(context: CompositionContext) -> Sequence[Expr]:
    """``Conv(x - zx, w - zw)`` in int32: what is padded is the zero point."""
    x, w = _shifted(context, 0, 2, axis=1), _shifted(context, 1, 3, axis=0)
    window = window_of(context.onnx, kernel_of(context.onnx, 1))
    rank = len(window.kernel)
    if rank > _MOST_AXES:
        raise NoRow(f"its windows have {rank} axes")
    attributes = {
        "strides": window.strides,
        "padding": window.pads,
        "dilation": window.dilations,
        "groups": context.onnx.int_("group", 1),
    }
    return [context(f"nn.conv{rank}d", x, w, out_dtype="int32", **attributes)]


def _einsum(context: CompositionContext) -> Sequence[Expr]:
    """Relax's operator, so that half floats are summed in float32; TVM's importer writes loops.

    It knows nothing of extents that are 1 at run time where another operand has more.
    """
    equation = context.onnx.string("equation", "")
    operands = [context.arg(index) for index in range(len(context.node.inputs))]
    terms = [term.replace(" ", "") for term in equation.partition("->")[0].split(",")]
    columns: dict[str, list[Extent]] = {}
    if "." not in equation and len(terms) == len(operands):
        for term, operand in zip(terms, operands, strict=True):
            for label, extent in zip(term, context.extents(operand), strict=True):
                columns.setdefault(label, []).append(extent)
    unsure = {label for label, column in columns.items() if not known_to_agree(column)}
    for index, term in enumerate(terms):
        if not unsure.isdisjoint(term):
            shape = [
                common(columns[label]) if label in unsure else extent
                for label, extent in zip(term, context.extents(operands[index]), strict=True)
            ]
            operands[index] = context.emitter.emit(spread(context.emitter, operands[index], shape))
    return [context("einsum", operands, equation)]


def _shifted(context: CompositionContext, index: int, zero_index: int, *, axis: int) -> Expr:
    """Returns an operand less its zero point: one for all, or one for each element of an axis."""
    wide = context.cast(context.arg(index), "int32")
    if not context.has(zero_index):
        return wide
    shift = context.cast(context.arg(zero_index), "int32")
    extents, whole = context.extents(shift), context.extents(wide)
    if extents not in ([], [1]):
        if len(extents) == 1 and len(whole) > 1:
            shift = context.along(shift, axis % len(whole), len(whole))
        shift = context.emitter.emit(spread(context.emitter, shift, whole))
    return context("subtract", wide, shift)


PRODUCTS: Mapping[str, Composition] = {
    "ConvInteger": _conv_integer,
    "Einsum": _einsum,
    "MatMulInteger": _matmul_integer,
}
