"""Running statistics: what a tensor looked like so far, one sample added after the other.

There are two ways to the same numbers, bit for bit: compiled loops where TVM is installed, and
NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import (
    FINEST,
    SIDE,
    ChannelExtremes,
    Histogram,
    SampleExtremes,
    TensorStats,
)

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
