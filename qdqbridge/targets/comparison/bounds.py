"""How far an engine that computes in float32 or float16 may lie from a node's exact result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow, Magnitude, geometry_of
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    EpsilonAttrs,
    GemmAttrs,
    PoolAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.bodies import body_of, results
from qdqbridge.core.ops.composition import CompositionAttrs, step_results
from qdqbridge.core.ops.dynamic import rounding_of
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, GROUPED, LOG_SOFTMAX, groups_of

# ---- How far a float32 engine may lie from the exact result of one node --------------------------
# With ``u`` = 2**-24 (float32), n roundings grow to ``growth(n)``: the smaller of the worst case
# ``n*u / (1 - n*u)`` (Higham, Accuracy and Stability of Numerical Algorithms, 3.1; any order of
# additions) and ``8 * sqrt(n) * u`` (Higham and Mary, A New Approach to Probabilistic Rounding
# Error Analysis, 2019; missed with a probability below 2*n*exp(-32), and then a difference stays
# without explanation, which is the safe side). The real result of a node may be off by
#
# * **accumulate, average**: ``growth(K + 10) * sum |x*w|`` for K terms: K + 1 roundings of products
#   and sums, two of the dequantized factors, four of the bias and its scale, three of a
#   requantizing multiplier (its two factors and its product with the accumulator).
# * **softmax**: ``growth(K + 16 + max|d|) * y``: an exponential of a rounded difference ``d``.
# * **normalizations**: first-order propagation of ``growth(K + 8)`` through mean, variance ``E[x*x]
#   - E[x]**2`` and the affine map.
# * **linear and cubic resize**: ``u * (32 + 8 * largest extent) * max|x|``: coordinates are
#   float32.
# * **sums of quantized operands**: ``8 * u * (|y| + sum (|x| + 2 |scale * zero point|))``: kernels
#   that make one number of all zero points (onnxruntime's QLinearAdd) add codes as they are stored.
# * **everything else**: ``8 * u * (|y| + m)``, where m is the largest intermediate result of usual
#   implementations (1 for a sigmoid, |x| for a gelu; of a composition, of its own steps). Operands
#   are the float32 values that every engine starts from, so that their rounding does not count.
#
# The quantization that follows adds ``2*u*|y / scale|`` for the division and ``u*|t|`` for engines
# that add the zero point before they round.


Array = NDArray[Any]
Operands = Sequence["Array | None"]
UNIT = 2.0**-24


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The exact result of a node and what float32 may do to it, in real units.

    Attributes:
        real: The float64 result.
        elementwise: Bound of a handful of roundings.
        accumulated: Bound where sums are formed in float32, at least ``elementwise``.
        as_written: The float64 result with the bias that the file has, where the graph's is a
            rounding of it.
        halves: Intervals of the results of engines that compute in float16
            (:mod:`qdqbridge.targets.comparison.bounds`); any of them may be the right one.
        predicted: It is the result of an engine's own arithmetic, which is known.
    """

    real: Array
    elementwise: Array
    accumulated: Array
    as_written: Array | None = None
    halves: tuple[tuple[Array, Array], ...] = ()
    predicted: bool = False


def growth(count: float) -> float:
    """Returns the relative error of ``count`` float32 roundings (see the top of this file)."""
    worst = count * UNIT / max(1 - count * UNIT, 0.5)
    return min(worst, 8 * math.sqrt(count) * UNIT)


