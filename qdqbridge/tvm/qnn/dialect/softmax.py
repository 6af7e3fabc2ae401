"""qnn.softmax and qnn.log_softmax: an own exponential and an exact fixed-point sum."""

from __future__ import annotations

from typing import Any

from tvm import te

from qdqbridge.core.graph import numerics
from qdqbridge.tvm.qnn.dialect.arithmetic import (
    Prim,
    fenced,
    quantized,
    real,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import Attribute, QnnOp
from qdqbridge.tvm.qnn.dialect.unary import FIVE, OUT_DTYPE, infer_codes

FRACTION = 2.0**40
"""Exponentials are summed as integers in units of ``1 / FRACTION``."""


def exponential(x: Prim, zero: te.Tensor) -> Prim:
    """Returns ``graph.exp32.exp32`` of a float32 expression, operation for operation."""

    def f32(value: Any) -> Prim:
        return tirx.const(float(value), "float32")

    lowest = f32(numerics.LOWEST)
    clamped = tirx.min(tirx.max(x, lowest), f32(numerics.HIGHEST))
    n = tirx.nearbyint(clamped * f32(numerics.LOG2E))
    high = fenced(n * f32(numerics.LN2_HIGH), zero)
    r = (clamped - high) - fenced(n * f32(numerics.LN2_LOW), zero)
    p = f32(numerics.POLYNOMIAL[0])
    for coefficient in numerics.POLYNOMIAL[1:]:
        p = fenced(p * r, zero) + f32(coefficient)
    y = (fenced((p * r) * r, zero) + r) + f32(1)
    bits = (n.astype("int32") + tirx.const(127, "int32")) << tirx.const(23, "int32")
    power = tirx.reinterpret("float32", bits)
    return tirx.Select(x < lowest, f32(0), y * power)


def _softmax_axes(context: CallContext) -> tuple[int, ...]:
    """Returns the axes that are normalized together."""
    rank, value = len(context.shape(0)), context.attr("axis")
    axes = (value,) if isinstance(value, int) else tuple(value)
    if not axes or not rank:
        context.fail(f"axis is {value} for {rank} axes")
    return tuple(sorted({context.normal_axis(axis, rank) for axis in axes}))


def _infer_softmax(context: CallContext) -> ResultType:
    _softmax_axes(context)
    type_ = infer_codes(context)
    return ResultType.of(context.shape(0), str(type_.dtype))


def _over(x: te.Tensor, axes: tuple[int, ...], name: str) -> tuple[list[Any], Any]:
    """Returns reduction axes, and the function from a row's indices to an element's."""
    taps = {axis: te.reduce_axis((0, x.shape[axis]), name=f"{name}{axis}") for axis in axes}

    def element(row: tuple[Prim, ...]) -> list[Prim]:
        return [taps[d].var if d in taps else v for d, v in enumerate(row)]

    return list(taps.values()), element


class _SoftmaxStages:
    """The stages of one softmax: the largest code, the exponentials and their sum."""

    def __init__(
        self,
        x: te.Tensor,
        axes: tuple[int, ...],
        scale: te.Tensor,
        zero_point: te.Tensor,
        zero: te.Tensor,
    ) -> None:
        self.x, self.axes, self.scale, self.zero_point, self.zero = x, axes, scale, zero_point, zero
        rows = [1 if d in axes else extent for d, extent in enumerate(x.shape)]
        taps, at = _over(x, axes, "m")
        self.largest = stage(
            rows, lambda *i: te.max(x(*at(i)).astype("int32"), axis=taps), name="largest"
        )
        self.powers = stage(
            x.shape, lambda *i: exponential(self.difference(i), zero), name="powers"
        )
        sum_taps, sum_at = _over(x, axes, "s")

        def fixed(*i: Prim) -> Prim:
            scaled = self.powers(*sum_at(i)).astype("float64") * tirx.const(FRACTION, "float64")
            return te.sum(tirx.nearbyint(scaled).astype("int64"), axis=sum_taps)

        self.total = stage(rows, fixed, name="total")

    def _row(self, i: tuple[Prim, ...]) -> list[Prim]:
        return [0 if d in self.axes else v for d, v in enumerate(i)]

    def _real(self, code: Prim) -> Prim:
        return fenced(real(code, self.zero_point[0], self.scale[0]), self.zero)

    def difference(self, i: tuple[Prim, ...]) -> Prim:
        """Returns ``x - max(x)`` of an element, in float32."""
        return self._real(self.x(*i)) - self._real(self.largest(*self._row(i)))

    def row_sum(self, i: tuple[Prim, ...]) -> Prim:
        """Returns the sum of exponentials that belongs to an element, in float64."""
        unit = tirx.const(1 / FRACTION, "float64")
        return self.total(*self._row(i)).astype("float64") * unit


def _lower_softmax(*, log: bool) -> Any:
    def lower(context: CallContext) -> Any:
        axes, out = _softmax_axes(context), context.attr("out_dtype") or context.dtype(0)

        def softmax(
            x: te.Tensor,
            sx: te.Tensor,
            zx: te.Tensor,
            sy: te.Tensor,
            zy: te.Tensor,
            zero: te.Tensor,
        ) -> te.Tensor:
            row = _SoftmaxStages(x, axes, sx, zx, zero)

            def element(*i: Prim) -> Prim:
                if log:
                    value = row.difference(i) - tirx.log(row.row_sum(i)).astype("float32")
                else:
                    value = row.powers(*i) / row.row_sum(i).astype("float32")
                return quantized(value, sy[0], zy[0], out, nan=False)

            return stage(x.shape, element, name="softmax")

        args = context.params((1, 2), (3, 4))
        name = "qnn_log_softmax" if log else "qnn_softmax"
        return context.reduce_te(
            name,
            softmax,
            [context.args[0], *args, context.fence()],
            blocks=("largest", "total"),
        )

    return lower


_ATTRIBUTES = (
    Attribute("axis", -1, "the axis, or the list of axes, normalized together"),
    OUT_DTYPE,
)
_DOC = "d = x - max(x); e = exp32(d); S = sum of rint(f64(e) * 2**40); "

OPS = (
    QnnOp(
        "qnn.softmax",
        FIVE,
        _ATTRIBUTES,
        _infer_softmax,
        _lower_softmax(log=False),
        _DOC + "quantize(e / f32(S * 2**-40))",
    ),
    QnnOp(
        "qnn.log_softmax",
        FIVE,
        _ATTRIBUTES,
        _infer_softmax,
        _lower_softmax(log=True),
        _DOC + "quantize(d - f32(log(S * 2**-40)))",
    ),
)
