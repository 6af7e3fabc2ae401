"""The range with the smallest mean square error, integrated exactly over the histogram.

Within a bin values are taken as evenly spread. With the running integrals of density, first and
second moment, the error of one cell (the numbers that share a code) is a difference of these at
its two borders, so that one candidate costs as many steps as there are codes, not bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.choosers.chooser import RangeChooser
from qdqbridge.autoquant.choosers.rows import Pairs, Rows, least_error
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.histogram import SIDE, Histogram
from qdqbridge.autoquant.profiling.stats import TensorStats

_MANY = 1 << 12
"""Codes from which rounding errors are negligible beside clipping: nothing is searched then."""
_NARROW = 1e-3
"""The least width of a bin at the end, in bins: one value in it would have none."""


def _powers(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Returns x, x² and x³; NumPy's power is many times slower."""
    square = x * x
    return x, square, square * x


class Moments:
    """Running integrals over a histogram.

    Bins are shrunk to the extremes that were seen, so that no density lies where no value was.
    """

    def __init__(self, histogram: Histogram, minimum: float, maximum: float) -> None:
        filled = np.flatnonzero(histogram.counts)
        first, last = (filled[0], filled[-1]) if filled.size else (0, 0)
        edges = histogram.edges[first : last + 2].copy()
        least = histogram.width * _NARROW
        edges[0] = min(max(edges[0], minimum), edges[1] - least)
        edges[-1] = max(min(edges[-1], maximum), edges[-2] + least)
        counts = histogram.counts[first : last + 1].astype(np.float64)
        widths = np.diff(edges)
        density = np.divide(counts, widths, out=np.zeros_like(counts), where=widths > 0)
        self._ends, self._width, self._first = edges[[0, -1]], histogram.width, int(first) - SIDE
        # The integral below x, in bin k: offsets[n][k] + slopes[n][k] * x**(n + 1).
        self._slopes = [density / (n + 1) for n in range(3)]
        self._offsets: list[NDArray[Any]] = []
        low, high = edges[:-1], edges[1:]
        for slope, bottom, top in zip(self._slopes, _powers(low), _powers(high), strict=True):
            whole = np.cumsum(slope * (top - bottom))
            self._offsets.append(np.concatenate([[0.0], whole[:-1]]) - slope * bottom)

    def below(self, borders: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
        """Returns the integrals of 1, x and x² over all that lies below each border."""
        at = np.clip(borders, *self._ends)
        index = np.floor(at / self._width).astype(np.int64)
        index -= self._first
        np.clip(index, 0, len(self._slopes[0]) - 1, out=index)
        parts: list[NDArray[Any]] = []
        for offsets, slopes, power in zip(self._offsets, self._slopes, _powers(at), strict=True):
            part = slopes.take(index)
            part *= power
            part += offsets.take(index)
            parts.append(part)
        return tuple(parts)

    def error(
        self,
        scale: NDArray[np.float64],
        zero_point: NDArray[np.float64],
        format: Format,
        saturation: float = 1.0,
    ) -> NDArray[np.float64]:
        """Returns the sum of squared errors for each of several pairs of parameters.

        Args:
            scale: Shape (candidates,).
            zero_point: Shape (candidates,).
            format: Its codes.
            saturation: The weight of what lies beyond half a step outside the codes; the last
                step, of floats.
        """
        # Written in place: quantization spends more time here than in any other function.
        codes = format.grid
        beyond = scale * (codes[-1] - codes[-2]) / 2
        codes = np.concatenate([codes[:1], codes, codes[-1:]])
        values = codes - zero_point[:, None]
        values *= scale[:, None]
        borders = np.empty((len(scale), len(codes) + 1))
        borders[:, 0], borders[:, -1] = -np.inf, np.inf
        borders[:, 1], borders[:, -2] = values[:, 0] - beyond, values[:, -1] + beyond
        np.add(values[:, 2:-1], values[:, 1:-2], out=borders[:, 2:-2])
        borders[:, 2:-2] /= 2
        mass, first, each = (part[:, 1:] - part[:, :-1] for part in self.below(borders))
        first *= 2 * values
        each -= first
        mass *= values * values
        each += mass
        return each[:, 1:-1].sum(axis=1) + saturation * (each[:, 0] + each[:, -1])


@dataclass(frozen=True, slots=True)
class MSE(RangeChooser):
    """The range with the smallest mean square error of rounding and clipping together.

    Attributes:
        steps: Number of shares of the whole range that are tried first.
        refinements: How often the neighbourhood of the best one is searched anew.
        saturation: How much more a squared error counts that comes from clipping. Rounding errors
            are independent and average out behind a tensor; what is clipped is pulled the same way
            everywhere, and data not seen yet reaches further.
    """

    costly: ClassVar[bool] = True

    steps: int = 12
    refinements: int = 4
    saturation: float = 1.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the best of many ranges; that of the extremes is among them."""
        low, high = min(stats.minimum, 0.0), max(stats.maximum, 0.0)
        if len(format.grid) >= _MANY or stats.histogram.total == 0:
            return low, high
        if format.symmetric:
            low, high = -stats.magnitude, stats.magnitude
        moments = Moments(stats.histogram, stats.minimum, stats.maximum)
        best = np.array([1.0, 1.0])
        reach = 1.0
        for _ in range(self.refinements + 1):
            best = self._search(moments, format, (low, high), best, reach)
            reach *= 2.0 / self.steps
        return float(low * best[0]), float(high * best[1])

    def rows(self, rows: Rows, format: Format) -> Pairs:
        """Returns scale and zero point of every row, whose errors are counted one by one."""
        return least_error(rows, format)

    def _search(
        self,
        moments: Moments,
        format: Format,
        bounds: tuple[float, float],
        centre: NDArray[np.float64],
        reach: float,
    ) -> NDArray[np.float64]:
        """Returns the best pair of shares within ``reach`` of ``centre``, which is among them."""
        offsets = np.linspace(-reach, reach, 2 * self.steps + 1)
        both = centre + offsets[:, None]
        tried = [both]
        if not format.symmetric and bounds[0] < 0 < bounds[1]:
            one = np.zeros((len(offsets), 2))
            one[:, 0] = offsets
            tried += [centre + one, centre + one[:, ::-1]]
        shares = np.concatenate([centre[None], *tried])
        shares = shares[((shares > 0) & (shares <= 1)).all(axis=1)]
        scale, zero_point = format.scale(shares[:, 0] * bounds[0], shares[:, 1] * bounds[1])
        errors = moments.error(
            scale.astype(np.float64), zero_point.astype(np.float64), format, self.saturation
        )
        return shares[int(np.argmin(errors))]