def exact(
    node: Node,
    operands: Operands,
    *,
    rounded: frozenset[int] = frozenset(),
    half: DType = DType.FLOAT16,
) -> Exact | None:
    """Returns the exact first result of ``node``; None where no bound is known.

    Args:
        node: Any node.
        operands: The stored values of its operands.
        rounded: Quantized operands whose real values are rounded first.
        half: The type that they are rounded to.
    """
    dtype = np.float64 if node.op.flow in (Flow.ACCUMULATE, Flow.AVERAGE) else np.float32
    with np.errstate(all="ignore"):
        reals = _reals(node, operands, dtype, rounded, half)
        match node.op.flow:
            case Flow.ACCUMULATE:
                return _accumulated(node, reals)
            case Flow.AVERAGE:
                return _averaged(node, reals)
            case Flow.ROUND:
                return _rounding_bound(node, reals)
            case Flow.ELEMENTWISE | Flow.CONVERT | Flow.MOVE:
                return _elementwise(node, reals)
            case Flow.FLOAT if (rounding := rounding_of(node)) is not None:
                x = operands[0]
                assert x is not None
                rounds = np.asarray(rounding(x.astype(np.float32)), np.float64)
                return _accumulated(node, [rounds, *reals[1:]])
            case Flow.REINTERPRET | Flow.FLOAT:
                return None


def magnitude(node: Node, operands: Operands) -> Array:
    """Returns ``sum |x*w|`` of an accumulating node, ``mean |x|`` of an averaging one."""
    return _magnitude(node, _reals(node, operands, np.float64))


def sensitivity(node: Node, operands: Operands, error: float) -> Array | None:
    """Returns how far relative errors of the first operand move a softmax, norm or resize.

    To first order, for any errors of its elements up to ``error``; None where it is not known.
    """
    reals = _reals(node, operands, np.float32)
    x = reals[0]
    assert x is not None
    match node.attributes:
        case SoftmaxAttrs(axes) if not node.op.by_steps:
            largest = np.abs(x).max(axis=axes, keepdims=True)
            moved = np.expm1(2 * error * largest)
            return moved if node.op is LOG_SOFTMAX else moved * _compute_float64(node, reals)
        case ResizeAttrs():
            return np.asarray(4 * error * np.abs(x).max(initial=0))
        case _ if node.op in GROUPED:
            return 2 * error * _normalization_size(node, reals)
        case _:
            return None


def _reals(
    node: Node,
    operands: Operands,
    dtype: Any,
    rounded: frozenset[int] = frozenset(),
    half: DType = DType.FLOAT16,
) -> list[Array | None]:
    """Returns float64 operands, dequantized in ``dtype``."""
    reals: list[Array | None] = []
    for index, (value, operand) in enumerate(zip(node.inputs, operands, strict=True)):
        if operand is None or value is None:
            reals.append(None)
        elif isinstance(value.type, QuantType):
            params = value.type.params
            real = dequantize(operand, params, np.float32 if index in rounded else dtype)
            if index in rounded:
                real = real.astype(half.numpy)
            reals.append(real.astype(np.float64))
        else:
            wide = value.type.dtype.is_float
            reals.append(operand.astype(np.float64) if wide else operand)
    return reals


def _absolute(reals: Sequence[Array | None]) -> list[Array | None]:
    return [None if real is None else np.abs(real) for real in reals]


def _compute_float64(node: Node, reals: Sequence[Array | None], attributes: object = None) -> Array:
    return np.asarray(node.op.compute(attributes or node.attributes, reals)[0], np.float64)


def _magnitude(node: Node, reals: Sequence[Array | None]) -> Array:
    attributes = node.attributes
    if isinstance(attributes, GemmAttrs):
        attributes = replace(attributes, alpha=abs(attributes.alpha), beta=abs(attributes.beta))
    return _compute_float64(node, _absolute(reals), attributes)


def _accumulated(node: Node, reals: list[Array | None]) -> Exact:
    real = _compute_float64(node, reals)
    bound = growth(_terms(node, reals) + 10) * _magnitude(node, reals)
    return Exact(real, 8 * UNIT * np.abs(real), bound, _as_written(node, reals))


def _terms(node: Node, reals: Sequence[Array | None]) -> int:
    x, w = reals[0], reals[1]
    assert x is not None and w is not None
    geometry = geometry_of(node)
    if geometry is not None and (geometry.image or w.ndim == 2):
        return geometry.terms(w.shape)
    return x.shape[0 if getattr(node.attributes, "trans_a", False) else -1]


