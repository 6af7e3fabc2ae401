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
from inspect import signature
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx, topi
from tvm.s_tir import Schedule

from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.qnn.dialect.elementwise import broadcast_indices
from qdqbridge.tvm.relax.dialect.registration import DATA_PARALLEL

# ---- Reductions and products over open axes and empty ones, whose loops may have no step ---------
# TVM's loops set a result at their first step, so that a reduction of no elements is what the
# memory held. Here results are set before the loops: a sum of nothing is 0, as ONNX says.


Legalize = Callable[[relax.BlockBuilder, ir.Call], "relax.Expr"]
"""Returns the call of a function of loops that it adds to the builder."""


def set_first(
    builder: relax.BlockBuilder, call: ir.Call, legalize: Legalize | None = None
) -> relax.Expr | None:
    """Returns a reduction as a call of such loops; None where all its axes have elements.

    Args:
        builder: Gets the function.
        call: A reduction of one tensor, with the attribute ``axis``; a ``matmul``, an ``einsum`` or
            a convolution.
        legalize: Makes the loops; TVM's own by default.
    """
    summed = _summed_extents(call)
    if summed is None or all(isinstance(e, tirx.IntImm) and int(e) for e in summed):
        return None
    if str(call.op.name) == "relax.mean" and any(map(_is_zero, summed)):
        kind = str(call.ty.dtype)  # TVM divides by the number of elements when it compiles
        number = np.array(np.nan if "float" in kind else 0, kind)
        return relax.op.broadcast_to(relax.const(number, kind), call.ty.shape)
    own = relax.BlockBuilder()
    made: Any = (legalize or ir.Op.get(str(call.op.name)).get_attr("FLegalize"))(own, call)
    schedule: Any = Schedule(own.get()[made.args[0]])
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if schedule.get(block).init is not None:
            kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
            first = schedule.get_loops(block)[kinds.count(DATA_PARALLEL)]
            schedule.decompose_reduction(block, first)
    name = str(call.op.name).removeprefix("relax.")
    function = builder.add_func(schedule.mod["main"].without_attr("global_symbol"), name)
    return relax.Call(made.op, [function, *made.args[1:]], made.attrs, made.ty_args)


def _is_zero(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and not int(extent)


def product_of_nothing(call: ir.Call) -> relax.Expr | None:
    """Returns the zeros that a product is one of whose operands has no element; None for others."""
    if any(is_empty(tensor.ty) for tensor in _empty_tensors(call)):
        return relax.op.zeros(call.ty.shape, call.ty.dtype)
    return None


def is_empty(type_: Any) -> bool:
    """True of a tensor that is known to have no element; TVM has no loops that make one."""
    shape = getattr(type_, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(map(_is_zero, shape.values))


def _empty_tensors(call: ir.Call) -> list[Any]:
    first: Any = call.args[0]
    return [*first.fields] if isinstance(first, relax.Tuple) else [*call.args]


def _summed_extents(call: ir.Call) -> list[Any] | None:
    """Returns the extents that a sum may go along; None where a shape is unknown."""
    shapes: list[Any] = [getattr(tensor.ty, "shape", None) for tensor in _empty_tensors(call)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return None
    name, attrs = str(call.op.name), call.attrs
    first = list(shapes[0].values)
    if name == "relax.matmul":
        return first[-1:]
    if name == "relax.einsum":
        return [extent for shape in shapes for extent in shape.values]
    if name.startswith("relax.nn.conv"):
        return list(shapes[1].values)  # all of the weight but the channels of the result
    axes: Any = getattr(attrs, "axis", None)
    return first if axes is None else [first[int(axis)] for axis in axes]


# ---- Float operators that choose a number, as the operator table has them where NaN is among them


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


# ---- half floats ---------------------------------------------------------------------------------
# Half floats computed in float32 and rounded once, as onnxruntime and the rows here have it.
#
# TVM computes them in their own type, step by step: Softmax of 4096 elements lost 12 % of the
# largest result, a mean of as many squares 7 %, a convolution of 9216 terms 2 %.


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
