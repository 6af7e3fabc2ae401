"""Float operators that choose a number, as the operator table has them where NaN is among them.

TVM's ``max`` and ``min`` return their second operand beside NaN, and reductions begin at the
lowest finite number; it folds ``0 * x`` and ``0 / x`` to 0 and refuses ``x / 0`` where the 0 is a
constant. Here NaN wins (IEEE 754-2019 ``maximum`` and ``minimum``), infinities are compared as
numbers, and a product by 0 is computed. ArgMax and ArgMin scan as onnxruntime does: from the first
element on, replaced by what is greater, so that NaN stays where it is the first, and never wins. So
they do among integers, too: TVM's begin at the least number, and find it nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, relax, te, tirx, topi

from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.qnn.dialect.elementwise import broadcast_indices
from qdqbridge.tvm.relax.empty_reductions import set_first

Prim = Any
Choose = Callable[[Prim, Prim], Prim]
Rewrite = Callable[[relax.BlockBuilder, ir.Call], "relax.Expr | None"]
"""Returns what stands for a call; None where the call may stay."""


def _is_nan(a: Prim) -> Prim:
    return tirx.isnan(a.astype("float32"))  # TVM cannot ask it of bfloat16


def larger(a: Prim, b: Prim) -> Prim:
    """Returns the larger number, or NaN."""
    return tirx.Select(tirx.any(a > b, _is_nan(a)), a, b)


def smaller(a: Prim, b: Prim) -> Prim:
    """Returns the smaller number, or NaN."""
    return tirx.Select(tirx.any(a < b, _is_nan(a)), a, b)


def _floor(x: Prim, low: Prim) -> Prim:
    """Returns ``max(x, low)`` for a number ``low``; one instruction."""
    return tirx.Select(x < low, low, x)


def _ceiling(x: Prim, high: Prim) -> Prim:
    return tirx.Select(x > high, high, x)


def _shaped_only(rewrite: Rewrite) -> Rewrite:
    """Leaves what has no shape to TVM's refusal."""

    def shaped(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
        known = all(tensor.shape is not None for tensor in _tensors(call))
        return rewrite(builder, call) if known else None

    return shaped


def _floats_only(rewrite: Rewrite) -> Rewrite:
    """Leaves integers, which know no NaN, to TVM, too."""
    shaped = _shaped_only(rewrite)

    def among_floats(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
        return shaped(builder, call) if "float" in str(_tensors(call)[-1].dtype) else None

    return among_floats


def _tensors(call: ir.Call) -> list[Any]:
    types: list[Any] = [call.ty, *(arg.ty for arg in call.args)]
    return [type_ for type_ in types if isinstance(type_, relax.TensorType)]


def _unary(name: str, function: Callable[[Prim, str], Prim]) -> Rewrite:
    def rewrite(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        def compute(x: te.Tensor) -> te.Tensor:
            return stage(x.shape, lambda *i: function(x(*i), str(x.dtype)), name)

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return _floats_only(rewrite)


def _relu(x: Prim, kind: str) -> Prim:
    return _floor(x, tirx.const(0, kind))


def _sign(x: Prim, kind: str) -> Prim:
    zero, one = tirx.const(0, kind), tirx.const(1, kind)
    return tirx.Select(x > zero, one, tirx.Select(x < zero, -one, x))


def _nan_safe_clip(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    low, high = (float(bound.value) for bound in call.args[1:3])

    def clipped(x: Prim, kind: str) -> Prim:
        x = x if low == -math.inf else _floor(x, tirx.const(low, kind))
        return x if high == math.inf else _ceiling(x, tirx.const(high, kind))

    return _unary("clip", clipped)(builder, call)  # pyright: ignore[reportReturnType]


def _pairwise(name: str, choose: Choose) -> Rewrite:
    def rewrite(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        shape = list(call.ty.shape.values)

        def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            def element(*i: Prim) -> Prim:
                return choose(*(t(*broadcast_indices(i, t.shape)) for t in (a, b)))

            return stage(shape, element, name)

        return builder.call_te(compute, *call.args, primfunc_name_hint=name)

    return _floats_only(rewrite)


def _worst(choose: Choose) -> float:
    return -math.inf if choose is larger else math.inf


def _reducer(choose: Choose) -> Callable[..., Prim]:
    found: Any = te.comm_reducer(choose, lambda kind: tirx.const(_worst(choose), kind))
    return found


def _call_reduction_axes(call: ir.Call, rank: int) -> list[int]:
    attrs: Any = call.attrs
    given = attrs.axis
    if given is None:
        return list(range(rank))
    listed = [given] if isinstance(given, int) else given
    return [int(axis) % rank for axis in listed]


def _over_axes(name: str, choose: Choose) -> Rewrite:
    def rewrite(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
        rank = len(call.args[0].ty.shape.values)
        axes = _call_reduction_axes(call, rank)

        def compute(x: te.Tensor) -> te.Tensor:
            return _reduced(x, axes, list(call.ty.shape.values), name, _reducer(choose))

        def loops(own: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
            return own.call_te(compute, call.args[0], primfunc_name_hint=name)

        if not axes:
            return None
        begun = set_first(builder, call, loops)
        return loops(builder, call) if begun is None else begun

    floats = _floats_only(rewrite)

    def any_type(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
        if str(call.ty.dtype) == "bool":  # of which TVM knows no least one
            numbers = builder.emit(relax.op.astype(call.args[0], "uint8"))
            extreme: Any = builder.normalize(ir.Call(call.op, [numbers], call.attrs))
            begun = set_first(builder, extreme)
            return relax.op.astype(builder.emit(extreme if begun is None else begun), "bool")
        found = floats(builder, call)
        return set_first(builder, call) if found is None else found

    return any_type


def _reduced(
    x: te.Tensor, axes: Sequence[int], shape: list[Any], name: str, reducer: Callable[..., Prim]
) -> te.Tensor:
    """Returns a reduction of one stage; the reduced axes are kept in ``shape``, or not."""
    over = _reduce_axes(x, axes)

    def element(*i: Prim) -> Prim:
        return reducer(x(*_places(i, over, len(x.shape))), axis=list(over.values()))

    return stage(shape, element, name)


def _reduce_axes(x: te.Tensor, axes: Sequence[int]) -> dict[int, Any]:
    return {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}


def _places(i: Sequence[Prim], over: Mapping[int, Any], rank: int) -> list[Prim]:
    """Returns the indices of an operand; the result has its reduced axes, or has them not."""
    if len(i) == rank:
        return [over.get(axis, own) for axis, own in enumerate(i)]
    others = iter(i)
    return [over[axis] if axis in over else next(others) for axis in range(rank)]


def _position(name: str, choose: Choose) -> Rewrite:
    """Returns the rewrite of ``argmax`` or ``argmin``: the first place that nothing beats."""

    def rewrite(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        shape, kind = list(call.ty.shape.values), str(call.ty.dtype)
        attrs: Any = call.attrs

        def compute(x: te.Tensor) -> list[te.Tensor]:
            return _positions(x, attrs.axis, shape, kind, choose is larger)

        found = builder.emit(builder.call_te(compute, call.args[0], primfunc_name_hint=name))
        return relax.TupleGetItem(found, 0)

    return _shaped_only(rewrite)


def _positions(x: te.Tensor, given: Any, shape: list[Any], kind: str, most: bool) -> list[Any]:
    """Returns the places and the values there."""
    extents = list(x.shape)
    axes = list(range(len(extents))) if given is None else [int(given) % len(extents)]
    over = _reduce_axes(x, axes)

    def combine(best: Any, new: Any) -> tuple[Prim, Prim]:
        beats = new[1] > best[1] if most else new[1] < best[1]
        take = tirx.any(best[0] < 0, beats)
        return tirx.Select(take, new[0], best[0]), tirx.Select(take, new[1], best[1])

    def identity(place: str, value: str) -> tuple[Prim, Prim]:
        return tirx.const(-1, place), tirx.const(0, value)

    reducer: Any = te.comm_reducer(combine, identity, name="position")

    def element(*i: Prim) -> Any:
        flat: Prim = tirx.const(0, kind)
        for axis in axes:
            flat = flat * extents[axis] + over[axis].var
        pair = flat.astype(kind), x(*_places(i, over, len(extents)))
        return reducer(pair, axis=list(over.values()))

    made: Any = te.compute(shape, element, name="position")
    return list(made)


def _max_pool(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    attrs: Any = call.attrs
    layout = str(attrs.layout)
    image = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    rank, begins = len(image), [int(pad) for pad in attrs.padding]
    ends = begins[rank:] if len(begins) == 2 * rank else begins
    kernel, strides, steps = (
        [int(size) for size in sizes] for sizes in (attrs.pool_size, attrs.strides, attrs.dilation)
    )
    shape = list(call.ty.shape.values)
    before, after = [0] * len(layout), [0] * len(layout)
    for n, axis in enumerate(image):
        before[axis], after[axis] = begins[n], ends[n]
        if attrs.ceil_mode:
            after[axis] += strides[n] - 1

    def compute(x: te.Tensor) -> te.Tensor:
        lowest = tirx.const(-math.inf, x.dtype)
        padded = topi.nn.pad(x, before, after, lowest, name="padded") if any(before + after) else x
        window: list[Any] = [te.reduce_axis((0, size), f"k{n}") for n, size in enumerate(kernel)]

        def element(*i: Prim) -> Prim:
            places = list(i)
            for n, axis in enumerate(image):
                places[axis] = i[axis] * strides[n] + window[n] * steps[n]
            return _reducer(larger)(padded(*places), axis=window)

        return stage(shape, element, "max_pool")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="max_pool")


def _by_zero(function: Callable[[te.Tensor, te.Tensor], te.Tensor]) -> Rewrite:
    """Computes what TVM would fold: it makes numbers of constants of rank 0."""

    def rewrite(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
        numbers = [_rank0_constant(arg) for arg in call.args]
        if not any(number is not None and not number for number in numbers):
            return None
        return builder.call_te(function, *call.args)

    return _floats_only(rewrite)


def _rank0_constant(expr: Any) -> float | None:
    """Returns the value of a constant of rank 0."""
    if not isinstance(expr, ir.GenericConst) or len(expr.ty.shape.values):
        return None
    return float(expr.value.numpy())


NONFINITE: dict[str, Rewrite] = {
    "relax.maximum": _pairwise("maximum", larger),
    "relax.minimum": _pairwise("minimum", smaller),
    "relax.max": _over_axes("max", larger),
    "relax.min": _over_axes("min", smaller),
    "relax.argmax": _position("argmax", larger),
    "relax.argmin": _position("argmin", smaller),
    "relax.nn.relu": _unary("relu", _relu),
    "relax.sign": _unary("sign", _sign),
    "relax.clip": _floats_only(_nan_safe_clip),
    "relax.multiply": _by_zero(topi.multiply),
    "relax.divide": _by_zero(topi.divide),
    **{f"relax.nn.max_pool{n}d": _floats_only(_max_pool) for n in (1, 2, 3)},
}
"""By operator of Relax."""
