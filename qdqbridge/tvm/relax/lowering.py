"""What is changed in a module before TVM compiles it, and is not in modules that users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from qdqbridge.tvm.qnn.dialect.arithmetic import stage
from qdqbridge.tvm.qnn.dialect.elementwise import broadcast_indices
from qdqbridge.tvm.relax.nonfinite import HALF_FLOATS, NONFINITE, is_empty
from qdqbridge.tvm.relax.threads import BUILDING

# ---- indices of ``take`` kept within their axis, whatever they are -------------------------------
# TVM's ``take`` reads where an index points, and warns of that at every compilation. What an index
# beyond the axis means is said before (:mod:`qdqbridge.tvm.relax.emit.broadcasting`); this is so
# that no memory of others is read meanwhile.

_UNCHECKED = "fast"


def clipped(_: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``take`` that clips its indices; nothing where one has a mode of its own."""
    attrs: Any = call.attrs
    if attrs.mode != _UNCHECKED:
        return None
    return relax.op.take(call.args[0], call.args[1], attrs.axis, mode="clip")


# ---- integers raised to integers exactly; TVM raises floats only ---------------------------------

Prim = Any


def integer_power(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns what stands for ``power`` of two integers of one type; floats stay TVM's."""
    kind = str(call.ty.dtype)
    if "int" not in kind or any(arg.ty.shape is None for arg in call.args):
        return None
    shape = list(call.ty.shape.values)

    def power(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        bits = np.iinfo(kind).bits - 1  # without the sign
        bit: Any = te.reduce_axis((0, bits), name="bit")

        def raised(*i: Prim) -> Prim:
            base, exponent = (t(*broadcast_indices(i, t.shape)) for t in (a, b))
            one, place = tirx.const(1, kind), (bits - 1 - bit).astype(kind)
            return _HORNER(tirx.Select((exponent >> place) & one == one, base, one), axis=bit)

        def element(*i: Prim) -> Prim:
            base, exponent = (t(*broadcast_indices(i, t.shape)) for t in (a, b))
            return tirx.Select(exponent < 0, _cut(base, exponent, kind), whole(*i))

        whole = stage(shape, raised, "raised")
        return stage(shape, element, "integer_power")

    return builder.call_te(power, *call.args, primfunc_name_hint="integer_power")


_HORNER = te.comm_reducer(
    lambda raised, factor: raised * raised * factor, lambda kind: tirx.const(1, kind), "horner"
)
"""Squares and multiplies from the highest bit of the exponent on; the order is the loop's."""


def _cut(base: Prim, exponent: Prim, kind: str) -> Prim:
    """Returns a power of a negative exponent, as the row of Pow has it."""
    zero, one = tirx.const(0, kind), tirx.const(1, kind)
    unit = tirx.Select(exponent & one == zero, one, base)
    return tirx.Select(tirx.any(base == one, base == -one), unit, zero)


# Slices whose places the run computes, also those of no element, whose extent TVM takes for less.
#
# TVM 0.27 gives ``x[3:1]`` the extent -2, and begins in front of the data where a negative step
# begins in front of them (ONNX's Slice begins at the first element then).

_NO_STEP = -1
"""The extent of a slice whose step is 0, which nothing can be allocated for."""

_FARTHEST = 2**62
"""A step so far leaves any data; sums with longer ones, and their opposites, are no int64."""


def computed_slice(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    """Returns a ``dynamic_strided_slice`` as loops over the extents that ONNX gives it.

    Source: ONNX Slice-13.
    """
    x, begins, ends, steps = call.args
    rank = len(x.ty.shape.values)

    def lengths(x: te.Tensor, begins: te.Tensor, ends: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def length(axis: Prim) -> Prim:
            extent = x.shape[0]
            for other in range(1, rank):
                extent = tirx.Select(axis == other, x.shape[other], extent)
            return _length(extent, begins[axis], ends[axis], steps[axis])

        return stage([rank], length, "slice_extents")

    extents = builder.emit_te(lengths, x, begins, ends, steps, primfunc_name_hint="slice_extents")
    shape: list[Prim] = [tirx.Var("s", "int64") for _ in range(rank)]
    found = builder.emit(relax.op.tensor_to_shape(extents))
    builder.match_cast(found, relax.ShapeType(shape))

    def cut(x: te.Tensor, begins: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def element(*at: Prim) -> Prim:
            return x(*_places(x.shape, at, begins, steps))

        return stage(shape, element, "slice")

    return builder.call_te(cut, x, begins, steps, primfunc_name_hint="slice")


def _places(
    extents: Sequence[Prim], at: Sequence[Prim], begins: te.Tensor, steps: te.Tensor
) -> list[Prim]:
    """Returns where the elements of a result stand in what it is cut from."""
    return [
        _begin(extent, begins[axis], steps[axis]) + place * steps[axis]
        for axis, (extent, place) in enumerate(zip(extents, at, strict=True))
    ]


def _begin(extent: Prim, begin: Prim, step: Prim) -> Prim:
    return _between(_counted(extent, begin), 0, _last(extent, step))


def _last(extent: Prim, step: Prim) -> Prim:
    return tirx.Select(step < 0, extent - 1, extent)


def _counted(extent: Prim, index: Prim) -> Prim:
    return tirx.Select(index < 0, index + extent, index)


def _between(value: Prim, low: Prim, high: Prim) -> Prim:
    """Returns a value within bounds; the upper one where no value is within both."""
    return tirx.min(tirx.max(value, low), high)


def _length(extent: Prim, begin: Prim, end: Prim, step: Prim) -> Prim:
    backwards: Prim = step < 0
    before: Prim = tirx.Select(backwards, _tir_int64(-1), _tir_int64(0))
    end = _between(_counted(extent, end), before, _last(extent, step))
    begin = _begin(extent, begin, step)
    covered: Prim = tirx.Select(backwards, begin - end, end - begin)
    step = _between(step, -_FARTHEST, _FARTHEST)
    size: Prim = tirx.Select(backwards, -step, step)
    none: Prim = size == 0
    stepped = tirx.ceildiv(tirx.max(covered, 0), tirx.Select(none, _tir_int64(1), size))
    return tirx.Select(none, _tir_int64(_NO_STEP), stepped)


def _tir_int64(value: int) -> Prim:
    return tirx.const(value, "int64")


# Splits with parts of no element, which TVM's loops refuse: it wants every part to begin later.


def with_empty_parts(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``split`` as slices, and zeros where they are empty; None where TVM splits it."""
    attrs: Any = call.attrs
    cuts: Any = attrs.indices_or_sections
    if isinstance(cuts, int | tirx.IntImm):
        return None
    begins = [0, *(int(cut) for cut in cuts)]
    if all(begin < end for begin, end in pairwise(begins)):
        return None
    x: Any = call.args[0]
    axis, slices = int(attrs.axis), cast("Any", relax.op.strided_slice)
    ends = [*begins[1:], int(x.ty.shape.values[axis])]
    parts: list[Any] = []
    for type_, begin, end in zip(call.ty.fields, begins, ends, strict=True):
        if is_empty(type_):
            part: Any = relax.op.zeros(type_.shape, type_.dtype)
        else:
            part = slices(x, axes=[axis], begin=[begin], end=[end])
        parts.append(builder.emit(part))
    return relax.Tuple(parts)


# ---- tiles as tables of indices, because LLVM computes their remainders wrongly ------------------
# TVM tiles by ``x[i % extent]``. The loop vectorizer of LLVM 22 (TVM 0.27) takes such an index for
# a consecutive one where the extent is a power of two below the vector's length, so that with AVX2
# or AVX-512 wrong elements are read, some of them behind the tensor's end.


def untiled(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``tile`` as ``take`` of constant indices.

    Axes whose extent is not a number keep their ``tile``: LLVM does not see a power of two there.
    """
    x: Any = call.args[0]
    attrs: Any = call.attrs
    repeats = [int(count) for count in attrs.repeats]
    if len(repeats) != len(x.ty.shape):
        return None
    for axis, extent in enumerate(x.ty.shape):
        if repeats[axis] > 1 and isinstance(extent, tirx.IntImm):
            index = relax.const(np.arange(int(extent) * repeats[axis]) % int(extent), "int64")
            x = builder.emit(relax.op.take(x, index, axis, mode="clip"))
            repeats[axis] = 1
    return relax.op.tile(x, repeats) if any(count != 1 for count in repeats) else x


_LOWERINGS: Mapping[str, Callable[[relax.BlockBuilder, ir.Call], relax.Expr | None]] = {
    "relax.take": clipped,
    "relax.tile": untiled,
    "relax.power": integer_power,
    "relax.split": with_empty_parts,
    "relax.dynamic_strided_slice": computed_slice,
    **HALF_FLOATS,
    **NONFINITE,
}
"""Operators that TVM would lower to something else than they mean, or to slow loops. They stay
what they are in the modules that are shown, saved and partitioned; only what is compiled is
rewritten."""

_AS_IT_IS = "vm.builtin.copy"
"""A function of TVM's runtime that returns what it is given."""


def lowered(module: ir.IRModule) -> ir.IRModule:
    """Returns the module with right lowerings in the place of the calls that need them."""
    with BUILDING:
        lowering = _Lowering(module)
        for variable, function in module.functions.items():
            if isinstance(function, relax.Function):
                changed: Any = lowering.visit_expr(function)
                lowering.builder_.update_func(variable, changed)
        return lowering.builder_.get()


@mutator
class _Lowering(PyExprMutator):
    """Rewrites the calls of one module."""

    def visit_call_(self, op: ir.Call) -> relax.Expr:
        if is_empty(op.ty) and not isinstance(op.op, ir.GlobalVar):  # which looks at its operands
            return relax.op.zeros(op.ty.shape, op.ty.dtype)
        made: Any = self.visit_expr_post_order(op)
        row = _LOWERINGS.get(str(getattr(made.op, "name", "")))
        if row is None:
            return made
        call: Any = self.builder_.normalize(made)
        rewritten = row(self.builder_, call)
        return made if rewritten is None else rewritten

    def visit_generic_const_(self, op: Any) -> Any:
        """Returns an empty constant as a call: TVM 0.27 writes one that it cannot read again."""
        return relax.op.zeros(op.ty.shape, op.ty.dtype) if is_empty(op.ty) else op

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Hides from TVM how an extent is computed that has a name from here on.

        TVM 0.27 takes such a name for the expression itself, writes it out in every later shape,
        those of extents computed from it too, and simplifies them at every call: minutes for a
        decoder's masks. The runtime hands the shape on.
        """
        matched: Any = binding.ty
        if not isinstance(matched, relax.ShapeType) or matched.values is None:
            super().visit_match_cast_(binding)
            return
        unknown = relax.ShapeType(ndim=len(matched.values))
        value = self.visit_expr(binding.value)
        handed = self.builder_.emit(relax.op.call_pure_packed(_AS_IT_IS, value, ty_args=unknown))
        self.set_var_remap(binding.var, self.builder_.match_cast(handed, matched))
