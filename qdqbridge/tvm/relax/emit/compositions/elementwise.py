"""Functions of each element that TVM's importer has not, or not wholly."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import te

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.qnn.emit.floating import unit_params
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

# --------------------------------------------------------------------------------------------------
# Comparisons, logic and sums of operands of which only the run knows which extents are 1.
#
# TVM's own operators give such results no shape, and nothing can be built of them.


def repeated(context: CompositionContext) -> list[Expr]:
    """Returns the operands, repeated where that is not settled.

    Raises:
        NoRow: All of it is: TVM's own operators repeat them.
    """
    given = [context.arg(index) for index in range(len(context.node.inputs))]
    fitting = context.emitter.aligned(given)
    if all(map(operator.is_, given, fitting)):
        raise NoRow("TVM knows how its operands broadcast")
    return fitting


def _by(name: str) -> Composition:
    """Returns one of Relax's operators of two operands."""
    return lambda context: [context(name, *repeated(context))]


def _sum(context: CompositionContext) -> Sequence[Expr]:
    total, *others = repeated(context)
    for other in others:
        total = context("add", total, other)
    return [total]


def _mean(context: CompositionContext) -> Sequence[Expr]:
    (total,) = _sum(context)
    return [context("divide", total, context.number(len(context.node.inputs), total))]


BROADCASTING: Mapping[str, Composition] = {
    "And": _by("logical_and"),
    "BitwiseAnd": _by("bitwise_and"),
    "BitwiseOr": _by("bitwise_or"),
    "BitwiseXor": _by("bitwise_xor"),
    "Equal": _by("equal"),
    "Greater": _by("greater"),
    "GreaterOrEqual": _by("greater_equal"),
    "Less": _by("less"),
    "LessOrEqual": _by("less_equal"),
    "Mean": _mean,
    "Or": _by("logical_or"),
    "Sum": _sum,
    "Xor": _by("logical_xor"),
}
"""By the operator's name in ONNX's own domain."""


# ---- casts to 8- and 4-bit floats, and dynamic quantization --------------------------------------

_LAST = 255
"""The last code of the type that dynamic quantization has."""


def _cast_to_small_float(context: CompositionContext) -> Sequence[Expr]:
    target, source = context.result_dtype(), context.onnx.operand(0).type.dtype
    if not target.is_small_float or source is DType.STRING:
        raise NoRow("TVM's own operators have it")
    x = context.arg(0)
    if source.is_small_float:
        x = context.emitter.dequantize(x, unit_params(source))
    attrs = {
        "axis": -1,
        "format": target.label,
        "saturate": context.onnx.flag("saturate", default=True) or target.is_finite,
        "rounding": "nearest",
    }
    if target is DType.FLOAT8_E8M0:
        attrs["rounding"] = context.onnx.string("round_mode", "up")
    one = context.number(np.ones(()), "float32")
    return [context.emitter.qnn("quantize_minifloat", [context.cast(x, "float32"), one], attrs)]


def _dynamic_quantize(context: CompositionContext) -> Sequence[Expr]:
    """``y, scale, zero point`` of the range of ``x`` and 0, as onnxruntime has them.

    Numbers that are none do not count; of a range without extent the scale is 1 (ONNX leaves it
    open), and a zero point that is not a number is the last one.
    """
    x = context.arg(0)
    zero, one, last = (context.number(value, "float32") for value in (0, 1, _LAST))
    numbers = context("where", context("equal", x, x), x, zero)
    low = context("minimum", context("min", numbers), zero)
    high = context("maximum", context("max", numbers), zero)
    step = context("divide", context("subtract", high, low), last)
    scale = context("where", context("equal", high, low), one, step)
    place = context("subtract", zero, context("divide", low, scale))
    clipped = context("minimum", context("maximum", place, zero), last)
    shift = context("round", context("where", context("equal", place, place), clipped, last))
    scaled = context("add", context("round", context("divide", x, scale)), shift)
    y = context.emitter.quantize(scaled, per_tensor(DType.UINT8, 1.0))
    return [y, scale, context.cast(shift, "uint8")]


CONVERSION: Mapping[str, Composition] = {
    "Cast": _cast_to_small_float,
    "DynamicQuantizeLinear": _dynamic_quantize,
}


# ---- what depends on whether something is there: an optional tensor, and what Dropout drops ------

DROPPED = "dropped_elements"
"""What the extent is called that has to be 0; errors of a run name it."""

_OPERAND = 12
"""The opset since which the ratio and the mode of Dropout are operands."""


def _has_element(context: CompositionContext) -> Sequence[Expr]:
    return [context.number(context.has(0), "bool")]


def _dropout(context: CompositionContext) -> Sequence[Expr]:
    """All that it is given; where the run says that something is to be dropped, it ends.

    Which elements these are ONNX leaves to chance.
    """
    if context.onnx.opset < _OPERAND or not context.has(2):
        raise NoRow("TVM has it")
    known = [context.onnx.operand(index).is_constant for index in (1, 2) if context.has(index)]
    if all(known):
        raise NoRow("what it drops is known")
    ratio = (
        context("reshape", context.arg(1), ()) if context.has(1) else context.number(0.5, "float32")
    )
    training = context.cast(context("reshape", context.arg(2), ()), "bool")
    drops = context("logical_and", training, context("greater", ratio, context.number(0, ratio)))
    (count,) = context.bound(context.cast(context("reshape", drops, (1,)), "int64"), DROPPED)
    context.emitter.need_at_most(count, 0)
    x = context.arg(0)
    mask = context("broadcast_to", context.number(np.True_, "bool"), context.extents(x))
    return [x, mask][: len(context.node.outputs)]


PRESENCE: Mapping[str, Composition] = {"Dropout": _dropout, "OptionalHasElement": _has_element}
"""By the operator's name in ONNX's own domain."""


# --------------------------------------------------------------------------------------------------


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


def _clip(context: CompositionContext) -> Sequence[Expr]:
    """Bounds that only the run knows; the importer's own calls lose NaN."""
    x = context.arg(0)
    for index, name in ((1, "maximum"), (2, "minimum")):
        if context.has(index):
            x = context(name, x, context("reshape", context.arg(index), ()))
    return [x]


ELEMENTWISE: Mapping[str, Composition] = {
    "Clip": _clip,
    "IsInf": _is_inf,
    "BitShift": _bit_shift,
    "BitCast": _bit_cast,
    "Mod": _mod,
    "Shrink": _shrink,
}
