"""Half floats computed in float32 and rounded once, as onnxruntime and the rows here have it.

TVM computes them in their own type, step by step: Softmax of 4096 elements lost 12 % of the largest
result, a mean of as many squares 7 %, a convolution of 9216 terms 2 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx
from tvm.s_tir import Schedule

from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.relax.empty_reductions import product_of_nothing, set_first

# ---- loops of products, summed in float32, that go along the columns, as vectors do --------------
# TVM sums one element of the result after the other, and reads a column of the second operand for
# each. With the columns innermost rows are read instead, which LLVM makes vectors of. Every
# element is the sum of the same terms in the same order.


def along_columns(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``matmul`` of matrices that gives float32 as a call of such loops, else None."""
    types: list[Any] = [operand.ty for operand in call.args]
    kinds = {str(each.dtype) for each in types}
    if len(kinds) != 1 or not kinds <= _FLOATS or any(each.ndim < _MATRIX for each in types):
        return None
    if str(call.ty.dtype) != "float32":
        return None
    own = relax.BlockBuilder()
    made: Any = ir.Op.get("relax.matmul").get_attr("FLegalize")(own, call)
    schedule: Any = Schedule(own.get()[made.args[0]])
    block = schedule.get_sblock("matmul")
    *_, column, term = schedule.get_loops(block)
    schedule.reorder(term, column)
    schedule.decompose_reduction(block, term)
    function = builder.add_func(schedule.mod["main"], "matmul")  # one for all that are alike
    return relax.Call(made.op, [function, *made.args[1:]], made.attrs, made.ty_args)


_MATRIX = 2
_FLOATS = {"float32", "float16", "bfloat16"}


# ---- transposed convolutions of floats that multiply elements of the input only ------------------
# TVM puts zeros between and around the elements of the input, and between those of a dilated
# kernel. A zero times an infinite weight is NaN, where ONNX has no product at all; and as
# onnxruntime does, an element of the result that no element of the input reaches is 0. Where
# weights are constant and finite, and not dilated, TVM's loops give the same.


def products_of_elements(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a transposed convolution as a call of such loops; None where TVM's give the same."""
    attrs: Any = call.attrs
    if all(int(step) == 1 for step in attrs.dilation) and _is_finite(call.args[1]):
        return None
    begun = set_first(builder, call, _loops)
    return _loops(builder, call) if begun is None else begun


def _is_finite(weight: Any) -> bool:
    """True of constants without NaN and infinities."""
    if not isinstance(weight, ir.GenericConst):
        return False
    array = weight.value.numpy()
    return array.dtype.kind == "f" and bool(np.isfinite(array).all())


def _loops(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    attrs: Any = call.attrs
    shape, kind = list(call.ty.shape.values), str(call.ty.dtype)
    strides, dilations, pads = (
        [int(n) for n in numbers] for numbers in (attrs.strides, attrs.dilation, attrs.padding)
    )
    groups = int(attrs.groups)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        terms, columns = w.shape[0] // groups, w.shape[1]
        term = te.reduce_axis((0, terms), "term")
        taps: list[Any] = [te.reduce_axis((0, size), f"k{i}") for i, size in enumerate(w.shape[2:])]

        def element(batch: Any, channel: Any, *pixel: Any) -> Any:
            where, there = [], []
            for axis, (at, tap) in enumerate(zip(pixel, taps, strict=True)):
                spread = at + pads[axis] - tap * dilations[axis]
                source = tirx.floordiv(spread, strides[axis])
                where.append(source)
                there += [spread >= 0, source < x.shape[axis + 2]]
                if strides[axis] > 1:
                    there.append(tirx.floormod(spread, strides[axis]) == 0)
            row = tirx.floordiv(channel, columns) * terms + term if groups > 1 else term
            column = tirx.floormod(channel, columns) if groups > 1 else channel
            product = x(batch, row, *where).astype(kind) * w(row, column, *taps).astype(kind)
            own = tirx.if_then_else(tirx.all(*there), product, tirx.const(0, kind))
            return te.sum(own, axis=[term, *taps])

        return stage(shape, element, "transposed_products")

    return builder.call_te(compute, *call.args, primfunc_name_hint="conv_transpose")


# --------------------------------------------------------------------------------------------------

_HALVES = ("float16", "bfloat16")
_SUMS: Mapping[str, tuple[Any, str]] = {
    "relax.matmul": (relax.op.matmul, "out_dtype"),
    "relax.nn.conv1d": (relax.op.nn.conv1d, "out_dtype"),
    "relax.nn.conv2d": (relax.op.nn.conv2d, "out_dtype"),
    "relax.nn.conv3d": (relax.op.nn.conv3d, "out_dtype"),
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, "out_dtype"),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, "out_dtype"),
    "relax.cumsum": (relax.op.cumsum, "dtype"),
    "relax.cumprod": (relax.op.cumprod, "dtype"),
}
"""What can be told to sum in another type than it reads, so that no weight gets twice the size; and
the attribute that says it."""

