"""Reductions over axes that only the run knows, of integers to floats, and norms along one axis.

Over each axis in turn a tensor is reduced or left, as the axes say, and keeps its shape; what is
repeated along the reduced axes is cut off in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.shapes import einsum_labels
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.broadcasting import Extent, common, known_to_agree, spread
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

# ---- layerNormalization whose mean or deviation is a result, too ---------------------------------

_REAL, _FLOAT = "float32", 1


def _layer_normalization(context: CompositionContext) -> Sequence[Expr]:
    """The norm, the mean and the reciprocal of the deviation, in float32.

    ONNX's definition takes the square of the mean off that of the data, which leaves little where
    the mean is large; onnxruntime 1.32 takes the mean off the data, as here.
    """
    if context.onnx.int_("stash_type", _FLOAT) != _FLOAT:
        raise NoRow("it does not compute in float32")
    kind, x = context.dtype(context.arg(0)), context.cast(context.arg(0), _REAL)
    rank = context.rank(x)
    axes = list(range(context.onnx.int_("axis", -1) % rank, rank))
    mean = context("mean", x, axis=axes, keepdims=True)
    centred = context("subtract", x, mean)
    variance = context("mean", context("multiply", centred, centred), axis=axes, keepdims=True)
    epsilon = context.number(context.onnx.float_("epsilon", 1e-5), _REAL)
    one = context.number(1, _REAL)
    inverse = context("divide", one, context("sqrt", context("add", variance, epsilon)))
    y = context(
        "multiply", context("multiply", centred, inverse), context.cast(context.arg(1), _REAL)
    )
    if context.has(2):
        y = context("add", y, context.cast(context.arg(2), _REAL))
    results = (context.cast(y, kind), mean, inverse)
    return [result for index, result in enumerate(results) if context.asks(index)]


def _mean_variance_normalization(context: CompositionContext) -> Sequence[Expr]:
    """The data less their mean, by their deviation; ONNX's definition as above, onnxruntime not."""
    kind, x = context.dtype(context.arg(0)), wide(context, context.arg(0))
    axes = [*context.onnx.ints("axes", [0, 2, 3])]
    centred = context("subtract", x, context("mean", x, axis=axes, keepdims=True))
    variance = context("mean", context("multiply", centred, centred), axis=axes, keepdims=True)
    deviation = context("add", context("sqrt", variance), context.number(1e-9, x))
    return [context.cast(context("divide", centred, deviation), kind)]


