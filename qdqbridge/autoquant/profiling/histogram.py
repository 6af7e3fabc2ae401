"""A histogram that is the same however its data is batched, ordered or shared out.

Bins are ``2**exponent`` wide and aligned at zero: bin ``k`` holds ``k * width <= x < (k + 1) *
width``. The exponent follows from the largest magnitude alone, and a coarser histogram is a finer
one with neighbours added, so that nothing depends on which value came first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 2048
"""Bins on each side of zero."""
FINEST = -126
"""The smallest exponent: bins no narrower than the smallest normal float32."""
_BITS = 11  # SIDE = 2**11


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Counts of finite, nonzero values.

    Attributes:
        exponent: Bins are ``2**exponent`` wide.
        counts: int64, ``2 * SIDE`` entries; entry ``i`` is bin ``i - SIDE``.
    """

    exponent: int
    counts: NDArray[np.int64]

    @staticmethod
    def empty() -> Histogram:
        """Returns the histogram of nothing, which changes nothing it is merged with."""
        return Histogram(FINEST, np.zeros(2 * SIDE, np.int64))

    @staticmethod
    def of(values: NDArray[Any]) -> Histogram:
        """Returns the histogram of finite values; zeros are left out."""
        if not values.size:
            return Histogram.empty()
        exponent = exponent_of(float(max(values.max(), -values.min(), 0)))
        scaled = values.reshape(-1).astype(np.float64) * 2.0**-exponent
        bins = np.floor(scaled, out=scaled).astype(np.int64) + SIDE
        counts = np.bincount(bins, minlength=2 * SIDE).astype(np.int64)
        counts[SIDE] -= np.count_nonzero(values == 0)
        return Histogram(exponent, counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return self.exponent == other.exponent and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    @property
    def width(self) -> float:
        """Width of a bin."""
        return math.ldexp(1.0, self.exponent)

    @property
    def edges(self) -> NDArray[np.float64]:
        """The ``2 * SIDE + 1`` edges of the bins."""
        return np.arange(-SIDE, SIDE + 1, dtype=np.float64) * np.float64(self.width)

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def coarsened(self, exponent: int) -> Histogram:
        """Returns the histogram that the same values make with wider bins."""
        halvings = min(exponent - self.exponent, _BITS)  # then each side is one bin already
        if halvings <= 0:
            return Histogram(exponent, self.counts)
        counts, bins = np.zeros_like(self.counts), SIDE >> halvings
        self.counts.reshape(2 * bins, -1).sum(axis=1, out=counts[SIDE - bins : SIDE + bins])
        return Histogram(exponent, counts)

    def merged(self, other: Histogram) -> Histogram:
        """Returns the histogram of both sets of values."""
        exponent = max(self.exponent, other.exponent)
        counts = self.coarsened(exponent).counts + other.coarsened(exponent).counts
        return Histogram(exponent, counts)


def exponent_of(magnitude: float) -> int:
    """Returns the smallest exponent whose bins reach beyond ``magnitude`` on both sides."""
    return FINEST if magnitude == 0 else max(math.frexp(magnitude)[1] - _BITS, FINEST)
