"""qnn.dense and qnn.batch_matmul: exact integer products."""

from __future__ import annotations

from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.accumulate import OUT_DTYPE, SIX, centred, check_operands
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, entry
from qdqbridge.tvm.qnn.dialect.broadcast import broadcast_indices, broadcast_shape
from qdqbridge.tvm.qnn.dialect.context import CallContext, Extent, ResultType
from qdqbridge.tvm.qnn.dialect.kernel import BLOCK, stage
from qdqbridge.tvm.qnn.dialect.op import Attribute, QnnOp


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
