"""qnn.dense and qnn.batch_matmul: exact integer products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import BLOCK, Prim, entry, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import Attribute, CallContext, Extent, QnnOp, ResultType
from qdqbridge.tvm.qnn.dialect.elementwise import broadcast_indices, broadcast_shape
from qdqbridge.tvm.qnn.ranges import is_code

# What the accumulating operators share: ranges, the accumulator's type, centred operands.

OUT_DTYPE = Attribute("out_dtype", "int32", "int32, or int64 where int32 could overflow")
SIX = (
    "data",
    "weight",
    "input_zero_point",
    "kernel_zero_point",
    "input_scale",
    "kernel_scale",
)


def check_operands(context: CallContext) -> str:
    """Checks the types of both operands and ``out_dtype``, which is returned."""
    for index in (0, 1):
        if not is_code(context.dtype(index)):
            context.fail(
                f"{context.arguments[index]} has dtype {context.dtype(index)}",
                "give an 8- or 16-bit integer",
            )
    context.expect_params(4, 2)
    out = context.attr("out_dtype")
    if out not in ("int32", "int64"):
        context.fail(f"out_dtype is {out}", "use int32 or int64")
    return out


def narrow_dtype(dtype: str) -> str:
    """Returns the smallest type that holds every ``code - zero_point``."""
    return "int16" if dtype in ("int8", "uint8") else "int32"


def centred(code: Prim, zero_point: Prim, dtype: str) -> Prim:
    """Returns ``code - zero_point`` in :func:`narrow_dtype` of the codes' type."""
    return (code.astype("int32") - zero_point).astype(narrow_dtype(dtype))


def padded_codes(
    x: te.Tensor, zero_point: te.Tensor, pads: Sequence[tuple[int, int]], dtype: str | None = None
) -> te.Tensor:
    """Returns ``x - zero_point`` with zeros around it.

    Args:
        x: Codes.
        zero_point: One entry.
        pads: Elements before and after, for each axis.
        dtype: Of the result; None for :func:`narrow_dtype` of the codes'.
    """
    narrow = dtype or narrow_dtype(str(x.dtype))
    shape = [extent + sum(pair) for extent, pair in zip(x.shape, pads, strict=True)]

    def element(*i: Prim) -> Prim:
        where = [v - begin if begin else v for v, (begin, _) in zip(i, pads, strict=True)]
        inside = [
            term
            for d, (begin, end) in enumerate(pads)
            for term in (
                *([where[d] >= 0] if begin else []),
                *([where[d] < x.shape[d]] if end else []),
            )
        ]
        value = (x(*where).astype("int32") - zero_point[0]).astype(narrow)
        if not inside:
            return value
        nothing = tirx.const(0, narrow)
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return stage(shape, element, name="centred_data")


def expect_rows(context: CallContext) -> tuple[list[Extent], list[Extent]]:
    """Returns the shapes of data and of a weight whose rows are multiplied with those of data."""
    x, w = context.shape(0), context.expect_rank(1, 2)
    if not x:
        context.fail("data is a scalar", "give it at least one axis")
    context.expect_equal(x[-1], w[1], "the last axes of data and weight")
    return x, w


def centred_weight(w: te.Tensor, zero_point: te.Tensor) -> te.Tensor:
    """Returns a weight less the zero points of its rows."""
    return stage(
        w.shape,
        lambda u, k: centred(w(u, k), entry(zero_point, (u,), 0), str(w.dtype)),
        name="centred_weight",
    )


def _infer_dense(context: CallContext) -> ResultType:
    out = check_operands(context)
    x, w = expect_rows(context)
    context.expect_params(5, 3, w[0], what="units")
    if context.attr("units"):
        context.expect_equal(context.attr("units"), w[0], "units and the weight")
    return ResultType.of([*x[:-1], w[0]], out)