def _as_written(node: Node, reals: list[Array | None]) -> Array | None:
    bias = node.optional(2)
    if bias is None or bias.written is None:
        return None
    written = bias.written.numpy().astype(np.float64)
    return _compute_float64(node, [*reals[:2], written, *reals[3:]])


def _averaged(node: Node, reals: list[Array | None]) -> Exact:
    real, size = _compute_float64(node, reals), _magnitude(node, reals)
    x = reals[0]
    assert x is not None
    if isinstance(node.attributes, PoolAttrs):
        terms = int(np.prod(node.attributes.kernel_shape))
    else:
        terms = x.size // max(real.size, 1)
    return Exact(real, 8 * UNIT * np.abs(real), growth(terms + 10) * size)


def _elementwise(node: Node, reals: list[Array | None]) -> Exact:
    real = _compute_float64(node, reals)
    size = np.abs(real)
    if node.op.magnitude is Magnitude.UNIT:
        size = size + 1.0
    elif node.op.magnitude is Magnitude.OPERAND and reals[0] is not None:
        size = size + np.abs(reals[0])
    elif node.op in (ADD, SUB):
        size = size + _of_codes(node, reals)
    elif isinstance(node.attributes, CompositionAttrs):
        steps = step_results(node.attributes, reals)
        size = size + np.max([np.broadcast_to(np.abs(s), size.shape) for s in steps], axis=0)
    bound = 8 * UNIT * size
    return Exact(real, bound, bound)


def _of_codes(node: Node, reals: Sequence[Array | None]) -> Array | float:
    """Returns how large the terms of a sum of quantized operands are before zero points go off."""
    size: Array | float = 0.0
    for value, real in zip(node.inputs, reals, strict=True):
        if value is not None and value.quant is not None and real is not None:
            params = value.quant.params
            zero = np.abs(dequantize(np.zeros_like(real, params.storage_dtype.numpy), params))
            size = size + np.abs(real) + 2 * zero
    return size


def _rounding_bound(node: Node, reals: list[Array | None]) -> Exact:
    real = _compute_float64(node, reals)
    x = reals[0]
    assert x is not None
    few = 8 * UNIT * np.abs(real)
    match node.attributes:
        case SoftmaxAttrs() if not node.op.by_steps:
            return Exact(real, few, _softmax_bound(node, x, real))
        case EpsilonAttrs() if node.op is BATCH_NORMALIZATION:
            signed = [-v if i == 3 else v for i, v in enumerate(_absolute(reals)) if v is not None]
            return Exact(real, few, 8 * UNIT * _compute_float64(node, signed))
        case ResizeAttrs():
            extent = max((*x.shape, *real.shape))
            largest = float(np.abs(x).max(initial=0))
            return Exact(real, few, few + UNIT * (32 + 8 * extent) * largest)
        case _ if node.op in GROUPED:
            return Exact(real, few, few + _normalization_bound(node, reals))
        case _:
            return Exact(real, few, few + _body_bound(node, reals))


def _body_bound(node: Node, reals: Sequence[Array | None]) -> float:
    """Returns the bound of the largest result of any step, each of which may sum all elements."""
    x = reals[0]
    assert x is not None
    steps = results(body_of(node.op, node.attributes, x.shape, len(reals)), reals)
    largest = max((float(np.abs(step).max(initial=0)) for step in steps), default=0.0)
    terms = max((real.size for real in reals if real is not None), default=1)
    return growth(terms + 8 * len(steps)) * largest


def _softmax_bound(node: Node, x: Array, real: Array) -> Array:
    axes = node.record(SoftmaxAttrs).axes
    terms = float(np.prod([x.shape[axis] for axis in axes]))
    farthest = float((x.max(axis=axes, keepdims=True) - x).max(initial=0))
    bound = growth(terms + 16 + min(farthest, 128.0))
    if node.op is LOG_SOFTMAX:
        return bound * (1.0 + np.abs(real)) + UNIT * farthest
    return bound * np.abs(real) + 2.0**-126


