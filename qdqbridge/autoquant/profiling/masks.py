"""What masks fill in: minus infinity, -1e30, or -1e4 among logits, where nothing is.

It is no signal. A range that holds it resolves nothing else, and in a sum of squares it outweighs
all that a model computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MASK, HUGE, APART = 9e3, 1e9, 100.0
"""What a mask puts where nothing is: at most minus the first, or anything above the second in size,
and so many times as far from zero as all else."""


def comparable(wanted: Array, found: Array) -> tuple[Array, Array]:
    """Returns two outputs in float64 such that their difference is an error.

    What a mask fills is no signal: there it counts how far the other one comes into the range of
    all other values.

    Args:
        wanted: The float model's output.
        found: The same of what is looked at.
    """
    real, other = wanted.astype(np.float64), found.astype(np.float64)
    filled = filled_by_masks(wanted)
    if filled is None:
        return real, other
    rest = real[~filled]
    ends = (rest.min(), rest.max()) if rest.size else (0.0, 0.0)
    other[filled] = np.clip(other[filled], *ends) - np.clip(real[filled], *ends)
    real[filled] = 0
    return real, other


def filled_by_masks(array: Array) -> NDArray[np.bool_] | None:
    """Returns where a mask filled an array (with minus infinity, -1e30, or -1e4 among logits).

    None where nothing looks like that, and where NaN does.
    """
    if array.dtype.kind not in "fV" or not array.size:
        return None
    sizes = np.abs(array.astype(np.float64))
    large = ~(sizes < HUGE) | (array < -MASK)
    if not large.any() or np.isnan(sizes).any():
        return None
    rest = sizes[~large]
    apart = not rest.size or sizes[large].min() > APART * rest.max()
    return large if apart else None
