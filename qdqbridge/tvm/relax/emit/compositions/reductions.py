"""Reductions over axes that only the run knows, of integers to floats, and norms along one axis.

Over each axis in turn a tensor is reduced or left, as the axes say, and keeps its shape; what is
repeated along the reduced axes is cut off in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite


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
    def of(site: CompositionSite, vector: Expr, rank: int, *, none: bool) -> _RunTimeAxes:
        """Returns the axes of an int64 vector; negative ones count from the end.

        Args:
            site: The node.
            vector: The axes.
            rank: Of the tensor.
            none: An empty vector means no axis, not all of them.
        """
        (count,) = site.static(vector)
        if count == 0 and none:
            return _RunTimeAxes(site.number(np.zeros(rank, bool), "bool"), 0, rank)
        if count in (0, rank):
            return _RunTimeAxes(None, rank, rank)
        zero = site.number(0, "int64")
        wrapped = site("add", vector, site.number(rank, "int64"))
        axes = site("where", site("less", vector, zero), wrapped, vector)
        each = site("reshape", site.counted(rank), (rank, 1))
        hits = site.cast(site("equal", each, site("reshape", axes, (1, count))), "int64")
        return _RunTimeAxes(site("greater", site("sum", hits, 1), zero), count, rank)

    def reduced(self, site: CompositionSite, x: Expr, name: str) -> Expr:
        """Returns ``x`` reduced over the axes: 1 long there, or repeated to its own shape."""
        if self.mask is None:
            return site(name, x, None, keepdims=True)
        shape = site.extents(x)
        for axis in range(self.rank):
            whole = site("broadcast_to", site(name, x, axis, keepdims=True), shape)
            x = site("where", site.element(self.mask, axis), whole, x)
        return x

    def size(self, site: CompositionSite, x: Expr) -> Expr:
        """Returns over how many elements each result goes, as an int64 scalar."""
        shape = site.shape_vector(x)
        if self.mask is not None:
            shape = site("where", self.mask, shape, site.number(1, "int64"))
        return site("prod", shape)

    def kept(self, site: CompositionSite, x: Expr) -> Expr:
        """Returns the shape of the result with axes of 1, as an int64 vector."""
        shape = site.shape_vector(x)
        if self.mask is None:
            return site("ones_like", shape)
        return site("where", self.mask, site.number(1, "int64"), shape)

    def left(self, site: CompositionSite, kept: Expr) -> tuple[Any, ...]:
        """Returns the extents of the result without the axes."""
        if self.mask is None:
            return ()
        behind = site("multiply", site.cast(self.mask, "int64"), site.number(self.rank, "int64"))
        order = site("argsort", site("add", behind, site.counted(self.rank)), dtype="int64")
        first = site("strided_slice", order, axes=[0], begin=[0], end=[self.rank - self.count])
        return tuple(site.bound(site("take", kept, first, axis=0, mode="clip"), "left"))

    def cut(self, site: CompositionSite, x: Expr, y: Expr, *, keepdims: bool) -> Expr:
        """Returns :meth:`reduced` of ``x`` in the shape of the result."""
        if self.mask is not None:
            kept, axes = self.kept(site, x), list(range(self.rank))
            ends = site.bound(kept, "kept")
            y = site("strided_slice", y, axes=axes, begin=[0] * self.rank, end=ends)
            return y if keepdims else site("reshape", y, self.left(site, kept))
        return y if keepdims else site("reshape", y, ())


_Over = Callable[[CompositionSite, _RunTimeAxes, Expr], Expr]
"""Reduces a tensor over axes as :meth:`_RunTimeAxes.reduced` does."""


def _by(name: str, before: str = "", after: str = "") -> _Over:
    """Returns a reduction, maybe of a function of each element, or a function of its result."""

    def over(site: CompositionSite, axes: _RunTimeAxes, x: Expr) -> Expr:
        total = axes.reduced(site, site(before, x) if before else x, name)
        return _function(site, after, total) if after else total

    return over


def _function(site: CompositionSite, name: str, x: Expr) -> Expr:
    """Returns a function of floats, of integers too: that of float64, cut off."""
    kind = site.dtype(x)
    whole = x if "float" in kind else site.cast(x, "float64")
    return site.cast(site(name, whole), kind)


_AFTER = {"ReduceL2": ("square", "sqrt"), "ReduceLogSum": ("", "log")}
"""What is done before and after their sum; TVM's importer asks for floats."""