def _normalization_bound(node: Node, reals: Sequence[Array | None]) -> Array:
    """Returns the bound of ``(x - mean) * r * g + b`` for float32 sums of x and of x*x."""
    x = reals[0]
    assert x is not None
    groups = groups_of(node)
    rows = groups.split(x)
    terms = float(np.prod([rows.shape[axis] for axis in groups.axes(rows)]))
    return growth(terms + 8) * _normalization_size(node, reals)


def _normalization_size(node: Node, reals: Sequence[Array | None]) -> Array:
    """Returns what one relative error of every element, sum and factor is multiplied by."""
    x, scale = reals[0], reals[1]
    assert x is not None and scale is not None
    attributes, shift = node.attributes, reals[2] if len(reals) > 2 else None
    groups = groups_of(node)
    rows = groups.split(x)
    axes = groups.axes(rows)
    square = np.square(rows).mean(axis=axes, keepdims=True)
    mean = rows.mean(axis=axes, keepdims=True) if groups.centred else np.zeros(())
    epsilon = float(getattr(attributes, "epsilon", 0.0))
    inverse = 1 / np.sqrt(np.maximum(square - np.square(mean), 0) + epsilon)
    centred = np.abs(rows - mean) * inverse
    size = (np.abs(rows) + np.sqrt(square)) * inverse
    size = size + centred * (square + np.square(mean)) * np.square(inverse)
    size = size.reshape(x.shape) * np.abs(groups.placed(scale, x.ndim))
    if shift is not None:
        size = size + np.abs(groups.placed(shift, x.ndim))
    return size


# ---- float16 -------------------------------------------------------------------------------------
# What an engine that computes in float16 (or bfloat16) may give in the place of a node's result.
#
# onnxruntime 1.31 on x86 has few float16 kernels. A pass that cannot be disabled
# (InsertCastTransformer) runs the other operators in float32 between Casts, and which of their
# operands were rounded to float16 on the way depends on their neighbours: constants were,
# activations that only such an operator reads were not, and a value that several of them pass on
# was rounded at some of its readers. The arithmetic itself is float32, its result rounded to
# float16 before a float16 operator (QuantizeLinear for one) reads it. (Seen in the graphs that it
# runs, for 15 files of 4 networks: 22 operators in float32; LayerNormalization, Concat and Slice in
# float16.)
#
# So the result lies in one of a few narrow intervals: one for each choice of the operands that are
# rounded, each once as it is and once rounded to float16. A result outside of all of them is no
# effect of float16. Rounding is monotone, so an interval is rounded by rounding its ends.


HALVES = (DType.FLOAT16, DType.BFLOAT16)
_MOST = 3
"""Operands whose roundings are distinguished; of more, all or none are rounded."""


def unit(dtype: DType) -> float:
    """Returns the largest relative error of one rounding to ``dtype``."""
    return float(cast("Any", ml_dtypes.finfo)(dtype.numpy).eps) / 2


def smallest(dtype: DType) -> float:
    """Returns the largest error of one rounding to ``dtype`` near 0."""
    return float(cast("Any", ml_dtypes.finfo)(dtype.numpy).smallest_subnormal) / 2


def half_of(node: Node) -> DType | None:
    """Returns the 16-bit float type in which ``node`` may be computed, None where it is float32."""
    if node.origin.computed in HALVES:
        return node.origin.computed
    for value in (*node.outputs, *node.inputs):
        dtype = None if value is None else _expressed(value)
        if dtype in HALVES:
            return dtype
    return None


def _expressed(value: Value) -> DType:
    return value.quant.params.expressed_dtype if value.quant else value.type.dtype


def with_halves(node: Node, operands: Operands, known: Exact | None) -> Exact | None:
    """Returns the exact results of ``node`` and the intervals of its results in float16.

    Args:
        node: Any node.
        operands: The stored values of its operands.
        known: Its exact results.
    """
    dtype = half_of(node)
    if known is None or dtype is None:
        return known
    return replace(known, halves=tuple(_intervals(node, operands, dtype)))


