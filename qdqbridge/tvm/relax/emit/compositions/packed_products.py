"""A MatMulNBits whose zero points lie between codes: loops over its weight as it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

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
