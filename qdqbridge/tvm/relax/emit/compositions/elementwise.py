"""Functions of each element that TVM's importer has not, or not wholly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.broadcasting import repeated
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext


def _is_inf(context: CompositionContext) -> Sequence[Expr]:
    x = context.arg(0)
    above = context("equal", x, context.number(np.inf, x))
    below = context("equal", x, context.number(-np.inf, x))
    positive = context.onnx.flag("detect_positive", default=True)
    negative = context.onnx.flag("detect_negative", default=True)
    if positive and negative:
        return [context("logical_or", above, below)]
    if positive or negative:
        return [above if positive else below]
    return [context("logical_and", above, below)]


def _bit_shift(context: CompositionContext) -> Sequence[Expr]:
    """Arithmetic shifts; counts below 0 or of all bits leave 0, or the sign of a right shift."""
    x, count = context.emitter.aligned([context.arg(0), context.arg(1)])
    kind, left = context.dtype(x), context.onnx.string("direction", "") == "LEFT"
    bits, zero = np.iinfo(kind).bits, context.number(0, kind)
    inside = context("less", count, context.number(bits, kind))
    if kind.startswith("int"):
        inside = context("logical_and", inside, context("greater_equal", count, zero))
    shifted = context(
        "left_shift" if left else "right_shift", x, context("where", inside, count, zero)
    )
    beyond = zero
    if kind.startswith("int") and not left:
        beyond = context("where", context("less", x, zero), context.number(-1, kind), zero)
    return [context("where", inside, shifted, beyond)]


def _mod(context: CompositionContext) -> Sequence[Expr]:
    """``fmod=0`` of floats: the remainder has the divisor's sign, as Python's ``%`` has it."""
    kind = context.dtype(context.arg(0))
    if "float" not in kind or context.onnx.flag("fmod"):
        return [context("mod" if context.onnx.flag("fmod") else "floor_mod", *repeated(context))]
    x, y = context.emitter.aligned([context.arg(0), context.arg(1)])

    def floor_mod(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        wide = "float64" if kind == "float64" else "float32"

        def element(*i: Expr) -> Expr:
            p, q = _at(a, i).astype(wide), _at(b, i).astype(wide)
            zero = tirx.const(0.0, wide)
            rest = tirx.call_pure_extern(wide, "fmod" if wide == "float64" else "fmodf", p, q)
            signs = tirx.any(tirx.all(rest < zero, q > zero), tirx.all(rest > zero, q < zero))
            moved = tirx.Select(signs, rest + q, rest)
            return moved.astype(kind)

        return stage(_joint(a, b), element, name="floor_mod")

    return [context.emitter.emit(context.emitter.builder.call_te(floor_mod, x, y))]


def _at(tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
    """Returns an element of a tensor that broadcasts to the axes of ``indices``."""
    own = indices[len(indices) - len(tensor.shape) :]
    picked = [
        tirx.const(0, "int64") if isinstance(e, tirx.IntImm) and int(e) == 1 else i
        for e, i in zip(tensor.shape, own, strict=True)
    ]
    return tensor(*picked)


def _joint(a: te.Tensor, b: te.Tensor) -> list[Expr]:
    long, short = (a, b) if len(a.shape) >= len(b.shape) else (b, a)
    extents = list(long.shape)
    for index, extent in enumerate(short.shape, len(long.shape) - len(short.shape)):
        own = extents[index]
        if isinstance(own, tirx.IntImm) and int(own) == 1:
            extents[index] = extent
    return extents


def _bit_cast(context: CompositionContext) -> Sequence[Expr]:
    """The same bits as another type."""
    x, target = context.arg(0), context.result_dtype()
    source = context.onnx.operand(0).type.dtype
    if target.bits != source.bits or target.bits % 8:
        raise NoRow(f"{source} and {target} differ in what an element takes")
    if context.dtype(x) == str(target):
        return [x]
    if "bool" in (context.dtype(x), str(target)):
        return [context.cast(x, str(target))]
    kind = str(target) if not target.is_small_float else "uint8"

    def bit_cast(a: te.Tensor) -> te.Tensor:
        return stage(a.shape, lambda *i: tirx.reinterpret(kind, a(*i)), name="bit_cast")

    return [context.emitter.emit(context.emitter.builder.call_te(bit_cast, x))]


def _shrink(context: CompositionContext) -> Sequence[Expr]:
    """The first of ONNX's cases that holds: below 0, ``lambd`` lets both hold of one number.

    Both attributes are float32 numbers, which other types do not hold.
    """
    own, dtype = context.arg(0), context.dtype(context.arg(0))
    x = context.cast(own, "float32" if np.dtype(dtype).itemsize < 4 else dtype)
    if "float" not in context.dtype(x):
        x = context.cast(x, "float64")
    least, bias = (
        context.onnx.float_(name, given) for name, given in (("lambd", 0.5), ("bias", 0.0))
    )
    above = context("greater", x, context.number(least, x))
    moved = context(
        "where", above, context("subtract", x, context.number(bias, x)), context.number(0, x)
    )
    below = context("less", x, context.number(-least, x))
    return [
        context.cast(
            context("where", below, context("add", x, context.number(bias, x)), moved), dtype
        )
    ]


ELEMENTWISE: Mapping[str, Composition] = {
    "IsInf": _is_inf,
    "BitShift": _bit_shift,
    "BitCast": _bit_cast,
    "Mod": _mod,
    "Shrink": _shrink,
}