def _intervals(node: Node, operands: Operands, dtype: DType) -> Iterator[tuple[Array, Array]]:
    for rounded in _choices(node):
        for low, high in _spans(node, operands, dtype, rounded):
            yield low, high
            yield _narrowed(low, dtype), _narrowed(high, dtype)


def _narrowed(real: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return real.astype(dtype.numpy).astype(np.float64)


def _choices(node: Node) -> list[frozenset[int]]:
    """Returns sets of quantized operands whose real values are rounded."""
    computed = node.origin.computed in HALVES
    places = [
        i for i, v in enumerate(node.inputs) if v is not None and _rounds(v, computed=computed)
    ]
    if len(places) > _MOST:
        return [frozenset(), frozenset(places)]
    sizes = range(len(places) + 1)
    return [frozenset(some) for some in chain.from_iterable(combinations(places, k) for k in sizes)]


def _rounds(value: Value, *, computed: bool) -> bool:
    return isinstance(value.type, QuantType) and (computed or _expressed(value) in HALVES)


def _spans(
    node: Node, operands: Operands, dtype: DType, rounded: frozenset[int]
) -> Iterator[tuple[Array, Array]]:
    """Yields the float32 result's interval: for float operands as recorded, and before rounding.

    A float operand was recorded in float16; an operator that runs in float32 may have read it
    before it was rounded.
    """
    known = exact(node, operands, rounded=rounded, half=dtype)
    if known is None:
        return
    center = known.real if known.as_written is None else known.as_written
    width = _capped(node, known)
    yield center - width, center + width
    floats = [
        i for i, v in node.data_operands()
        if not v.quant and v.constant is None and v.type.dtype in HALVES
    ]  # fmt: skip
    if floats:
        yield from _unrounded(node, operands, dtype, rounded, floats, known)


def _capped(node: Node, known: Exact) -> Array:
    """Float32 sums may move a value by no more than an eighth of an LSB."""
    quant = node.output.quant
    if quant is None or not quant.params.per_tensor:
        return known.accumulated
    return np.minimum(known.accumulated, 0.125 * float(quant.params.scale))


def _unrounded(
    node: Node,
    operands: Operands,
    dtype: DType,
    rounded: frozenset[int],
    floats: Sequence[int],
    known: Exact,
) -> Iterator[tuple[Array, Array]]:
    error, tiny = unit(dtype), smallest(dtype)
    size = None
    match node.op.flow:
        case Flow.ACCUMULATE | Flow.AVERAGE:
            size = len(floats) * (error * magnitude(node, operands) + tiny)
        case Flow.ROUND:
            size = sensitivity(node, operands, error)
        case Flow.ELEMENTWISE if len(floats) <= _MOST:
            yield from _corners(node, operands, dtype, rounded, floats)
        case _:
            return
    if size is not None:
        center = known.real if known.as_written is None else known.as_written
        yield center - known.accumulated - size, center + known.accumulated + size


def _corners(
    node: Node, operands: Operands, dtype: DType, rounded: frozenset[int], floats: Sequence[int]
) -> Iterator[tuple[Array, Array]]:
    """Yields the hull of results for operands at both ends: the operators are monotone there."""
    ends: list[Array] = []
    for signs in product((-1, 1), repeat=len(floats)):
        moved = list(operands)
        for index, sign in zip(floats, signs, strict=True):
            real = np.asarray(operands[index]).astype(np.float64)
            moved[index] = real + sign * (np.abs(real) * unit(dtype) + smallest(dtype))
        found = exact(node, moved, rounded=rounded, half=dtype)
        if found is not None:
            ends += [found.real - found.accumulated, found.real + found.accumulated]
    if ends:
        yield np.minimum.reduce(ends), np.maximum.reduce(ends)