def _of_integers(site: CompositionSite, axes: Sequence[int]) -> Expr:
    """Returns such a reduction over known axes.

    Raises:
        NoRow: TVM's importer knows it.
    """
    x, given = site.arg(0), _AFTER.get(site.onnx.op_type)
    if given is None or "int" not in site.dtype(x) or 0 in site.extents(x):
        raise NoRow("its axes are known")
    if not axes and site.onnx.flag("noop_with_empty_axes"):
        raise NoRow("it has no axes")
    before, after = given
    along = [site.onnx.wrap(axis) for axis in axes] or None
    keepdims = site.onnx.flag("keepdims", default=True)
    total = site("sum", site(before, x) if before else x, along, keepdims=keepdims)
    return site.cast(_function(site, after, total), site.dtype(x))


def _mean(site: CompositionSite, axes: _RunTimeAxes, x: Expr) -> Expr:
    total, count = axes.reduced(site, x, "sum"), site.cast(axes.size(site, x), site.dtype(x))
    return site("divide" if "float" in site.dtype(x) else "floor_divide", total, count)


def _log_sum_exp(site: CompositionSite, axes: _RunTimeAxes, x: Expr) -> Expr:
    most = axes.reduced(site, x, "max")
    finite = site("where", site("isfinite", most), most, site("zeros_like", most))
    total = axes.reduced(site, site("exp", site("subtract", x, finite)), "sum")
    return site("add", site("log", total), finite)


_OF_NOTHING: Mapping[str, float] = {
    "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1.0, "ReduceMean": np.nan,
    "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf,
}  # fmt: skip
"""Reductions of no elements that are not 0."""


def _of_nothing(site: CompositionSite, x: Expr, axes: _RunTimeAxes, *, keepdims: bool) -> Expr:
    kind, value = site.dtype(x), _OF_NOTHING.get(site.onnx.op_type, 0.0)
    if "float" not in kind and not np.isfinite(value):
        low, high = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
        value = low if value < 0 else high
    kept = axes.kept(site, x)
    shape = tuple(site.bound(kept, "kept")) if keepdims else axes.left(site, kept)
    return site("broadcast_to", site.number(value, kind), shape)


def _reduction(over: _Over) -> Composition:
    def emit(site: CompositionSite) -> Sequence[Expr]:
        known = site.constant_ints(1) if site.has(1) else site.onnx.ints("axes", ())
        if known is not None:
            return [_of_integers(site, known)]
        x, keepdims = site.arg(0), site.onnx.flag("keepdims", default=True)
        none, kind = site.onnx.flag("noop_with_empty_axes"), site.dtype(x)
        axes = _RunTimeAxes.of(site, site.integers(1), site.rank(x), none=none)
        if 0 in site.extents(x):
            return [_of_nothing(site, x, axes, keepdims=keepdims)]
        x = site.cast(x, "uint8") if kind == "bool" else x
        y = axes.cut(site, x, over(site, axes, x), keepdims=keepdims)
        return [site.cast(y, kind)]

    return emit


def _lp_normalization(site: CompositionSite) -> Sequence[Expr]:
    """``x / norm``, and 0 where the norm is 0."""
    x, axis, p = site.arg(0), site.onnx.int_("axis", -1), site.onnx.int_("p", 2)
    if p not in (1, 2):
        raise site.onnx.fault(f"p is {p}", why="LpNormalization takes 1 or 2")
    size = site("abs", x) if p == 1 else site("multiply", x, x)
    norm = site("sum", size, site.onnx.wrap(axis), keepdims=True)
    norm = norm if p == 1 else site("sqrt", norm)
    none = site("equal", norm, site("zeros_like", norm))
    divisor = site("where", none, site("ones_like", norm), norm)
    return [site("divide", x, divisor)]


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
