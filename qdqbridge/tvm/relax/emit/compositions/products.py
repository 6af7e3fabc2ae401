"""Products of integers, and of as many axes as an equation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.broadcasting import Extent, common, known_to_agree, spread
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

# --------------------------------------------------------------------------------------------------
# A MatMulNBits whose zero points lie between codes: loops over its weight as it is stored.

_KIND = "float32"


def _compose_matmul_nbits(context: CompositionContext) -> Sequence[Expr]:
    """``y[m, n] = sum of x[m, k] * (code[n, k] - zero point) * scale + bias[n]``, in float32.

    Source: onnxruntime docs/ContribOperators.md.
    """
    names = ("N", "K", "bits", "block_size", "weight_prepacked")
    rows, columns, bits, block, prepacked = (context.onnx.int_(name, 0) for name in names)
    bits = bits or 4
    if min(rows, columns, block) < 1 or bits not in (2, 4, 8) or prepacked or context.has(4):
        raise NoRow("its weight is packed in another way")
    if not context.has(3) or not context.dtype(context.arg(3)).startswith(("float", "bfloat")):
        raise NoRow("its zero points are no floats")
    blocks, each = -(-columns // block), 8 // bits
    x = wide(context, context.arg(0))
    shape = context.extents(x)
    if shape[-1] != columns:
        raise NoRow(f"it multiplies {shape[-1]} columns by {columns}")
    flat = context("reshape", x, (-1, columns))
    weight = context("reshape", context.arg(1), (rows, blocks * block // each))
    scale, zero = (
        context("reshape", wide(context, context.arg(i)), (rows, blocks)) for i in (2, 3)
    )

    def product(data: te.Tensor, codes: te.Tensor, s: te.Tensor, z: te.Tensor) -> te.Tensor:
        axis: Any = te.reduce_axis((0, columns), "k")

        def term(m: Expr, n: Expr) -> Expr:
            byte = codes(n, axis // each).astype("int32")
            code = (byte >> (axis % each * bits).astype("int32")) & ((1 << bits) - 1)
            own = axis // block
            return te.sum(data(m, axis) * ((code.astype(_KIND) - z(n, own)) * s(n, own)), axis=axis)

        total: Any = te.compute((data.shape[0], rows), term, name="packed_product")
        return total

    made = loops(context, "packed_product", product, flat, weight, scale, zero)
    made = context("reshape", made, (*shape[:-1], rows))
    if context.has(5):
        made = context("add", made, wide(context, context.arg(5)))
    return [context.cast(made, context.dtype(context.arg(0)))]


PACKED_PRODUCTS: Mapping[str, Composition] = {"MatMulNBits": _compose_matmul_nbits}
"""By the operator's name in the domain com.microsoft."""


# --------------------------------------------------------------------------------------------------

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
