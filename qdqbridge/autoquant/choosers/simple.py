"""Ranges that are read off the statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qdqbridge.autoquant.choosers.chooser import RangeChooser
from qdqbridge.autoquant.choosers.rows import Pairs, Rows, extremes
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import SIDE, TensorStats


@dataclass(frozen=True, slots=True)
class MinMax(RangeChooser):
    """All that was seen: nothing is clipped.

    Attributes:
        margin: How much further the range reaches, 1.1 for a tenth: data not seen yet may.
    """

    margin: float = 1.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the extremes."""
        del format
        return stats.minimum * self.margin, stats.maximum * self.margin

    def rows(self, rows: Rows, format: Format) -> Pairs:
        """Returns scale and zero point of every row."""
        return extremes(rows * np.float32(self.margin), format)


@dataclass(frozen=True, slots=True)
class MeanOfMaxima(RangeChooser):
    """The samples' own extremes on average: one odd sample does not set the range."""

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the means of the samples' extremes."""
        if format.symmetric:
            return -stats.per_sample.mean_magnitude, stats.per_sample.mean_magnitude
        return stats.per_sample.mean_minimum, stats.per_sample.mean_maximum


@dataclass(frozen=True, slots=True)
class Extrapolated(RangeChooser):
    """What more samples would reach: all that was seen, and further where samples differ in it.

    The largest of ``n`` numbers of an exponential tail lies ``H(n) - 1`` of its means beyond their
    own mean (``H`` the harmonic numbers), and that of ``times`` as many ``ln(times)`` further.
    Pictures that all reach white get no more room; what has long tails does.

    Attributes:
        times: How many times as many samples.
    """

    times: float = 4.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the extremes moved by what that tail of the samples' extremes says."""
        del format
        seen = stats.per_sample
        if seen.samples < 2:
            return stats.minimum, stats.maximum
        means = float(np.sum(1 / np.arange(2, seen.samples + 1)))
        share = float(np.log(self.times)) / means
        below = max(seen.mean_minimum - stats.minimum, 0.0)
        above = max(stats.maximum - seen.mean_maximum, 0.0)
        return stats.minimum - share * below, stats.maximum + share * above


@dataclass(frozen=True, slots=True)
class Percentile(RangeChooser):
    """All but a share of the values, taken in equal parts from both ends.

    Attributes:
        percent: How much of the tensor is kept, zeros included.
    """

    costly: ClassVar[bool] = True

    percent: float = 99.999

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns quantiles, interpolated within the bins of the histogram."""
        if format.symmetric:
            reach = self._symmetric(stats)
            return -reach, reach
        tail = (100 - self.percent) / 200 * stats.finite
        counts = stats.histogram.counts.copy()
        edges = stats.histogram.edges
        counts[SIDE] += stats.zeros
        low = _quantile(np.cumsum(counts), edges, tail)
        high = _quantile(np.cumsum(counts), edges, stats.finite - tail)
        return max(low, stats.minimum), min(high, stats.maximum)

    def _symmetric(self, stats: TensorStats) -> float:
        counts = stats.histogram.counts
        magnitudes = counts[SIDE:] + counts[SIDE - 1 :: -1]
        magnitudes[0] += stats.zeros
        edges = stats.histogram.edges[SIDE:]
        kept = self.percent / 100 * stats.finite
        return min(_quantile(np.cumsum(magnitudes), edges, kept), stats.magnitude)


def _quantile(cumulative: np.ndarray, edges: np.ndarray, rank: float) -> float:
    """Returns where ``rank`` values lie below, spread evenly within each bin."""
    index = min(int(np.searchsorted(cumulative, rank)), len(cumulative) - 1)
    before = cumulative[index - 1] if index else 0
    inside = cumulative[index] - before
    share = 0.0 if not inside else (rank - before) / inside
    return float(edges[index] + min(max(share, 0.0), 1.0) * (edges[index + 1] - edges[index]))
