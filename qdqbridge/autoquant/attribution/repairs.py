"""Other ways to round one tensor, which are tried before they are proposed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.correspondence import Rounded
from qdqbridge.autoquant.attribution.simulation import Change, rounding
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.dynamic import DYNAMIC_DENSE
from qdqbridge.core.ops.dynamic import rounded as dynamically_rounded

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Repair:
    """Another way to round a tensor.

    Attributes:
        cost: What it takes: other numbers in the file, a scale per channel, 16 bits, or floats.
        words: What it is called.
        change: What becomes of the tensor.
    """

    cost: int
    words: str
    change: Change


_NUMBERS, _CHANNELS, _WIDE, _FLOAT = range(4)
_BITS = 16
"""What a tensor gets that needs more bits."""
_TAILS = (0.0, 1e-4, 1e-3)
"""Shares of an activation's elements that a range may leave out at each end."""


def repairs(rounded: Rounded, original: Array) -> Iterator[Repair]:
    """Yields repairs of one tensor, the cheapest first; the last one is to leave it float.

    Args:
        rounded: The tensor.
        original: What it holds in the float graph.
    """
    params = rounded.params
    if params is None and rounded.theirs.quant is not None:
        params = rounded.theirs.quant.params
    if params is not None and params.storage_dtype.is_integer and original.size:
        if rounded.kind == "activation" and params.per_tensor:
            yield from _of_activation(params, original)
        elif rounded.kind in ("weight", "constant"):
            yield from _of_weight(rounded, params, original)
        elif rounded.kind == "bias":
            words = "the float bias rounded to the accumulator's step"
            yield Repair(_NUMBERS, words, _nearest(rounded, params))
    elif rounded.their_node is not None and rounded.running is not None:
        dense = DYNAMIC_DENSE.of(rounded.their_node)
        if dense is not None and not dense.rows:
            rows = "a scale for every row"
            yield Repair(_CHANNELS, rows, partial(dynamically_rounded, rows=True))
    yield Repair(_FLOAT, "leave it float", lambda real: real)


def _of_activation(params: QuantParams, original: Array) -> Iterator[Repair]:
    finite = original[np.isfinite(original)]
    if not finite.size:
        return
    limits = params.storage_dtype
    whole = replace(params, qmin=limits.qmin, qmax=limits.qmax)
    for tail in _TAILS:
        low, high = (float(np.quantile(finite, q)) for q in (tail, 1 - tail))
        words = "the range of the data" if not tail else f"the range of {1 - 2 * tail:.2%} of it"
        span = f"{low:.6g} to {high:.6g}"
        yield Repair(_NUMBERS, f"{words}: {span}", rounding(_ranged(params, low, high)))
        if whole != params:  # a clamp has made the range narrower, which a wider one needs
            all_bits = f"{words} in all {limits.bits} bits: {span}"
            yield Repair(_NUMBERS, all_bits, rounding(_ranged(whole, low, high)))
    if limits.bits >= _BITS:
        return
    low, high = float(finite.min()), float(finite.max())
    wide = _ranged(replace(params, storage_dtype=DType.UINT16, qmin=0, qmax=65535), low, high)
    yield Repair(_WIDE, "16 bits", rounding(wide))


def _ranged(params: QuantParams, low: float, high: float) -> QuantParams:
    """Returns parameters of a range with 0 in it; symmetric where they were signed and so."""
    low, high = min(low, 0.0), max(high, 0.0)
    if int(params.zero_point) == 0 and params.qmin < 0:
        scale = max(-low / -params.qmin, high / params.qmax)
        zero = 0
    else:
        scale = (high - low) / (params.qmax - params.qmin)
        zero = round(params.qmin - low / scale) if scale else 0
    zero = min(max(zero, params.qmin), params.qmax)
    step = np.asarray(scale or 1.0, params.scale.dtype)
    return replace(params, scale=step, zero_point=np.asarray(zero, np.int32))


def _of_weight(rounded: Rounded, params: QuantParams, original: Array) -> Iterator[Repair]:
    own = _symmetric(original, params.qmax)
    if params.per_tensor:
        anew = "quantized anew, per tensor"
        yield Repair(_NUMBERS, anew, lambda real: _round_to_grid(real, own, params.qmax))
    axes = range(original.ndim) if original.ndim > 1 else ()
    best: tuple[float, int] | None = None
    for axis in axes:
        steps = _symmetric(original, params.qmax, axis)
        moved = _round_to_grid(original, steps, params.qmax) - original
        gap = float(np.square(moved, dtype=np.float64).sum())
        best = min(best or (gap, axis), (gap, axis))
    if best is not None:
        steps = _symmetric(original, params.qmax, best[1])
        words = f"per channel along axis {best[1]}" if params.per_tensor else "quantized anew"
        cost = _CHANNELS if params.per_tensor else _NUMBERS
        yield Repair(cost, words, lambda real: _round_to_grid(real, steps, params.qmax))
    if params.storage_dtype.bits < _BITS:
        wide = _symmetric(original, 32767)
        yield Repair(_WIDE, "16 bits", lambda real: _round_to_grid(real, wide, 32767))


def _symmetric(original: Array, largest: int, axis: int | None = None) -> Array:
    """Returns the steps of a symmetric range."""
    axes = None if axis is None else tuple(i for i in range(original.ndim) if i != axis)
    most = np.abs(original.astype(np.float64)).max(axis=axes, keepdims=True)
    return np.where(most > 0, most / max(largest, 1), 1.0)


def _round_to_grid(real: Array, step: Array, largest: int) -> Array:
    codes = np.clip(np.rint(real / step), -largest - 1, largest)
    return (codes * step).astype(real.dtype)


def _nearest(rounded: Rounded, params: QuantParams) -> Change:
    """A bias is stored in steps of the accumulator, which its weight and operand decide."""
    node = rounded.their_node
    scale = params.scale.astype(np.float64)
    if node is not None and len(node.inputs) > 1:
        pair = [v.quant.params.scale for v in node.inputs[:2] if v is not None and v.quant]
        if len(pair) == 2:
            scale = np.asarray(pair[0], np.float64) * np.asarray(pair[1], np.float64)

    def change(real: Array) -> Array:
        step = scale if scale.size in (1, real.size) else scale.max()
        return (np.rint(real / step.reshape(-1)) * step.reshape(-1)).astype(real.dtype)

    return change