def _lower_dense(context: CallContext) -> Any:
    dtype, zero_points = context.attr("out_dtype"), context.vector(3)
    shifted = bool(zero_points.any())

    def dense(x: te.Tensor, w: te.Tensor, zx: te.Tensor, *zw: te.Tensor) -> te.Tensor:
        data = stage(x.shape, lambda *i: centred(x(*i), zx[0], str(x.dtype)), name="centred_data")
        weight = centred_weight(w, zw[0]) if shifted else w
        k = te.reduce_axis((0, w.shape[1]), name="k")

        def element(*i: Prim) -> Prim:
            product = data(*i[:-1], k.var).astype(dtype) * weight(i[-1], k.var).astype(dtype)
            return te.sum(product, axis=k)

        return stage([*x.shape[:-1], w.shape[0]], element, name=BLOCK)

    args = [context.args[0], context.args[1], context.const(context.vector(2), "int32")]
    args += [context.const(zero_points, "int32")] if shifted else []
    return context.reduce_te("qnn_dense", dense, args)


def _matrix(context: CallContext, index: int, name: str) -> list[Any]:
    """Returns the shape of an operand with the reduced axis last."""
    shape = context.shape(index)
    if len(shape) < 2:
        context.fail(f"{context.arguments[index]} has {len(shape)} axes", "give it at least 2")
    last = name == "transpose_b"
    return shape if context.attr(name) == last else [*shape[:-2], shape[-1], shape[-2]]


def _infer_matmul(context: CallContext) -> ResultType:
    out = check_operands(context)
    x, y = _matrix(context, 0, "transpose_a"), _matrix(context, 1, "transpose_b")
    context.expect_params(5, 3, y[-2], what="columns")
    context.expect_equal(x[-1], y[-1], "the reduced axes")
    return ResultType.of([*broadcast_shape(context, x[:-2], y[:-2]), x[-2], y[-2]], out)


def _lower_matmul(context: CallContext) -> Any:
    dtype = context.attr("out_dtype")
    swap_x, swap_y = bool(context.attr("transpose_a")), not context.attr("transpose_b")

    def matmul(x: te.Tensor, y: te.Tensor, zx: te.Tensor, zy: te.Tensor) -> te.Tensor:
        left, right = (
            _centred_operand_rows(x, zx, "left", swap=swap_x),
            _centred_operand_rows(y, zy, "right", swap=swap_y),
        )
        lead = broadcast_shape(context, left.shape[:-2], right.shape[:-2])
        k = te.reduce_axis((0, left.shape[-1]), name="k")

        def element(*i: Prim) -> Prim:
            a = left(*broadcast_indices(i[:-2], left.shape[:-2]), i[-2], k.var)
            b = right(*broadcast_indices(i[:-2], right.shape[:-2]), i[-1], k.var)
            return te.sum(a.astype(dtype) * b.astype(dtype), axis=k)

        return stage([*lead, left.shape[-2], right.shape[-2]], element, name=BLOCK)

    args = [
        context.args[0],
        context.args[1],
        *(context.const(context.vector(i), "int32") for i in (2, 3)),
    ]
    return context.reduce_te("qnn_batch_matmul", matmul, args)


def _centred_operand_rows(
    x: te.Tensor, zero_point: te.Tensor, name: str, *, swap: bool
) -> te.Tensor:
    """Returns ``x - zero_point`` with the reduced axis last, so that rows are contiguous.

    Several zero points are those of the rows.
    """
    shape = [*x.shape[:-2], x.shape[-1], x.shape[-2]] if swap else list(x.shape)

    def element(*i: Prim) -> Prim:
        where = (*i[:-2], i[-1], i[-2]) if swap else i
        return centred(x(*where), entry(zero_point, (i[-2],), 0), str(x.dtype))

    return stage(shape, element, name=name)


OPS = (
    QnnOp(
        "qnn.dense",
        SIX,
        (Attribute("units", 0, "rows of the weight; 0 takes the weight's"), OUT_DTYPE),
        _infer_dense,
        _lower_dense,
        "exact integer sum of (x - zx)(w - zw): x[..., K] times w[units, K]",
    ),
    QnnOp(
        "qnn.batch_matmul",
        ("x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale"),
        (
            Attribute("transpose_a", False, "x is (..., K, M) instead of (..., M, K)"),
            Attribute("transpose_b", True, "y is (..., N, K), as Relay has it, not (..., K, N)"),
            OUT_DTYPE,
        ),
        _infer_matmul,
        _lower_matmul,
        "exact integer sum of (x - zx)(y - zy); leading axes broadcast",
    ),
)
