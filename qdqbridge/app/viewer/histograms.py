"""Histograms of what a value holds: of a constant, or of a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType

BINS = 48
SAMPLED = 1 << 16
"""Elements that are looked at: more of them move no bar that can be seen."""

_ROWS = 48
"""Indices of an axis that are looked at in any case."""


def histogram(value: Value, stored: NDArray[Any], *, run: bool = False) -> dict[str, Any] | None:
    """Returns the histogram of real numbers; None where there are none, or they are no numbers.

    Args:
        value: The value, whose type says what stored integers mean.
        stored: Its elements, of which an even sample is taken where they are very many.
        run: True where they come from a run, and not from the file.
    """
    if stored.dtype == np.object_ or stored.dtype.kind in "USb" or not stored.size:
        return None
    with np.errstate(all="ignore"):
        real = _dequantized_sample(value, stored)
        finite = real[np.isfinite(real)]
    if not finite.size:
        return None
    counts, edges = np.histogram(finite, bins=BINS)
    what = f"{stored.size} {'values of a run' if run else 'weights'}"
    if real.size < stored.size:
        what += f" ({real.size} of them looked at)"
    if finite.size < real.size:
        what += f", {real.size - finite.size} of them no finite number"
    return {
        "low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist(),
        "clip": _range(value), "what": what,
    }  # fmt: skip


def _dequantized_sample(value: Value, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the real numbers of an even sample; what is not in it is not read."""
    steps = _sampling_strides(stored)
    part = stored[tuple(slice(None, None, step) for step in steps)]
    if not isinstance(value.type, QuantType):
        return part.astype(np.float64)
    params = value.type.params
    if params.axis is None or part.size == stored.size:
        return dequantize(part, params).astype(np.float64)
    axis = params.axis
    block = params.block_size or 1
    places = np.asarray(range(0, stored.shape[axis], steps[axis]), np.int64) // block
    scale, zero = (
        _along(numbers, places, axis, steps) for numbers in (params.scale, params.zero_point)
    )
    wide = part.astype(np.float64)
    integer = params.storage_dtype.is_integer
    return (wide - zero.astype(np.float64) if integer else wide) * scale.astype(np.float64)


def _along(
    numbers: NDArray[Any], places: NDArray[Any], axis: int, steps: tuple[int, ...]
) -> NDArray[Any]:
    """Returns scales or zero points as they lie against a sample."""
    if numbers.ndim <= 1:
        shape = [1] * len(steps)
        shape[axis] = -1
        return numbers[places].reshape(shape)
    taken = numbers.take(places, axis=axis)
    others = (slice(None) if i == axis else slice(None, None, s) for i, s in enumerate(steps))
    return taken[tuple(others)]


def _sampling_strides(stored: NDArray[Any]) -> tuple[int, ...]:
    """Returns how far apart elements are looked at along each axis.

    First along the axis whose elements lie furthest apart: a large array is read from a file, and
    whole pages of it.
    """
    shape, left, steps = stored.shape, list(stored.shape), [1] * stored.ndim
    while math.prod(left) > SAMPLED:
        many = [axis for axis, extent in enumerate(left) if extent > _ROWS]
        axis = max(many or range(len(left)), key=lambda axis: (
            stored.strides[axis] if many else left[axis]))  # fmt: skip
        steps[axis] *= 2
        left[axis] = -(-shape[axis] // steps[axis])
    return tuple(steps)


def _range(value: Value) -> list[float] | None:
    """Returns the least and the largest real number that can be stored, of one scale only."""
    if not isinstance(value.type, QuantType) or not value.type.params.per_tensor:
        return None
    params = value.type.params
    scale, zero = float(params.scale), float(params.zero_point)
    return [(float(params.qmin) - zero) * scale, (float(params.qmax) - zero) * scale]
