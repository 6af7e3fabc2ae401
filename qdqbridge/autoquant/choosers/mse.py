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
from qdqbridge.autoquant.profiling.stats import SIDE, Histogram, TensorStats

_MANY = 1 << 12
"""Codes from which rounding errors are negligible beside clipping: nothing is searched then."""
_TOGETHER = 1 << 13
"""Borders that are looked at together: small arrays stay in the cache, and need no pages."""
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
        # The integral of x**n below x, in bin k: offsets[n][k] + slopes[n][k] * x**(n + 1).
        self._slopes = [density / (n + 1) for n in range(3)]
        self._offsets: list[NDArray[Any]] = []
        low, high = edges[:-1], edges[1:]
        for slope, bottom, top in zip(self._slopes, _powers(low), _powers(high), strict=True):
            whole = np.cumsum(slope * (top - bottom))
            self._offsets.append(np.concatenate([[0.0], whole[:-1]]) - slope * bottom)

    def _places(
        self, borders: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns borders where there are values, and the bin that each is in."""
        at = np.clip(borders, *self._ends)
        index = np.floor(at / self._width).astype(np.int64)
        index -= self._first
        return at, np.clip(index, 0, len(self._slopes[0]) - 1, out=index)

    def below(self, borders: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
        """Returns the integrals of 1, x and x² over all that lies below each border."""
        at, index = self._places(borders)
        return tuple(
            slopes.take(index) * power + offsets.take(index)
            for offsets, slopes, power in zip(self._offsets, self._slopes, _powers(at), strict=True)
        )

    def _between(self, borders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the integral of ``x - border`` over all that lies below each border."""
        at, index = self._places(borders)
        (mass, first, _), (slope, half, _) = self._offsets, self._slopes
        found = half.take(index) * at
        found *= at
        found += first.take(index)
        at *= slope.take(index)
        at += mass.take(index)
        at *= borders
        found -= at
        return found

    def error(
        self,
        scale: NDArray[np.float64],
        zero_point: NDArray[np.float64],
        format: Format,
        saturation: float = 1.0,
    ) -> NDArray[np.float64]:
        """Returns the sum of squared errors for each of several pairs of parameters.

        With codes ``v`` and borders ``b`` halfway between them, the sum over all cells of
        ``(x - v)²`` is that with the last code alone and, for every border, twice its step times
        the integral of ``x - b`` below it: moving what lies there from one code to the one before
        changes ``(x - v)²`` by that.

        Args:
            scale: Shape (candidates,).
            zero_point: Shape (candidates,).
            format: Its codes.
            saturation: The weight of what lies beyond half a step outside the codes; the last
                step, of floats.
        """
        codes = format.grid
        low, last = ((code - zero_point) * scale for code in (codes[0], codes[-1]))
        steps, halfway = np.diff(codes), (codes[1:] + codes[:-1]) / 2
        moved, count = np.empty(len(scale)), max(1, _TOGETHER // len(codes))
        for part in (slice(i, i + count) for i in range(0, len(scale), count)):
            borders = halfway - zero_point[part, None]
            borders *= scale[part, None]
            moved[part] = self._between(borders) @ steps
        mass, first, square = (offsets[-1] + slopes[-1] * power for offsets, slopes, power in zip(
            self._offsets, self._slopes, _powers(self._ends[1]), strict=True
        ))  # fmt: skip
        whole = square - 2 * last * first + last * last * mass
        found = whole + 2 * scale * moved
        if saturation == 1:
            return found
        beyond = scale * steps[-1] / 2
        m, f, s = self.below(np.stack([low - beyond, last + beyond], axis=1))
        outside = s[:, 0] - 2 * low * f[:, 0] + low**2 * m[:, 0]
        m, f, s = mass - m[:, 1], first - f[:, 1], square - s[:, 1]
        outside += s - 2 * last * f + last**2 * m
        return found + (saturation - 1) * outside


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
