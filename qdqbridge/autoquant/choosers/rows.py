"""Parameters of many short rows of weights at once: blocks, whose statistics say little.

A block of 32 weights has no distribution to speak of: codes are tried on the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.formats import Format

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
