"""The error of one tensor, split by cause."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.correspondence import Rounded
from qdqbridge.autoquant.attribution.simulation import rounding
from qdqbridge.core.graph.quantization import QuantParams

Array = NDArray[Any]
_BEYOND = 0.55
"""Steps beyond which an error is no rounding: half of one, and what an earlier, finer one added."""


def changed(rounded: Rounded, original: Array) -> Array:
    """Returns what a tensor has become, as real numbers."""
    if rounded.replaced is not None:
        return rounded.replaced.astype(original.dtype)
    if rounded.running is not None:
        return rounded.running(original)
    assert rounded.params is not None
    return rounding(rounded.params)(original)


def causes(rounded: Rounded, original: Array) -> dict[str, float]:
    """Returns the power of a tensor's error by cause, the largest first.

    ``rounding`` is at most half a step, ``clipping`` is beyond what can be stored, and ``other
    numbers`` is neither: another scale, zero point or constant than the original's.

    Args:
        rounded: The tensor.
        original: What it holds in the float graph.
    """
    wide = original.astype(np.float64)
    error = np.square(changed(rounded, original).astype(np.float64) - wide)
    params = rounded.params
    if params is None and rounded.theirs.quant is not None:
        params = rounded.theirs.quant.params
    if params is None:
        return {f"{rounded.kind} of other numbers": float(error.sum())}
    step, low, high = _step_and_range(params, rounded, wide)
    clipped = (wide < low - step / 2) | (wide > high + step / 2)
    beyond = ~clipped & (error > np.square(_BEYOND * step))
    split = {
        f"{rounded.kind} clipping": float(error[clipped].sum()),
        f"{rounded.kind} of other numbers": float(error[beyond].sum()),
        f"{rounded.kind} rounding": float(error[~clipped & ~beyond].sum()),
    }
    return dict(sorted(split.items(), key=lambda item: -item[1]))


def limits(
    params: QuantParams, rounded: Rounded | None = None, wide: Array | None = None
) -> tuple[Array, Array]:
    """Returns the least and the largest real number that can be stored, at each element.

    Args:
        params: The parameters.
        rounded: The constant that has them, where they are not of a whole tensor.
        wide: What the constant holds in the float graph.
    """
    if params.per_tensor or rounded is None or wide is None:
        scale, zero = params.scale.astype(np.float64), params.zero_point.astype(np.float64)
        return (params.qmin - zero) * scale, (params.qmax - zero) * scale
    _, low, high = _step_and_range(params, rounded, wide)
    return low, high


def _step_and_range(
    params: QuantParams, rounded: Rounded, wide: Array
) -> tuple[Array, Array, Array]:
    """Returns the step and the range at each element."""
    stored = rounded.theirs.type.shape or wide.shape
    theirs = tuple(e if isinstance(e, int) else w for e, w in zip(stored, wide.shape, strict=False))
    if params.per_tensor:
        theirs = wide.shape
    scale = np.asarray(params.aligned(params.scale, theirs), np.float64)
    zero = np.asarray(params.aligned(params.zero_point, theirs), np.float64)
    turned = theirs != wide.shape and theirs[::-1] == wide.shape
    parts = (scale, (params.qmin - zero) * scale, (params.qmax - zero) * scale)
    spread = (np.broadcast_to(part, theirs) for part in parts)
    laid = tuple((part.T if turned else part).reshape(wide.shape) for part in spread)
    return laid  # type: ignore[return-value]