_EINSUM, _TRANSPOSED = "relax.einsum", "relax.nn.conv3d_transpose"
_REDUCTIONS = ("relax.sum", "relax.mean", "relax.prod", _EINSUM)
"""What may run over open axes that have no element."""

_OTHERS = (
    *_REDUCTIONS, _TRANSPOSED, "relax.variance", "relax.std",
    "relax.sigmoid", "relax.tanh",
    "relax.sinh", "relax.cosh", "relax.asin", "relax.acos", "relax.atan", "relax.asinh",
    "relax.acosh",
    "relax.nn.softmax", "relax.nn.log_softmax", "relax.nn.gelu", "relax.nn.gelu_tanh",
    "relax.nn.silu", "relax.nn.softplus", "relax.nn.layer_norm", "relax.nn.rms_norm",
    "relax.nn.group_norm", "relax.nn.instance_norm",
    "relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d",
    "relax.nn.adaptive_avg_pool1d", "relax.nn.adaptive_avg_pool2d",
    "relax.nn.adaptive_avg_pool3d", "relax.image.resize2d", "relax.image.resize3d",
)  # fmt: skip
"""What sums, what TVM makes several steps of, and functions that it calls for wider types only."""


def _lower_half_matmul(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    loops = along_columns(builder, call)
    return set_first(builder, call) if loops is None else loops


_LOOPS: Mapping[str, Callable[[relax.BlockBuilder, ir.Call], relax.Expr | None]] = {
    "relax.matmul": _lower_half_matmul,
    **{f"relax.nn.conv{n}d": set_first for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": products_of_elements for n in (1, 2, 3)},
    **dict.fromkeys(_REDUCTIONS, set_first),
}
"""What has loops of its own, in whatever type it sums; None stands for TVM's."""


def _summed_wide(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns what stands for a sum; None where it is right as it is."""
    kind, name = _kind(call), str(call.op.name)
    nothing = product_of_nothing(call)
    if nothing is not None:
        return nothing
    wide: Any = call
    if kind in _HALVES:
        operator, result = _SUMS[name]
        fields = [field for field in signature(operator).parameters if hasattr(call.attrs, field)]
        given = {field: getattr(call.attrs, field) for field in fields}
        made = operator(*call.args, **given | {result: "float32"})
        wide = builder.normalize(made)
    loops = _LOOPS[name](builder, wide) if name in _LOOPS else None
    if wide is call:
        return loops
    return relax.op.astype(builder.emit(wide if loops is None else loops), kind)


def _computed_wide(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns what stands for an operator of half floats, or a reduction; None for others."""
    kind, name = _kind(call), str(call.op.name)
    nothing = product_of_nothing(call) if name in (_EINSUM, _TRANSPOSED) else None
    if nothing is not None:
        return nothing
    own = _LOOPS.get(name)
    if kind not in _HALVES:
        return own and own(builder, call)
    args = [_widened(builder, arg) for arg in call.args]
    wide: Any = builder.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))
    if _kind(wide) != "float32":
        return None
    loops = own and own(builder, wide)
    return relax.op.astype(builder.emit(wide if loops is None else loops), kind)


def _kind(expr: Any) -> str:
    return str(getattr(expr.ty, "dtype", ""))


def _widened(builder: relax.BlockBuilder, expr: Any) -> Any:
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_widened(builder, field) for field in expr.fields])
    if _kind(expr) in _HALVES:
        return builder.emit(relax.op.astype(expr, "float32"))
    return expr


HALF_FLOATS = {
    **dict.fromkeys(_SUMS, _summed_wide),
    **dict.fromkeys(_OTHERS, _computed_wide),
}
"""Lowerings by operator."""
