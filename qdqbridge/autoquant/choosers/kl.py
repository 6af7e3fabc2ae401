"""The threshold with the smallest Kullback-Leibler divergence, as TensorRT's entropy calibration.

The published algorithm tries every number of bins as the threshold and builds two distributions
for each. Written with prefix sums of ``c`` and ``c ln c`` one threshold costs as many steps as
there are codes. Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.choosers.chooser import RangeChooser
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import SIDE, TensorStats


@dataclass(frozen=True, slots=True)
class KL(RangeChooser):
    """The clipping that keeps the distribution of magnitudes most like itself.

    It is here for comparison with tools that use it: on tensors with long tails it clips far more
    than the error of the result allows.
    """

    costly: ClassVar[bool] = True

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the threshold on the sides where values were seen."""
        counts = stats.histogram.counts
        magnitudes = (counts[SIDE:] + counts[SIDE - 1 :: -1]).astype(np.float64)
        one_sided = stats.minimum >= 0 or stats.maximum <= 0
        levels = format.levels if one_sided and not format.symmetric else (format.levels + 1) // 2
        magnitudes[0] = magnitudes[1]  # the first bin is the spike around zero
        if format.is_float or not magnitudes.any() or levels >= SIDE:
            return stats.minimum, stats.maximum
        reach = threshold(magnitudes, levels) * stats.histogram.width
        return max(stats.minimum, -reach), min(stats.maximum, reach)


def threshold(counts: NDArray[np.float64], levels: int) -> int:
    """Returns the number of bins to keep: the last of those with the smallest divergence.

    Args:
        counts: Counts of magnitudes, the first bin next to zero.
        levels: Number of codes for magnitudes.
    """
    counts = counts[: int(np.flatnonzero(counts)[-1]) + 1]
    if len(counts) <= levels:
        return len(counts)
    found = divergences(counts, levels)
    return levels + int(np.flatnonzero(found == found.min())[-1])


def divergences(counts: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Returns KL(P, Q) for each number of kept bins from ``levels`` to all of them.

    P is the kept bins with everything beyond added to the last one; Q is the kept bins merged to
    ``levels`` cells, each spread evenly over its bins that are not empty.
    """
    kept = np.arange(levels, len(counts) + 1)
    total, filled = counts.sum(), counts > 0
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    used = np.concatenate([[0], np.cumsum(filled)])
    logs = counts * np.log(np.where(filled, counts, 1.0))
    entropies = np.concatenate([[0.0], np.cumsum(logs)])
    borders = -(-np.arange(levels + 1) * kept[:, None] // levels)
    cells = np.diff(sums[borders], axis=1)
    share = cells / np.maximum(np.diff(used[borders], axis=1), 1)
    spread = np.log(np.where(share > 0, share, 1.0))
    beyond, last = total - sums[kept], counts[kept - 1]
    end = last + beyond
    own = entropies[kept - 1] + end * np.log(np.where(end > 0, end, 1.0))
    crossed = (cells * spread).sum(axis=1) + beyond * spread[:, -1]
    with np.errstate(divide="ignore"):
        result = (own - crossed) / total - np.log(total) + np.log(sums[kept])
    return np.where((beyond > 0) & (last == 0), np.inf, result)
