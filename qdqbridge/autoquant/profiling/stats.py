"""What is remembered of one float tensor over all samples: exact, mergeable, independent of order.

Every field is a count, an extreme, or an exact sum, so that the statistics of two sets of samples
merge into those of both, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# ---- A histogram that is the same however its data is batched, ordered or shared out -------------
# Bins are ``2**exponent`` wide and aligned at zero: bin ``k`` holds ``k * width <= x < (k + 1) *
# width``. The exponent follows from the largest magnitude alone, and a coarser histogram is a finer
# one with neighbours added, so that nothing depends on which value came first.


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


# ---- What is remembered of one float tensor over all samples: exact, mergeable, in any order -----


_UNIT = 149
"""Every float32 is a multiple of ``2**-149``; sums are whole numbers of these."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelExtremes:
    """The smallest and largest finite value in every channel.

    Attributes:
        axis: The axis that numbers the channels.
        minimum: float32, one entry a channel; +infinity where a channel has no finite value.
        maximum: float32; -infinity there.
    """

    axis: int
    minimum: NDArray[np.float32]
    maximum: NDArray[np.float32]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChannelExtremes):
            return NotImplemented
        return (
            self.axis == other.axis
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def of(values: NDArray[Any], finite: NDArray[np.bool_] | None, axis: int) -> ChannelExtremes:
        """Returns the extremes of ``values``; ``finite`` is None where all of them are."""
        others = tuple(i for i in range(values.ndim) if i != axis)
        low, high = values, values
        if finite is not None:
            low = np.where(finite, values, np.float32(np.inf))
            high = np.where(finite, values, np.float32(-np.inf))
        minimum = low.min(axis=others, initial=np.inf).astype(np.float32)
        maximum = high.max(axis=others, initial=-np.inf).astype(np.float32)
        return ChannelExtremes(axis, minimum + np.float32(0), maximum + np.float32(0))

    def merged(self, other: ChannelExtremes) -> ChannelExtremes:
        """Returns the extremes of both."""
        minimum = np.minimum(self.minimum, other.minimum)
        return ChannelExtremes(self.axis, minimum, np.maximum(self.maximum, other.maximum))


@dataclass(frozen=True, slots=True)
class SampleExtremes:
    """What the samples' own extremes add up to, as whole numbers of ``2**-149``.

    Attributes:
        samples: Number of samples with a finite value.
        minima: Sum of each sample's smallest finite value.
        maxima: Sum of each sample's largest.
        magnitudes: Sum of each sample's largest magnitude.
    """

    samples: int = 0
    minima: int = 0
    maxima: int = 0
    magnitudes: int = 0

    def merged(self, other: SampleExtremes) -> SampleExtremes:
        """Returns the sums over both sets of samples."""
        return SampleExtremes(
            self.samples + other.samples,
            self.minima + other.minima,
            self.maxima + other.maxima,
            self.magnitudes + other.magnitudes,
        )

    @property
    def mean_minimum(self) -> float:
        """Mean of the samples' smallest values."""
        return _mean_of_fixed_point(self.minima, self.samples)

    @property
    def mean_maximum(self) -> float:
        """Mean of the samples' largest values."""
        return _mean_of_fixed_point(self.maxima, self.samples)

    @property
    def mean_magnitude(self) -> float:
        """Mean of the samples' largest magnitudes."""
        return _mean_of_fixed_point(self.magnitudes, self.samples)


@dataclass(frozen=True, slots=True, eq=True)
class TensorStats:
    """The statistics of one tensor.

    Attributes:
        count: Number of elements seen, of whatever value.
        zeros: How many of them are zero.
        nans: How many are NaN.
        positive_infinities: How many are +infinity.
        negative_infinities: How many are -infinity.
        minimum: Smallest finite value; +infinity where there is none.
        maximum: Largest finite value; -infinity where there is none.
        per_sample: Sums of the samples' own extremes.
        channels: Extremes per channel; None for tensors without channels.
        histogram: Counts of the finite values that are not zero.
    """

    count: int = 0
    zeros: int = 0
    nans: int = 0
    positive_infinities: int = 0
    negative_infinities: int = 0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    per_sample: SampleExtremes = SampleExtremes()
    channels: ChannelExtremes | None = None
    histogram: Histogram = field(default_factory=Histogram.empty)

    @staticmethod
    def of(
        sample: NDArray[Any], *, channel_axis: int | None = None, histogram: bool = True
    ) -> TensorStats:
        """Returns the statistics of a tensor for one sample.

        Args:
            sample: float16, bfloat16, float32 or float64 values of any shape.
            channel_axis: The axis whose extremes are kept per channel.
            histogram: Count values as well; extremes alone are several times cheaper.
        """
        values = np.asarray(sample)
        values = values if values.dtype == np.float64 else values.astype(np.float32, copy=False)
        low = float(values.min(initial=np.inf))
        high = float(values.max(initial=-np.inf))
        result = TensorStats(count=values.size)
        finite, kept = None, values
        if not (np.isfinite(low) and np.isfinite(high)) and values.size:
            finite = np.isfinite(values)
            kept = values[finite]
            low, high = float(kept.min(initial=np.inf)), float(kept.max(initial=-np.inf))
            result = replace(
                result,
                nans=int(np.isnan(values).sum()),
                positive_infinities=int(np.isposinf(values).sum()),
                negative_infinities=int(np.isneginf(values).sum()),
            )
        counts = Histogram.of(kept) if histogram else Histogram.empty()
        channels = None
        if channel_axis is not None and values.ndim > channel_axis:
            channels = ChannelExtremes.of(values, finite, channel_axis)
        return replace(
            result,
            zeros=int(kept.size - np.count_nonzero(kept)),
            minimum=low + 0.0,
            maximum=high + 0.0,
            per_sample=_of_sample(low, high),
            channels=channels,
            histogram=counts,
        )

    @staticmethod
    def of_each(
        samples: Sequence[NDArray[Any]], *, channel_axis: int | None = None, histogram: bool = True
    ) -> TensorStats:
        """Returns the statistics of a tensor for several samples of one shape.

        Args:
            samples: As :meth:`of` takes one.
            channel_axis: The axis whose extremes are kept per channel.
            histogram: Count values as well.
        """
        values = np.stack(samples)
        values = values if values.dtype == np.float64 else values.astype(np.float32, copy=False)
        rows = values.reshape(len(values), -1)
        low, high = rows.min(axis=1, initial=np.inf), rows.max(axis=1, initial=-np.inf)
        if len(values) == 1 or not (np.isfinite(low) & np.isfinite(high)).all():
            each = (
                TensorStats.of(a, channel_axis=channel_axis, histogram=histogram) for a in samples
            )
            return reduce(TensorStats.merged, each)
        channels = None
        if channel_axis is not None and values.ndim - 1 > channel_axis:
            found = ChannelExtremes.of(values, None, channel_axis + 1)
            channels = replace(found, axis=channel_axis)
        own = [_of_sample(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        return TensorStats(
            count=values.size,
            zeros=int(values.size - np.count_nonzero(values)),
            minimum=float(low.min()) + 0.0,
            maximum=float(high.max()) + 0.0,
            per_sample=reduce(SampleExtremes.merged, own),
            channels=channels,
            histogram=Histogram.of(values) if histogram else Histogram.empty(),
        )

    def merged(self, other: TensorStats) -> TensorStats:
        """Returns the statistics of both sets of samples."""
        channels = self.channels or other.channels
        if self.channels is not None and other.channels is not None:
            channels = self.channels.merged(other.channels)
        return TensorStats(
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            nans=self.nans + other.nans,
            positive_infinities=self.positive_infinities + other.positive_infinities,
            negative_infinities=self.negative_infinities + other.negative_infinities,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            per_sample=self.per_sample.merged(other.per_sample),
            channels=channels,
            histogram=self.histogram.merged(other.histogram),
        )

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nans - self.positive_infinities - self.negative_infinities

    @property
    def magnitude(self) -> float:
        """The largest finite magnitude; 0 where nothing is finite."""
        return max(self.maximum, -self.minimum, 0.0)

    def extrapolated(self, times: float) -> tuple[float, float]:
        """Returns the extremes that ``times`` as many samples would most likely have.

        The largest of ``n`` numbers of an exponential tail lies ``H(n) - 1`` of its means beyond
        their own mean (``H`` the harmonic numbers), and that of ``times`` as many ``ln(times)``
        further.
        """
        seen = self.per_sample
        if seen.samples < 2:
            return self.minimum, self.maximum
        share = math.log(times) / float(np.sum(1 / np.arange(2, seen.samples + 1)))
        below = max(seen.mean_minimum - self.minimum, 0.0)
        above = max(self.maximum - seen.mean_maximum, 0.0)
        return self.minimum - share * below, self.maximum + share * above


def _of_sample(low: float, high: float) -> SampleExtremes:
    if low > high:
        return SampleExtremes()
    return SampleExtremes(
        1,
        _fixed_point_of_float(low),
        _fixed_point_of_float(high),
        _fixed_point_of_float(max(high, -low)),
    )


def _fixed_point_of_float(value: float) -> int:
    numerator, denominator = float(np.float32(value)).as_integer_ratio()
    return (numerator << _UNIT) // denominator


def _mean_of_fixed_point(total: int, samples: int) -> float:
    return 0.0 if not samples else total / (samples << _UNIT)


# ---- What masks fill in: minus infinity, -1e30, or -1e4 among logits, where nothing is -----------
# It is no signal. A range that holds it resolves nothing else, and in a sum of squares it outweighs
# all that a model computes.


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
    # As Python numbers: half floats have none so large. NaN is neither.
    if float(array.min()) >= -MASK and float(array.max()) < HUGE:
        return None
    sizes = np.abs(array.astype(np.float64))
    large = ~(sizes < HUGE) | (array < -MASK)
    if not large.any() or np.isnan(sizes).any():
        return None
    rest = sizes[~large]
    apart = not rest.size or sizes[large].min() > APART * rest.max()
    return large if apart else None


# ---- Running statistics: what a tensor looked like so far, one sample added after the other ------
# There are two ways to the same numbers, bit for bit: compiled loops where TVM is installed, and
# NumPy.


SPLIT = 4
"""Tables that the compiled loops count in by turns."""
_FULL = 1 << 30
"""Values after which int32 counters are emptied."""
_MANY = 256
"""Samples after which their extremes are added up."""
_TOGETHER = 1 << 15
"""Elements of several samples that NumPy looks at together."""
_NO_KEY = (np.int32(0x7FFFFFFF), np.int32(-0x80000000))


class Running(Protocol):
    """The statistics of one tensor over the samples added since they were last taken."""

    def add(self, sample: NDArray[Any]) -> None:
        """Adds the tensor of one sample."""
        ...

    def taken(self) -> TensorStats:
        """Returns the statistics and starts anew."""
        ...


class PlainRunning:
    """NumPy looks at the tensors."""

    def __init__(self, channel_axis: int | None, *, histogram: bool) -> None:
        self._axis, self._histogram = channel_axis, histogram
        self._stats = TensorStats()
        self._waiting: list[NDArray[Any]] = []

    def add(self, sample: NDArray[Any]) -> None:
        """Adds the tensor of one sample; small ones are looked at several at once."""
        waiting = self._waiting
        if waiting and (waiting[0].shape != sample.shape or waiting[0].dtype != sample.dtype):
            self._look()
        # A caller may reuse its array; one that fills the batch alone is looked at before that.
        self._waiting.append(sample if sample.size >= _TOGETHER else sample.copy())
        if len(self._waiting) * sample.size >= _TOGETHER or len(self._waiting) == _MANY:
            self._look()

    def _look(self) -> None:
        if self._waiting:
            found = TensorStats.of_each(
                self._waiting, channel_axis=self._axis, histogram=self._histogram
            )
            self._stats, self._waiting = self._stats.merged(found), []

    def taken(self) -> TensorStats:
        """Returns the statistics and starts anew."""
        self._look()
        stats, self._stats = self._stats, TensorStats()
        return stats


class Measured:
    """Statistics put together from what compiled loops say of each sample.

    A loop gives the extremes per channel as keys (see :mod:`qdqbridge.tvm.relax.profiling`),
    counts, and a table of the values in bins of a given width.
    """

    def __init__(self, channel_axis: int | None) -> None:
        self._axis = channel_axis
        self._clear()

    def _clear(self) -> None:
        self._stats = TensorStats()
        self._elements = [0, 0, 0, 0, 0]
        self._keys: NDArray[np.int32] | None = None
        self._lows: list[int] = []
        self._highs: list[int] = []

    def measured(self, keys: NDArray[np.int32], facts: list[int]) -> None:
        """Adds the extremes of one sample.

        Args:
            keys: int32 of shape (2, channels): the smallest and the largest value of each channel.
            facts: Counts and keys, in the order of ``FACTS`` of the kernels.
        """
        zeros, low, high, _, nans, positive, negative, size = facts
        for i, number in enumerate((size, zeros, nans, positive, negative)):
            self._elements[i] += number
        if low <= high:
            self._lows.append(low)
            self._highs.append(high)
        if self._keys is None:
            self._keys = keys.copy()
        else:
            np.minimum(self._keys[0], keys[0], out=self._keys[0])
            np.maximum(self._keys[1], keys[1], out=self._keys[1])
        if len(self._lows) == _MANY:
            self._fold()

    def counted(self, tables: NDArray[np.int32], exponent: int, zeros: int) -> None:
        """Adds counts.

        Args:
            tables: int32, :data:`SPLIT` tables of :data:`2 * SIDE` bins.
            exponent: The width of the bins.
            zeros: How many of the values counted are zero.
        """
        counts = tables.reshape(SPLIT, -1).sum(axis=0, dtype=np.int64)
        counts[SIDE] -= zeros
        histogram = Histogram(exponent, counts)
        self._stats = replace(self._stats, histogram=self._stats.histogram.merged(histogram))

    def _fold(self) -> None:
        """Adds up the samples' own extremes."""
        minima, maxima = (
            [_fixed_point_of_key(k) for k in keys] for keys in (self._lows, self._highs)
        )
        more = SampleExtremes(
            len(minima),
            sum(minima),
            sum(maxima),
            sum(max(high, -low) for low, high in zip(minima, maxima, strict=True)),
        )
        low = min((_float_of_sort_key(k) for k in self._lows), default=np.inf)
        high = max((_float_of_sort_key(k) for k in self._highs), default=-np.inf)
        self._stats = replace(
            self._stats,
            minimum=min(self._stats.minimum, low),
            maximum=max(self._stats.maximum, high),
            per_sample=self._stats.per_sample.merged(more),
        )
        self._lows, self._highs = [], []

    def taken(self) -> TensorStats:
        """Returns the statistics and starts anew."""
        self._fold()
        size, zeros, nans, positive, negative = self._elements
        stats = replace(
            self._stats,
            count=size,
            zeros=zeros,
            nans=nans,
            positive_infinities=positive,
            negative_infinities=negative,
            channels=self._channels(),
        )
        self._clear()
        return stats

    def _channels(self) -> ChannelExtremes | None:
        if self._keys is None or self._axis is None:
            return None
        values = np.where(self._keys < 0, self._keys ^ _NO_KEY[0], self._keys).view(np.float32)
        empty = self._keys[0] > self._keys[1]
        return ChannelExtremes(
            self._axis,
            np.where(empty, np.float32(np.inf), values[0]) + np.float32(0),
            np.where(empty, np.float32(-np.inf), values[1]) + np.float32(0),
        )


class FastRunning:
    """Compiled loops look at float32 tensors, NumPy at those of float64 and at empty ones.

    Args:
        kernels: The loops, ``qdqbridge.tvm.relax.profiling.kernels()``.
        channel_axis: The axis whose extremes are kept per channel.
        histogram: Count values as well.
    """

    def __init__(self, kernels: Any, channel_axis: int | None, *, histogram: bool) -> None:
        self._kernels, self._axis, self._histogram = kernels, channel_axis, histogram
        self._rest = PlainRunning(channel_axis, histogram=histogram)
        self._measured = Measured(channel_axis)
        self._facts = np.zeros(8, np.int64)
        self._width = np.zeros(8, np.int64)
        self._tables = np.zeros(SPLIT * 2 * SIDE if histogram else 0, np.int32)
        self._inside, self._zeros, self._exponent = 0, 0, FINEST
        self._keys = np.zeros((2, 0), np.int32)
        self._views = [kernels.view(a) for a in (self._facts, self._width, self._tables)]
        self._keys_view: Any = None

    def add(self, sample: NDArray[Any]) -> None:
        """Adds the tensor of one sample."""
        if sample.dtype == np.float64 or not sample.size:  # loops take no empty views
            self._rest.add(sample)
            return
        cube = _cube(sample.astype(np.float32, copy=False), self._axis)
        if cube.shape[1] != self._keys.shape[1]:
            self._keys = np.zeros((2, cube.shape[1]), np.int32)
            self._keys_view = self._kernels.view(self._keys)
        view = self._kernels.view(cube)
        self._kernels.extremes(view, self._keys_view, self._views[0])
        facts = self._facts.tolist()
        self._measured.measured(self._keys, facts)
        if self._histogram:
            self._count(view, cube.size, facts)

    def _count(self, view: Any, size: int, facts: list[int]) -> None:
        if facts[3] > self._exponent or self._inside + size > _FULL:
            self._empty(max(facts[3], self._exponent))
        self._width[3:7] = self._exponent, *facts[4:7]
        self._kernels.bins(view, self._views[1], self._views[2])
        self._inside += size
        self._zeros += facts[0]

    def _empty(self, exponent: int) -> None:
        """Moves the counts out of the tables, which go on with another width."""
        if self._inside:
            self._measured.counted(self._tables, self._exponent, self._zeros)
            self._tables[:] = 0
        self._inside, self._zeros, self._exponent = 0, 0, exponent

    def taken(self) -> TensorStats:
        """Returns the statistics and starts anew."""
        self._empty(FINEST)
        return self._rest.taken().merged(self._measured.taken())


def running(channel_axis: int | None, *, histogram: bool, fast: bool | None = None) -> Running:
    """Returns empty running statistics.

    Args:
        channel_axis: The axis whose extremes are kept per channel.
        histogram: Count values as well.
        fast: Compiled loops, or NumPy; by default the loops where TVM 0.27 is installed.
    """
    kernels = _kernels() if fast is None or fast else None
    if kernels is None:
        return PlainRunning(channel_axis, histogram=histogram)
    return FastRunning(kernels(), channel_axis, histogram=histogram)


def _kernels() -> Callable[[], Any] | None:
    """Returns what compiles the loops; None without TVM, or with the TVM that has no Relax."""
    if find_spec("tvm") is None or find_spec("tvm_ffi") is None:
        return None
    from qdqbridge.tvm.relax.profiling import kernels

    return kernels


def _cube(array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """Returns ``array`` as (outer, channels, inner)."""
    array = np.ascontiguousarray(array)
    if axis is None or array.ndim <= axis:
        return array.reshape(1, 1, array.size)
    outer, channels = math.prod(array.shape[:axis]), array.shape[axis]
    return array.reshape(outer, channels, math.prod(array.shape[axis + 1 :]))


def _bits(key: int) -> int:
    return key if key >= 0 else (key ^ 0x7FFFFFFF) & 0xFFFFFFFF


def _float_of_sort_key(key: int) -> float:
    return float(np.uint32(_bits(key)).view(np.float32)) + 0.0


def _fixed_point_of_key(key: int) -> int:
    """Returns the value of a key as a whole number of ``2**-149``."""
    bits = _bits(key)
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    size = fraction if exponent == 0 else (fraction | 0x800000) << (exponent - 1)
    return -size if bits >> 31 else size
