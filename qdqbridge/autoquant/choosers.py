"""Choosers: from what was seen of a tensor to the parameters that it shall have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import SIDE, Histogram, TensorStats
from qdqbridge.core.graph.types import QuantParams

# ---- What a chooser is told, and what it returns -------------------------------------------------

_MORE = 1000.0
"""How many times as many samples as were seen formats with many codes have room for."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a tensor stands.

    Attributes:
        name: The tensor's name in the float model.
        producer: The operator that makes it; empty for a graph input.
        readers: The operators that read it.
        chosen: The parameters of the tensors before it, by name: choosers run in topological
            order.
        samples: Returns the tensor itself, one array for each batch of samples, as it arrives
            behind the tensors and weights before it, rounded as was chosen; None where there are
            no samples (a profile alone, a constant, choosers that are tried).
        interval: What no result of its operator lies outside, as [0, 1] of a Softmax; None where
            nothing is known.
    """

    name: str = ""
    producer: str = ""
    readers: tuple[str, ...] = ()
    chosen: Mapping[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    samples: Callable[[], Sequence[NDArray[Any]]] | None = None
    interval: tuple[float, float] | None = None


class Chooser(Protocol):
    """Anything that chooses parameters."""

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns the parameters of a tensor."""
        ...


@dataclass(frozen=True, slots=True)
class RangeChooser(ABC):
    """A chooser that chooses a range of real numbers; its format makes parameters of it.

    Attributes:
        costly: It takes long, and says the same of the same statistics each time: what it says of
            weights is kept.
    """

    costly: ClassVar[bool] = False

    @abstractmethod
    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the smallest and largest number that codes shall stand for."""

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns parameters that cover :meth:`range`, as far as numbers can lie there.

        Where codes are many they cover what many more samples would reach too.
        """
        if stats.minimum > stats.maximum:
            return format.per_tensor().params(0, 0)
        low, high = self.range(stats, format)
        if format.fine:  # a bit of rounding costs nothing there, and what other data clip does
            least, most = stats.extrapolated(_MORE)
            low, high = min(low, least), max(high, most)
        if context.interval is not None:
            low, high = max(low, context.interval[0]), min(high, context.interval[1])
        return format.per_tensor().params(low, high)


# ---- Parameters of many short rows of weights at once: blocks, whose statistics say little -------
# A block of 32 weights has no distribution to speak of: codes are tried on the weights themselves.


Rows = NDArray[np.float32]
Pairs = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Scales and zero points, one of each for every row."""
_SHARES = np.linspace(1.0, 0.6, 17)
_FITS = 3
_SHRINKING, _FASTER, _STEPS = 10.0, 1.01, 20


@runtime_checkable
class RowChooser(Protocol):
    """A chooser that looks at weights themselves, many rows at once."""

    def rows(self, rows: Rows, format: Format) -> Pairs:
        """Returns scale and zero point of every row.

        Args:
            rows: ``[rows, n]``.
            format: How they are stored, per tensor.
        """
        ...


def extremes(rows: Rows, format: Format) -> Pairs:
    """Returns parameters that clip nothing."""
    return format.scale(rows.min(axis=1), rows.max(axis=1))


def least_error(rows: Rows, format: Format) -> Pairs:
    """Returns parameters with the least squared error among shares of the extremes.

    The best one is then fitted to its own codes (least squares) as long as that helps.
    """
    best = _Best(rows, format, 2.0)
    for pair in _narrower(rows, format):
        best.offer(*pair)
    for _ in range(_FITS):
        best.offer(*_fitted(rows, rows, *best.pair, format))
    return best.pair


def half_quadratic(rows: Rows, format: Format, power: float) -> Pairs:
    """Returns parameters with a small sum of ``|error| ** power``; see the chooser HQQ."""
    best = _Best(rows, format, power)
    scale, zero_point = best.pair
    beta = _SHRINKING
    for _ in range(_STEPS):
        error = rows - _read_back(rows, scale, zero_point, format)
        size = np.abs(error)
        with np.errstate(divide="ignore"):
            less = np.maximum(size - size ** (power - 1) / beta, 0)
        scale, zero_point = _fitted(rows, rows - np.sign(error) * less, scale, zero_point, format)
        best.offer(scale, zero_point)
        beta *= _FASTER
    return best.pair


class _Best:
    """The best parameters offered so far, row by row; the extremes' to begin with."""

    def __init__(self, rows: Rows, format: Format, power: float) -> None:
        self._rows, self._format, self._power = rows, format, power
        self.pair = extremes(rows, format)
        self._error = self._error_of(*self.pair)

    def _error_of(self, scale: NDArray[np.float32], zero_point: NDArray[np.int32]) -> Rows:
        size = np.abs(self._rows - _read_back(self._rows, scale, zero_point, self._format))
        return (size * size if self._power == 2.0 else size**self._power).sum(axis=1)

    def offer(self, scale: NDArray[np.float32], zero_point: NDArray[np.int32]) -> None:
        """Takes the parameters of those rows that are better off with them."""
        error = self._error_of(scale, zero_point)
        better = error < self._error
        self._error = np.where(better, error, self._error)
        self.pair = (
            np.where(better, scale, self.pair[0]),
            np.where(better, zero_point, self.pair[1]),
        )


def _quantize_rows(
    rows: Rows, scale: NDArray[np.float32], zero_point: NDArray[np.int32], format: Format
) -> Rows:
    if format.is_float:
        most = format.storage.largest
        inside = np.clip(rows / scale[:, None], -most, most)
        return inside.astype(format.storage.numpy).astype(np.float32)
    shifted = np.rint(rows / scale[:, None]) + zero_point[:, None].astype(np.float32)
    return np.clip(shifted, format.low, format.high)


