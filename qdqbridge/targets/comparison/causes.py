"""Why two engines store different results for the same operands.

Both results are acceptable where each is the exact result, moved by no more than its bound, rounded
once. The smallest bound for which that is true names the cause.

A bound of half an LSB would explain any difference of one LSB, so none is used beyond ``CAP``: a
result that has to be moved further than that stays unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams, QuantType, ValueType
from qdqbridge.targets.comparison.bounds import HALVES, UNIT, Exact, smallest, unit

Array = NDArray[Any]
TIE = "tie"
"""The exact value lies within a few units in the last place of a rounding boundary."""
ROUNDING = "rounding"
"""The same for float results, which are always rounded: both lie within a few ulp of it."""
ACCUMULATION = "float accumulation"
"""It lies within what float32 sums in any order can move it."""
BIAS = "rounded bias"
"""The file's bias is float; the graph's is it in whole units of the accumulator."""
HALF = "float16 arithmetic"
"""Operands or the result were rounded to float16 (or bfloat16) on the way, which we do not do."""
REWRITTEN = "rewritten by the engine"
"""It is what the model gives that the engine has made of this one, by other operators or numbers;
no element of the tensor is further off than :func:`two_steps`."""
MISREAD = "misread by the engine"
"""The same, and some are further off: the engine computes another model, which is its fault."""
UNEXPLAINED = "UNEXPLAINED"
"""None of these: a fault of one of the engines."""


_BYTE, _LAST = 8, 127
CAP = 0.125
"""The furthest, in LSB, that an explanation may move a value."""


def two_steps(stored: Array, type_: ValueType | None) -> Array:
    """Returns two steps of 8 bits for each element, in its stored numbers.

    Integers of up to 8 bits have steps of their own. Of other numbers a step is what one of 127 is
    to the largest of a tensor, but not less than what the type itself rounds.

    Args:
        stored: The elements.
        type_: Their type.
    """
    params = type_.params if isinstance(type_, QuantType) else None
    dtype = DType.of(stored.dtype) if params is None else params.storage_dtype
    if not dtype.is_float and dtype.bits <= _BYTE:
        return np.asarray(2.0)
    sizes = np.abs(stored.astype(np.float64) - _zero_point(params, stored))
    largest = sizes.max(initial=0.0, where=np.isfinite(sizes))
    rounds = float(ml_dtypes.finfo(stored.dtype).eps) if dtype.is_float else 0.0
    return 2 * np.maximum(largest / _LAST, rounds * sizes)


def _zero_point(params: QuantParams | None, stored: Array) -> NDArray[np.float64]:
    if params is None:
        return np.zeros(())
    zero: Array = params.aligned(params.zero_point, stored.shape)
    return zero.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Blame:
    """The causes of the differences of one tensor.

    Attributes:
        causes: Number of elements by cause.
        bound: Largest bound among the explained ones, in LSB (of floats: in real units).
        moved: How far the exact values had to be moved at most, in the same units.
        left: Which of all elements have no cause.
    """

    causes: dict[str, int]
    bound: float
    moved: float
    left: NDArray[np.bool_]


def blame(
    ours: Array, theirs: Array, differs: Array, exact: Exact | None, type_: ValueType
) -> Blame:
    """Returns the causes of the elements where ``differs`` is true.

    Args:
        ours: Results of the interpreter, as stored.
        theirs: Recorded results.
        differs: Where they differ.
        exact: The exact results and their bounds.
        type_: The type of the results.
    """
    total = int(np.count_nonzero(differs))
    if exact is None or exact.real.shape != ours.shape:
        return Blame({UNEXPLAINED: total} if total else {}, 0.0, 0.0, differs)
    picked = _picked(exact, differs)
    with np.errstate(all="ignore"):
        if isinstance(type_, QuantType):
            steps = _explain_quantized_diff(ours[differs], theirs[differs], picked, type_, differs)
        else:
            steps = _float_error_steps(ours[differs], theirs[differs], picked)
    causes: dict[str, int] = {}
    left, widest, furthest = np.ones(total, np.bool_), 0.0, 0.0
    for cause, need, bound in steps:
        fits = left & (need <= bound)
        if fits.any():
            causes[cause] = causes.get(cause, 0) + int(np.count_nonzero(fits))
            widest = max(widest, float(bound[fits].max()))
            furthest = max(furthest, float(need[fits].max()))
        left &= ~fits
    if left.any():
        causes[UNEXPLAINED] = int(np.count_nonzero(left))
    unexplained = np.zeros(ours.shape, np.bool_)
    unexplained[differs] = left
    return Blame(causes, widest, furthest, unexplained)


_Step = tuple[str, Array, Array]
"""A cause, how much each element would have to be moved, and how much it may be."""


def _picked(exact: Exact, differs: Array) -> Exact:
    shape = differs.shape
    return Exact(
        exact.real[differs],
        np.broadcast_to(exact.elementwise, shape)[differs],
        np.broadcast_to(exact.accumulated, shape)[differs],
        None if exact.as_written is None else exact.as_written[differs],
        tuple((low[differs], high[differs]) for low, high in exact.halves),
    )


def _explain_quantized_diff(
    ours: Array, theirs: Array, exact: Exact, type_: QuantType, differs: Array
) -> list[_Step]:
    params = type_.params
    if not params.storage_dtype.is_integer:
        return []
    shape = differs.shape
    scale = np.broadcast_to(params.aligned(params.scale, shape).astype(np.float64), shape)[differs]
    offsets = params.aligned(params.zero_point, shape).astype(np.float64)
    zero = np.broadcast_to(offsets, shape)[differs]
    scaled = exact.real / scale
    ideal = scaled + zero
    rounding = UNIT * (2 * np.abs(scaled) + np.abs(ideal))

    def need(stored: Array, target: Array) -> Array:
        clipped = np.clip(target, params.qmin, params.qmax)
        return np.abs(stored.astype(np.float64) - clipped) - 0.5

    both = np.maximum(need(ours, ideal), need(theirs, ideal))
    few = np.minimum(exact.elementwise / scale + rounding, CAP)
    many = np.minimum(exact.accumulated / scale + rounding, CAP)
    steps = [(TIE, both, few), (ACCUMULATION, both, many)]
    if exact.as_written is not None:
        written = exact.as_written / scale + zero
        either = np.maximum(need(ours, ideal), need(theirs, written))
        steps.append((BIAS, either, many))
    for low, high in exact.halves:
        ends = low / scale + zero, high / scale + zero
        fits = _beyond(theirs, *(np.clip(e, params.qmin, params.qmax) for e in ends)) <= rounding
        fits &= need(ours, ideal) <= many
        steps.append((HALF, *_placed(fits, need(theirs, ideal))))
    return steps


def _beyond(stored: Array, low: Array, high: Array) -> Array:
    """Returns how far stored integers lie from what the numbers of an interval round to."""
    wide = stored.astype(np.float64)
    return np.maximum(low - wide, wide - high) - 0.5


def _placed(fits: Array, distance: Array) -> tuple[Array, Array]:
    """Returns need and bound of a cause that is proved in another way where ``fits`` is true."""
    return np.where(fits, distance, np.inf), distance


def _float_error_steps(ours: Array, theirs: Array, exact: Exact) -> list[_Step]:
    """Floats are rounded to float32 or less, so any may differ by a few ulp."""
    dtype = DType.of(ours.dtype)
    rounding = (unit(dtype) if dtype in HALVES else UNIT) * np.abs(exact.real)
    if dtype in HALVES:
        rounding = rounding + smallest(dtype)

    def need(stored: Array, target: Array) -> Array:
        return np.abs(stored.astype(np.float64) - target)

    both = np.maximum(need(ours, exact.real), need(theirs, exact.real))
    steps = [
        (ROUNDING, both, exact.elementwise + rounding),
        (ACCUMULATION, both, exact.accumulated + rounding),
    ]
    if exact.as_written is not None:
        either = np.maximum(need(ours, exact.real), need(theirs, exact.as_written))
        steps.append((BIAS, either, exact.accumulated + rounding))
    for low, high in exact.halves:
        wide = theirs.astype(np.float64)
        fits = (low <= wide) & (wide <= high)
        fits &= need(ours, exact.real) <= exact.accumulated + rounding
        steps.append((HALF, *_placed(fits, need(theirs, exact.real))))
    return steps
