"""qnn.sigmoid and every other operator of one operand: a table over its codes.

The functions are those of the operator table (``qdqbridge.core.ops.unary``), so that a table here
and the interpreter's cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.graph import numerics
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Array, Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ClipAttrs
from qdqbridge.core.ops.unary import CLIP, LEAKY_RELU, OPERATORS, RELU
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, fenced, kind_of, quantized, real, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import REQUIRED, Attribute, CallContext, QnnOp, ResultType
from qdqbridge.tvm.qnn.ranges import is_code

# Tables over the codes of an 8- or 16-bit type, computed by NumPy when a call is legalized.


def _scalar_qparams(scale: Any, zero_point: Any, dtype: str) -> QuantParams:
    return QuantParams(
        DType.of(np.dtype(dtype)),
        np.asarray(scale, np.float32).reshape(()),
        np.asarray(zero_point, np.int32).reshape(()),
    )


def real_codes(dtype: str, scale: Any, zero_point: Any) -> NDArray[np.float32]:
    """Returns the float32 value of every code, in the order of its bit pattern."""
    params = _scalar_qparams(scale, zero_point, dtype)
    return dequantize(codes(params), params)


def quantize_table(values: NDArray[Any], scale: Any, zero_point: Any, dtype: str) -> NDArray[Any]:
    """Returns real values as codes of ``dtype``."""
    return quantize(np.asarray(values, np.float32), _scalar_qparams(scale, zero_point, dtype))


def index_of(code: Prim) -> Prim:
    """Returns the bit pattern of an 8- or 16-bit code as an int32 index."""
    unsigned = "uint8" if kind_of(code) in ("int8", "uint8") else "uint16"
    return tirx.reinterpret(unsigned, code).astype("int32")


FIVE = ("data", "input_scale", "input_zero_point", "output_scale", "output_zero_point")
OUT_DTYPE = Attribute("out_dtype", "", "type of the result; empty takes the data's")


def infer_codes(context: CallContext) -> ResultType:
    """Returns the type of an operator that keeps the shape of its quantized data."""
    shape, dtype = context.tensor(0)
    out = context.attr("out_dtype") or dtype
    for name, value in (("data", dtype), ("out_dtype", out)):
        if not is_code(value):
            context.fail(f"{name} has dtype {value}", "give an 8- or 16-bit integer")
    context.expect_params(1, 2)
    context.expect_params(3, 4)
    return ResultType.of(shape, out)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of real values: the row of the operator table and its attributes."""

    name: str
    compute: Callable[[CallContext, Array], Array]
    attributes: tuple[Attribute, ...] = ()


def _unary_lookup_function(row: Operator, name: str = "") -> _Function:
    """Returns the function of a row; its attributes have ONNX's names and mostly its defaults."""

    def compute(context: CallContext, x: Array) -> Array:
        record = row.attributes(**{field: context.attr(field) for field in row.fields})
        (result,) = row.compute(record, (x,))
        return result

    defaults = {} if row in _WITHOUT_DEFAULTS else row.onnx[0].defaults
    attributes = (
        Attribute(field, defaults.get(field, REQUIRED), f"ONNX's {field}") for field in row.fields
    )
    return _Function(name or row.qnn, compute, tuple(attributes))


_WITHOUT_DEFAULTS = (LEAKY_RELU,)
"""Operators that Relay has, whose attributes are required there."""


def _rsqrt(context: CallContext, x: Array) -> Array:
    del context
    with np.errstate(all="ignore"):
        return np.float32(1) / np.sqrt(x)


def _evaluate_clip(context: CallContext, x: Array) -> Array:
    (result,) = CLIP.compute(ClipAttrs(context.attr("a_min"), context.attr("a_max")), (x,))
    return result


_HUGE = float(np.finfo(np.float32).max)
FUNCTIONS = (
    *(_unary_lookup_function(row) for row in OPERATORS if row.qnn),
    _unary_lookup_function(RELU, "relu"),
    _Function("rsqrt", _rsqrt),
    _Function(
        "clip", _evaluate_clip, (
            Attribute("a_min", -_HUGE, "lower bound, a real number"),
            Attribute("a_max", _HUGE, "upper bound, a real number"),
        ),
    ),
)  # fmt: skip


def _lower_unary_lookup(function: _Function) -> Any:
    def lower(context: CallContext) -> Any:
        dtype = context.dtype(0)
        out = context.attr("out_dtype") or dtype
        values = function.compute(
            context, real_codes(dtype, context.constant(1), context.constant(2))
        )
        table = quantize_table(values, context.constant(3), context.constant(4), out)

        def look_up(x: te.Tensor, entries: te.Tensor) -> te.Tensor:
            return stage(x.shape, lambda *i: entries[index_of(x(*i))], name="look_up")

        return context.call_te("qnn_lookup", look_up, [context.args[0], context.const(table, out)])

    return lower


def _infer_lookup(context: CallContext) -> ResultType:
    shape, dtype = context.tensor(0)
    entries, out = context.tensor(1)
    if not is_code(dtype):
        context.fail(f"data has dtype {dtype}", "give an 8- or 16-bit integer")
    if list(entries) != [1 << (8 if dtype in ("int8", "uint8") else 16)]:
        context.fail(f"the table has shape {entries}", "give one entry per code, by bit pattern")
    return ResultType.of(shape, out)


def _lower_lookup(context: CallContext) -> Any:
    def look_up(x: te.Tensor, entries: te.Tensor) -> te.Tensor:
        return stage(x.shape, lambda *i: entries[index_of(x(*i))], name="look_up")

    return context.call_te("qnn_lookup", look_up, [context.args[0], context.args[1]])


LOOKUP = QnnOp(
    "qnn.lookup", ("data", "table"),
    (Attribute("function", "", "what the table was made of, as qnn.origin writes it"),),
    _infer_lookup, _lower_lookup, "table[bit pattern of data]",
)  # fmt: skip


# ---- qnn.softmax and qnn.log_softmax: an own exponential and an exact fixed-point sum ------------


FRACTION = 2.0**40
"""Exponentials are summed as integers in units of ``1 / FRACTION``."""


def exponential(x: Prim, zero: te.Tensor) -> Prim:
    """Returns ``graph.exp32.exp32`` of a float32 expression, operation for operation."""

    def f32(value: Any) -> Prim:
        return tirx.const(float(value), "float32")

    lowest = f32(numerics.LOWEST)
    clamped = tirx.min(tirx.max(x, lowest), f32(numerics.HIGHEST))
    # exp(x) = 2^n exp(x - n ln 2): the rest is small, and with ln 2 in two parts nearly exact.
    n = tirx.nearbyint(clamped * f32(numerics.LOG2E))
    high = fenced(n * f32(numerics.LN2_HIGH), zero)
    r = (clamped - high) - fenced(n * f32(numerics.LN2_LOW), zero)
    p = f32(numerics.POLYNOMIAL[0])
    for coefficient in numerics.POLYNOMIAL[1:]:
        p = fenced(p * r, zero) + f32(coefficient)
    y = (fenced((p * r) * r, zero) + r) + f32(1)
    bits = (n.astype("int32") + tirx.const(127, "int32")) << tirx.const(23, "int32")
    # 2^n by its exponent's bits.
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
            # Of integers, so that no schedule of the loops changes the sum.
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
    LOOKUP,
    *(
        QnnOp(
            f"qnn.{function.name}",
            FIVE,
            (*function.attributes, OUT_DTYPE),
            infer_codes,
            _lower_unary_lookup(function),
            f"quantize({function.name}(dequantize(x))), a table over the codes",
        )
        for function in FUNCTIONS
    ),
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
