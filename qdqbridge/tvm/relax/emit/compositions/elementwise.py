"""Functions of each element that TVM's importer has not, or not wholly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import te

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import AnyAttributes, Attributes, Operator, Row
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.qnn.emit.floating import by_steps, unit_params
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

# ---- One ONNX node as a composition sees it: its attributes, its operands, Relax's operators -----


@dataclass(frozen=True, slots=True)
class CompositionContext:
    """A node, and the function that it is emitted into.

    Attributes:
        emitter: The function.
        node: The graph's node.
        onnx: Its attributes and constant operands.
    """

    emitter: RelaxEmitter
    node: Node
    onnx: NodeView

    @staticmethod
    def of(emitter: RelaxEmitter, node: Node) -> CompositionContext:
        """Returns the context of a node; of a row its record holds the attributes."""
        attributes = node.attributes
        if isinstance(attributes, OpaqueAttrs):
            view = NodeView(attributes.node.proto(), attributes.version, node.inputs)
        else:
            view = NodeView.of_operands(node.op.name, node.inputs)
        return CompositionContext(emitter, node, view)

    # ---- operands -----------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """True where an operand is given."""
        return self.onnx.optional(index) is not None

    def arg(self, index: int) -> Expr:
        """Returns the expression of an operand that is given."""
        return self.emitter.value(self.onnx.operand(index))

    def result_dtype(self, index: int = 0) -> DType:
        """Returns the element type of a result."""
        return self.node.outputs[index].type.dtype

    def asks(self, index: int) -> bool:
        """True where the node names a result."""
        names = self.onnx.proto.output
        return index < len(names) and bool(names[index])

    # ---- Relax --------------------------------------------------------------------------------

    def __call__(self, name: str, *args: Any, **attributes: Any) -> Expr:
        """Emits a call of one of Relax's operators, by its dotted name."""
        if name == "reshape" and 0 in (target := tuple(args[1])):  # Relax's copies an extent there
            name, args = "zeros", (target, self.dtype(args[0]))
        return self.emitter.emit(self.emitter.function(name)(*args, **attributes))

    def steps(self, row: Operator, attributes: Attributes, args: list[Expr]) -> Expr:
        """Emits an operator of the table by those that it stands for."""
        return self.emitter.emit(by_steps(self.emitter, row, attributes, args))

    def number(self, value: Any, like: Expr | str) -> Expr:
        """Returns a constant in the element type of an expression, or of that name."""
        dtype = like if isinstance(like, str) else self.emitter.dtype(like)
        return self.emitter.number(np.asarray(value).astype(np.dtype(numpy_dtype(dtype))))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Returns an expression in an element type."""
        return self.emitter.cast(expr, dtype)

    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression, as TVM names it."""
        return self.emitter.dtype(expr)

    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression: ints and symbols.

        Raises:
            NoRow: Even its rank is open.
        """
        if expr.ty.shape is None:
            raise NoRow("the shape of an operand is known at run time only")
        return self.emitter.extents(expr)

    def static(self, expr: Expr) -> tuple[int, ...]:
        """Returns the shape of an expression as numbers.

        Raises:
            NoRow: An extent is open.
        """
        extents = self.extents(expr)
        if not all(isinstance(extent, int) for extent in extents):
            raise NoRow("an extent is known at run time only")
        return tuple(extents)

    def rank(self, expr: Expr) -> int:
        """Returns the number of axes of an expression."""
        return len(self.extents(expr))

    # ---- shapes of run time -------------------------------------------------------------------

    def constant_ints(self, index: int) -> tuple[int, ...] | None:
        """Returns a constant operand that lists integers; None where only the run knows it."""
        try:
            return self.onnx.constant_ints(index) or ()
        except NoRow:
            return None

    def integers(self, index: int) -> Expr:
        """Returns an operand that lists integers as an int64 vector of known length.

        Raises:
            NoRow: Its length is open.
        """
        vector = self.cast(self.arg(index), "int64")
        self.static(vector)
        return self("reshape", vector, (-1,)) if self.rank(vector) != 1 else vector

    def element(self, vector: Expr, index: int) -> Expr:
        """Returns an element of a vector as a scalar."""
        one = self("strided_slice", vector, axes=[0], begin=[index], end=[index + 1])
        return self("reshape", one, ())

    def shape_vector(self, expr: Expr) -> Expr:
        """Returns the extents of an expression as an int64 vector."""
        extents = self.extents(expr)
        if all(isinstance(extent, int) for extent in extents):
            return self.number(np.asarray(extents, np.int64), "int64")
        return self.emitter.shape_vector(expr)

    def bound(self, vector: Expr, label: str = "n") -> list[Any]:
        """Returns the elements of an int64 vector as extents: variables of the function."""
        (count,) = self.static(vector)
        return self.emitter.bound_vector(vector, count, label)

    def counted(self, extent: Any, dtype: str = "int64") -> Expr:
        """Returns ``0, 1, 2 …`` up to an extent."""
        if isinstance(extent, int):
            return self.number(np.arange(extent), dtype)
        return self("arange", 0, extent, 1, dtype=dtype)

    def along(self, vector: Expr, axis: int, rank: int) -> Expr:
        """Returns a vector that broadcasts along an axis of a tensor of ``rank`` axes."""
        others = [place for place in range(rank) if place != axis]
        return self("expand_dims", vector, others) if others else vector


Composition: TypeAlias = "Callable[[CompositionContext], Sequence[Expr]]"
"""Emits a node: an expression for each of its results; raises NoRow for variants unknown to it."""


def of_row(
    row: Row[AnyAttributes], compose: Callable[[CompositionContext, AnyAttributes], Sequence[Expr]]
) -> tuple[str, Composition]:
    """Returns the entry of a row whose function takes the attributes that the row has."""
    return row.name, lambda context: compose(context, context.node.record(row.attributes))


def numpy_dtype(name: str) -> Any:
    """Returns NumPy's type of a TVM element type."""
    return next(dtype.numpy for dtype in DType if dtype.label == name)


def loops(
    context: CompositionContext, name: str, compute: Callable[..., te.Tensor], *args: Expr
) -> Expr:
    """Emits a call of a function of loops."""
    return context.emitter.emit(
        context.emitter.builder.call_te(compute, *args, primfunc_name_hint=name)
    )


def wide(context: CompositionContext, x: Expr) -> Expr:
    """Returns half floats in float32, in which hosts add."""
    return context.cast(x, "float32") if context.dtype(x) in ("float16", "bfloat16") else x


# ---- Functions of each element that TVM's importer has not, or not wholly ------------------------


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
