"""Histograms of what a value holds: of a constant, or of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.types import QuantType

BINS = 48
SAMPLED = 1 << 16
"""Elements that are looked at: more of them move no bar that can be seen."""


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
        real = _sample(_real(value, stored))
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


def _real(value: Value, stored: NDArray[Any]) -> NDArray[np.float64]:
    if isinstance(value.type, QuantType):
        params = value.type.params
        if params.per_tensor and stored.size > SAMPLED:
            stored = _sample(stored)
        return dequantize(stored, params).astype(np.float64)
    return _sample(stored).astype(np.float64)


def _sample(array: NDArray[Any]) -> NDArray[Any]:
    flat = array.reshape(-1)
    step = -(-flat.size // SAMPLED)
    return flat[::step] if step > 1 else flat


def _range(value: Value) -> list[float] | None:
    """Returns the least and the largest real number that can be stored, of one scale only."""
    if not isinstance(value.type, QuantType) or not value.type.params.per_tensor:
        return None
    params = value.type.params
    scale, zero = float(params.scale), float(params.zero_point)
    return [(float(params.qmin) - zero) * scale, (float(params.qmax) - zero) * scale]