NORMS: Mapping[str, Composition] = {
    "LayerNormalization": _layer_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
"""By the operator's name in ONNX's own domain."""


@dataclass(frozen=True, slots=True)
class _RunTimeAxes:
    """Which axes are reduced, known at run time.

    Attributes:
        mask: For each axis whether it is one of them, a bool vector; None where all are.
        count: How many they are.
        rank: How many axes there are.
    """

    mask: Expr | None
    count: int
    rank: int

    @staticmethod
    def of(context: CompositionContext, vector: Expr, rank: int, *, none: bool) -> _RunTimeAxes:
        """Returns the axes of an int64 vector; negative ones count from the end.

        Args:
            context: The node.
            vector: The axes.
            rank: Of the tensor.
            none: An empty vector means no axis, not all of them.
        """
        (count,) = context.static(vector)
        if count == 0 and none:
            return _RunTimeAxes(context.number(np.zeros(rank, bool), "bool"), 0, rank)
        if count in (0, rank):
            return _RunTimeAxes(None, rank, rank)
        zero = context.number(0, "int64")
        wrapped = context("add", vector, context.number(rank, "int64"))
        axes = context("where", context("less", vector, zero), wrapped, vector)
        each = context("reshape", context.counted(rank), (rank, 1))
        hits = context.cast(context("equal", each, context("reshape", axes, (1, count))), "int64")
        return _RunTimeAxes(context("greater", context("sum", hits, 1), zero), count, rank)

    def reduced(self, context: CompositionContext, x: Expr, name: str) -> Expr:
        """Returns ``x`` reduced over the axes: 1 long there, or repeated to its own shape."""
        if self.mask is None:
            return context(name, x, None, keepdims=True)
        shape = context.extents(x)
        for axis in range(self.rank):
            whole = context("broadcast_to", context(name, x, axis, keepdims=True), shape)
            x = context("where", context.element(self.mask, axis), whole, x)
        return x

    def size(self, context: CompositionContext, x: Expr) -> Expr:
        """Returns over how many elements each result goes, as an int64 scalar."""
        shape = context.shape_vector(x)
        if self.mask is not None:
            shape = context("where", self.mask, shape, context.number(1, "int64"))
        return context("prod", shape)

    def kept(self, context: CompositionContext, x: Expr) -> Expr:
        """Returns the shape of the result with axes of 1, as an int64 vector."""
        shape = context.shape_vector(x)
        if self.mask is None:
            return context("ones_like", shape)
        return context("where", self.mask, context.number(1, "int64"), shape)

    def left(self, context: CompositionContext, kept: Expr) -> tuple[Any, ...]:
        """Returns the extents of the result without the axes."""
        if self.mask is None:
            return ()
        behind = context(
            "multiply", context.cast(self.mask, "int64"), context.number(self.rank, "int64")
        )
        order = context(
            "argsort", context("add", behind, context.counted(self.rank)), dtype="int64"
        )
        first = context("strided_slice", order, axes=[0], begin=[0], end=[self.rank - self.count])
        return tuple(context.bound(context("take", kept, first, axis=0, mode="clip"), "left"))

    def cut(self, context: CompositionContext, x: Expr, y: Expr, *, keepdims: bool) -> Expr:
        """Returns :meth:`reduced` of ``x`` in the shape of the result."""
        if self.mask is not None:
            kept, axes = self.kept(context, x), list(range(self.rank))
            ends = context.bound(kept, "kept")
            y = context("strided_slice", y, axes=axes, begin=[0] * self.rank, end=ends)
            return y if keepdims else context("reshape", y, self.left(context, kept))
        return y if keepdims else context("reshape", y, ())


_Over = Callable[[CompositionContext, _RunTimeAxes, Expr], Expr]
"""Reduces a tensor over axes as :meth:`_RunTimeAxes.reduced` does."""


def _by(name: str, before: str = "", after: str = "") -> _Over:
    """Returns a reduction, maybe of a function of each element, or a function of its result."""

    def over(context: CompositionContext, axes: _RunTimeAxes, x: Expr) -> Expr:
        total = axes.reduced(context, context(before, x) if before else x, name)
        return _apply_float_function(context, after, total) if after else total

    return over


def _apply_float_function(context: CompositionContext, name: str, x: Expr) -> Expr:
    """Returns a function of floats, of integers too: that of float64, cut off."""
    kind = context.dtype(x)
    whole = x if "float" in kind else context.cast(x, "float64")
    return context.cast(context(name, whole), kind)


_AFTER = {"ReduceL2": ("square", "sqrt"), "ReduceLogSum": ("", "log")}
"""What is done before and after their sum; TVM's importer asks for floats."""


def _of_integers(context: CompositionContext, axes: Sequence[int]) -> Expr:
    """Returns such a reduction over known axes.

    Raises:
        NoRow: TVM's importer knows it.
    """
    x, given = context.arg(0), _AFTER.get(context.onnx.op_type)
    if given is None or "int" not in context.dtype(x) or 0 in context.extents(x):
        raise NoRow("its axes are known")
    if not axes and context.onnx.flag("noop_with_empty_axes"):
        raise NoRow("it has no axes")
    before, after = given
    along = [context.onnx.wrap(axis) for axis in axes] or None
    keepdims = context.onnx.flag("keepdims", default=True)
    total = context("sum", context(before, x) if before else x, along, keepdims=keepdims)
    return context.cast(_apply_float_function(context, after, total), context.dtype(x))


def _mean(context: CompositionContext, axes: _RunTimeAxes, x: Expr) -> Expr:
    total, count = (
        axes.reduced(context, x, "sum"),
        context.cast(axes.size(context, x), context.dtype(x)),
    )
    return context("divide" if "float" in context.dtype(x) else "floor_divide", total, count)


def _log_sum_exp(context: CompositionContext, axes: _RunTimeAxes, x: Expr) -> Expr:
    most = axes.reduced(context, x, "max")
    finite = context("where", context("isfinite", most), most, context("zeros_like", most))
    total = axes.reduced(context, context("exp", context("subtract", x, finite)), "sum")
    return context("add", context("log", total), finite)


_OF_NOTHING: Mapping[str, float] = {
    "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1.0, "ReduceMean": np.nan,
    "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf,
}  # fmt: skip
"""Reductions of no elements that are not 0."""


def _of_nothing(
    context: CompositionContext, x: Expr, axes: _RunTimeAxes, *, keepdims: bool
) -> Expr:
    kind, value = context.dtype(x), _OF_NOTHING.get(context.onnx.op_type, 0.0)
    if "float" not in kind and not np.isfinite(value):
        low, high = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
        value = low if value < 0 else high
    kept = axes.kept(context, x)
    shape = tuple(context.bound(kept, "kept")) if keepdims else axes.left(context, kept)
    return context("broadcast_to", context.number(value, kind), shape)


def _reduction(over: _Over) -> Composition:
    def emit(context: CompositionContext) -> Sequence[Expr]:
        known = context.constant_ints(1) if context.has(1) else context.onnx.ints("axes", ())
        if known is not None:
            return [_of_integers(context, known)]
        x, keepdims = context.arg(0), context.onnx.flag("keepdims", default=True)
        none, kind = context.onnx.flag("noop_with_empty_axes"), context.dtype(x)
        axes = _RunTimeAxes.of(context, context.integers(1), context.rank(x), none=none)
        if 0 in context.extents(x):
            return [_of_nothing(context, x, axes, keepdims=keepdims)]
        x = context.cast(x, "uint8") if kind == "bool" else x
        y = axes.cut(context, x, over(context, axes, x), keepdims=keepdims)
        return [context.cast(y, kind)]

    return emit


def _lp_normalization(context: CompositionContext) -> Sequence[Expr]:
    """``x / norm``, and 0 where the norm is 0."""
    x, axis, p = context.arg(0), context.onnx.int_("axis", -1), context.onnx.int_("p", 2)
    if p not in (1, 2):
        raise context.onnx.fault(f"p is {p}", why="LpNormalization takes 1 or 2")
    size = context("abs", x) if p == 1 else context("multiply", x, x)
    norm = context("sum", size, context.onnx.wrap(axis), keepdims=True)
    norm = norm if p == 1 else context("sqrt", norm)
    none = context("equal", norm, context("zeros_like", norm))
    divisor = context("where", none, context("ones_like", norm), norm)
    return [context("divide", x, divisor)]


REDUCTIONS: Mapping[str, Composition] = {
    "ReduceSum": _reduction(_by("sum")),
    "ReduceMean": _reduction(_mean),
    "ReduceMax": _reduction(_by("max")),
    "ReduceMin": _reduction(_by("min")),
    "ReduceProd": _reduction(_by("prod")),
    "ReduceL1": _reduction(_by("sum", before="abs")),
    "ReduceL2": _reduction(_by("sum", before="square", after="sqrt")),
    "ReduceSumSquare": _reduction(_by("sum", before="square")),
    "ReduceLogSum": _reduction(_by("sum", after="log")),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "LpNormalization": _lp_normalization,
}


# ---- Products of integers, and of as many axes as an equation says -------------------------------


# A MatMulNBits whose zero points lie between codes: loops over its weight as it is stored.

_KIND = "float32"


def _compose_matmul_nbits(context: CompositionContext) -> Sequence[Expr]:
    """``y[m, n] = sum of x[m, k] * (code[n, k] - zero point) * scale + bias[n]``, in float32.

    Source: onnxruntime docs/ContribOperators.md.
    """
    names = ("N", "K", "bits", "block_size", "weight_prepacked")
    rows, columns, bits, block, prepacked = (context.onnx.int_(name, 0) for name in names)
    bits = bits or 4
    if min(rows, columns, block) < 1 or bits not in (2, 4, 8) or prepacked or context.has(4):
        raise NoRow("its weight is packed in another way")
    if not context.has(3) or not context.dtype(context.arg(3)).startswith(("float", "bfloat")):
        raise NoRow("its zero points are no floats")
    blocks, each = -(-columns // block), 8 // bits
    x = wide(context, context.arg(0))
    shape = context.extents(x)
    if shape[-1] != columns:
        raise NoRow(f"it multiplies {shape[-1]} columns by {columns}")
    flat = context("reshape", x, (-1, columns))
    weight = context("reshape", context.arg(1), (rows, blocks * block // each))
    scale, zero = (
        context("reshape", wide(context, context.arg(i)), (rows, blocks)) for i in (2, 3)
    )

    def product(data: te.Tensor, codes: te.Tensor, s: te.Tensor, z: te.Tensor) -> te.Tensor:
        axis: Any = te.reduce_axis((0, columns), "k")

        def term(m: Expr, n: Expr) -> Expr:
            byte = codes(n, axis // each).astype("int32")
            code = (byte >> (axis % each * bits).astype("int32")) & ((1 << bits) - 1)
            own = axis // block
            return te.sum(data(m, axis) * ((code.astype(_KIND) - z(n, own)) * s(n, own)), axis=axis)

        total: Any = te.compute((data.shape[0], rows), term, name="packed_product")
        return total

    made = loops(context, "packed_product", product, flat, weight, scale, zero)
    made = context("reshape", made, (*shape[:-1], rows))
    if context.has(5):
        made = context("add", made, wide(context, context.arg(5)))
    return [context.cast(made, context.dtype(context.arg(0)))]


PACKED_PRODUCTS: Mapping[str, Composition] = {"MatMulNBits": _compose_matmul_nbits}
"""By the operator's name in the domain com.microsoft."""


_MOST_AXES = 3


def _matmul_integer(context: CompositionContext) -> Sequence[Expr]:
    """``(a - za) @ (b - zb)`` in int32; TVM's importer loses shapes where extents are open."""
    operands = [_shifted(context, 0, 2, axis=-2), _shifted(context, 1, 3, axis=-1)]
    return [context("matmul", *context.emitter.aligned(operands, 2), out_dtype="int32")]


def _conv_integer(context: CompositionContext) -> Sequence[Expr]:
    """``Conv(x - zx, w - zw)`` in int32: what is padded is the zero point."""
    x, w = _shifted(context, 0, 2, axis=1), _shifted(context, 1, 3, axis=0)
    window = window_of(context.onnx, kernel_of(context.onnx, 1))
    rank = len(window.kernel)
    if rank > _MOST_AXES:
        raise NoRow(f"its windows have {rank} axes")
    attributes = {
        "strides": window.strides,
        "padding": window.pads,
        "dilation": window.dilations,
        "groups": context.onnx.int_("group", 1),
    }
    return [context(f"nn.conv{rank}d", x, w, out_dtype="int32", **attributes)]


def _einsum(context: CompositionContext) -> Sequence[Expr]:
    """Relax's operator, so that half floats are summed in float32; TVM's importer writes loops.

    It knows nothing of extents that are 1 at run time where another operand has more.
    """
    equation = context.onnx.string("equation", "")
    operands = [context.arg(index) for index in range(len(context.node.inputs))]
    terms = equation.partition("->")[0].split(",")
    shapes = [context.extents(operand) for operand in operands]
    labels = [einsum_labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    columns: dict[str, list[Extent]] = {}
    for names, shape in zip(labels, shapes, strict=True):
        for label, extent in zip(names, shape, strict=True):
            columns.setdefault(label, []).append(extent)
    unsure = {label for label, column in columns.items() if not known_to_agree(column)}
    for index, (names, shape) in enumerate(zip(labels, shapes, strict=True)):
        if not unsure.isdisjoint(names):
            wanted = [
                common(columns[label]) if label in unsure else extent
                for label, extent in zip(names, shape, strict=True)
            ]
            operands[index] = context.emitter.emit(spread(context.emitter, operands[index], wanted))
    return [context("einsum", operands, equation)]


def _shifted(context: CompositionContext, index: int, zero_index: int, *, axis: int) -> Expr:
    """Returns an operand less its zero point: one for all, or one for each element of an axis."""
    wide = context.cast(context.arg(index), "int32")
    if not context.has(zero_index):
        return wide
    shift = context.cast(context.arg(zero_index), "int32")
    extents, whole = context.extents(shift), context.extents(wide)
    if extents not in ([], [1]):
        if len(extents) == 1 and len(whole) > 1:
            shift = context.along(shift, axis % len(whole), len(whole))
        shift = context.emitter.emit(spread(context.emitter, shift, whole))
    return context("subtract", wide, shift)


PRODUCTS: Mapping[str, Composition] = {
    "ConvInteger": _conv_integer,
    "Einsum": _einsum,
    "MatMulInteger": _matmul_integer,
}