def _read_back(
    rows: Rows, scale: NDArray[np.float32], zero_point: NDArray[np.int32], format: Format
) -> Rows:
    codes = _quantize_rows(rows, scale, zero_point, format)
    return (codes - zero_point[:, None].astype(np.float32)) * scale[:, None]


def _narrower(rows: Rows, format: Format) -> Iterator[Pairs]:
    """Yields parameters of ranges within the extremes, and those that use a lone last code."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    if format.symmetric:
        lone = not format.is_float and format.low != -format.high
        if lone:  # the code that only one sign has: -8 of four bits
            reach = np.maximum(np.abs(low), np.abs(high))
            for last in (-format.low + format.middle, format.high - format.middle):
                yield (
                    format.scale(-reach, reach)[0]
                    * np.float32((format.high - format.low) / 2 / last),
                    format.scale(-reach, reach)[1],
                )
        for share in _SHARES[1:]:
            yield format.scale(low * share, high * share)
        return
    for share in _SHARES[1:]:
        yield format.scale(low * share, high * share)
        yield format.scale(low, high * share)
        yield format.scale(low * share, high)


def _fitted(
    rows: Rows,
    wanted: Rows,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.int32],
    format: Format,
) -> Pairs:
    """Returns the parameters that bring the codes of ``rows`` closest to ``wanted``."""
    codes = _quantize_rows(rows, scale, zero_point, format)
    if not format.symmetric and not format.power_of_two:
        middle = (codes - wanted / scale[:, None]).mean(axis=1)
        zero_point = np.clip(np.rint(middle), format.low, format.high).astype(np.int32)
    steps = codes - zero_point[:, None].astype(np.float32)
    square = (steps * steps).sum(axis=1)
    own = (wanted * steps).sum(axis=1) / np.where(square > 0, square, 1)
    powers = format.power_of_two or format.microscaled
    usable = (square > 0) & (own > np.finfo(np.float32).tiny) & (not powers)
    return np.where(usable, own, scale).astype(np.float32), zero_point


def in_chunks(chooser: RowChooser, rows: NDArray[Any], format: Format, elements: int) -> Pairs:
    """Returns scale and zero point of every row, computed for so many elements at a time.

    Args:
        chooser: Looks at the rows.
        rows: ``[rows, n]``.
        format: How they are stored, per tensor.
        elements: How many elements, about.
    """
    step = max(1, elements // max(rows.shape[1], 1))
    found = [
        chooser.rows(np.asarray(rows[i : i + step], np.float32), format)
        for i in range(0, len(rows), step)
    ]
    return np.concatenate([s for s, _ in found]), np.concatenate([z for _, z in found])


# ---- Ranges that are read off the statistics -----------------------------------------------------


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

    Pictures that all reach white get no more room; what has long tails does.

    Attributes:
        times: How many times as many samples.
    """

    times: float = 4.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the extremes moved by what that tail of the samples' extremes says."""
        del format
        return stats.extrapolated(self.times)


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


# ---- The range with the smallest mean square error, integrated exactly over the histogram --------
# Within a bin values are taken as evenly spread. With the running integrals of density, first and
# second moment, the error of one cell (the numbers that share a code) is a difference of these at
# its two borders, so that one candidate costs as many steps as there are codes, not bins.


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
    refinements: int = 2
    saturation: float = 1.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the best of many ranges; that of the extremes is among them."""
        low, high = min(stats.minimum, 0.0), max(stats.maximum, 0.0)
        if format.fine or stats.histogram.total == 0:
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


# ---- Weights by half-quadratic steps -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HQQ:
    """Weights by half-quadratic steps: few large errors rather than many small ones.

    The sum of ``|error| ** power`` is made small by turns: what of the errors is worth keeping
    (a shrinkage), and the parameters that fit best without it (Badri and Shaji, "Half-Quadratic
    Quantization of Large Machine Learning Models", 2023; zero points are whole numbers here, and
    scales are fitted as well). Of tensors that only statistics are known of it takes MSE's range.

    Attributes:
        power: Of the errors.
    """

    power: float = 0.7

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns per-tensor parameters with the smallest mean square error."""
        return MSE()(stats, format, context)

    def rows(self, rows: Rows, format: Format) -> Pairs:
        """Returns scale and zero point of every row."""
        return half_quadratic(rows, format, self.power)


# ---- kl ------------------------------------------------------------------------------------------
# The threshold with the smallest Kullback-Leibler divergence, as TensorRT's entropy calibration.
#
# The published algorithm tries every number of bins as the threshold and builds two distributions
# for each. Written with prefix sums of ``c`` and ``c ln c`` one threshold costs as many steps as
# there are codes. Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017.


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


# ---- Choosers: from what was seen of a tensor to the parameters that it shall have ---------------
# A chooser is any ``chooser(stats, format, context) -> QuantParams``; those here are ranges in
# disguise, ``range(stats, format) -> (low, high)``.


CHOOSERS: Mapping[str, Chooser] = MappingProxyType(
    {
        "mse": MSE(),
        "minmax": MinMax(),
        "percentile": Percentile(),
        "extrapolated": Extrapolated(),
        "mean-of-maxima": MeanOfMaxima(),
        "kl": KL(),
        "hqq": HQQ(),
    }
)
"""The choosers that have a name."""
