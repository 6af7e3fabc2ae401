"""Rounding and ranges of one product's weights, learned from its operands.

The squared error of a row is a quadratic in its weights: its least point among real numbers makes
up for errors of the operands too, its least point on the grid of stored integers is approached
(:mod:`qdqbridge.autoquant.repair.learned_rows`). AdaRound (Nagel et al., "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020) learns the same rounding by gradients; weights that
leave their neighbouring integers, and scales that are learned, are AdaQuant's (Hubara et al.,
"Accurate Post Training Quantization With Small Calibration Sets", 2021).

Few samples say little about many weights. So each row is learned in several ways, which trust them
more or less, from one half of the samples and from the other; the way is taken that is best on the
half that it has not seen, and none where the row is better as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.repair.layers import ProductLayer
from qdqbridge.autoquant.repair.learned_rows import learned_rows, targets
from qdqbridge.autoquant.repair.operand_moments import OperandMoments
from qdqbridge.core.graph.quantization import QuantParams

Array = NDArray[Any]
Matrix = NDArray[np.float64]
FEW_BITS = 4
"""Weights of so many bits have their ranges learned as well."""
RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""What scales are multiplied with, to try."""


HOLDS = (1.0, 10.0, 100.0)
"""How many times as hard weights are held where they are. Each is two ways: weights make up for
what the layers before have rounded, or they approach ``w x'``."""
_ELEMENTS = 1 << 20
"""Of what errors cost, side by side, at most."""


@dataclass(frozen=True, slots=True)
class _RealRows:
    """Rows of a product, ``[groups, rows, n]``: real weights, how and between what they are stored.

    Scales, zero points, the smallest and the largest integers.
    """

    weight: Matrix
    scale: Matrix
    zero: Matrix
    low: Matrix
    high: Matrix

    def of(self, chosen: tuple[NDArray[np.intp], ...]) -> _RealRows:
        return _RealRows(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def loss(self, moments: OperandMoments, stored: Matrix) -> NDArray[np.float64]:
        return moments.loss(self.weight, (stored - self.zero) * self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class LayerLearning:
    """Learns the weights of one product.

    Attributes:
        layer: The product.
        params: How its weights are stored.
        start: The integers that they are stored as so far.
        hold: How many times as hard weights are held where they are, in every way.
        limits: The smallest and the largest integer of each weight, where the type's are not.
    """

    layer: ProductLayer
    params: QuantParams
    start: Array
    hold: float = 1.0
    limits: tuple[Array, Array] | None = None

    def rows(self, halves: Sequence[OperandMoments]) -> tuple[Array, QuantParams, tuple[int, int]]:
        """Returns integers, parameters, and how many rows of how many are learned.

        Args:
            halves: What two halves of the samples tell; one where there is one sample, from which
                every row is learned.
        """
        params, layer = self.params, self.layer
        low, high = self.limits or (np.array(params.qmin), np.array(params.qmax))
        weight, scale, zero, low, high, start = (
            self._flat(np.broadcast_to(a, layer.weight.shape).astype(np.float64))
            for a in (
                layer.weight,
                params.aligned(params.scale, layer.weight.shape),
                params.aligned(params.zero_point, layer.weight.shape),
                low,
                high,
                self.start,
            )
        )
        whole = halves[0] if len(halves) == 1 else halves[0] + halves[1]
        own = params.axis == layer.geometry.axis and params.block_size is None
        ratios = RATIOS if own and params.storage_dtype.bits <= FEW_BITS else RATIOS[:1]
        found, factors = start.copy(), np.ones(weight.shape[:2])
        every = _RealRows(weight, scale, zero, low, high)
        ways = self._ways(every, start, halves)
        groups, some = (np.asarray((ways >= 0).any(axis=axis)) for axis in (1, 0))
        block = np.ix_(np.flatnonzero(groups), np.flatnonzero(some))
        if groups.any():
            fitted = self._fitted(every.of(block), whole.of_groups(groups), ratios)
            for way, (stored, factor) in enumerate(fitted):
                taken, chosen = ways[block] == way, ways == way
                found[chosen], factors[chosen] = stored[taken], factor[taken]
        stored = layer.ungrid(found.reshape(layer.grid(layer.weight).shape)).astype(np.int64)
        if (factors != 1).any():
            scales = params.scale.astype(np.float64).reshape(-1) * factors.reshape(-1)
            params = replace(params, scale=scales.astype(np.float32))
        changed = int((found != start).any(axis=2).sum())
        integers = np.ascontiguousarray(stored.astype(params.storage_dtype.numpy))
        return integers, params, (changed, start.shape[0] * start.shape[1])

    def _ways(
        self, rows: _RealRows, start: Matrix, halves: Sequence[OperandMoments]
    ) -> NDArray[np.int64]:
        """Returns for every row the number of its way; -1 where none helps."""
        if len(halves) == 1:
            return np.zeros(start.shape[:2], np.int64)
        as_it_was = sum(rows.loss(half, start) for half in halves)
        lost = np.zeros((2 * len(HOLDS), *start.shape[:2]))
        for seen, unseen in (halves, halves[::-1]):
            for index, (stored, _) in enumerate(self._fitted(rows, seen, RATIOS[:1])):
                lost[index] += rows.loss(unseen, stored)
        return np.where(lost.min(axis=0) < as_it_was, lost.argmin(axis=0), -1)

    def _fitted(
        self, rows: _RealRows, moments: OperandMoments, ratios: Sequence[float]
    ) -> Iterator[tuple[Matrix, Matrix]]:
        """Yields integers and factors of scales, one way after the other.

        Ways that hold weights as hard share what errors cost, and rows of several ways are rounded
        side by side: a step for a column takes Python longer than NumPy.
        """
        count, together = rows.weight.shape[1], max(1, _ELEMENTS // max(moments.square.size, 1))
        for first in range(0, len(HOLDS), together):
            holds = self.hold * np.reshape(HOLDS[first : first + together], (-1, 1, 1, 1))
            target, hessian = targets(rows.weight, moments.square, moments.cross, holds)
            target = np.concatenate([target, np.broadcast_to(rows.weight, target.shape)], axis=2)
            scale, zero, low, high = (
                np.broadcast_to(np.concatenate([each, each], axis=1), target.shape)
                for each in (rows.scale, rows.zero, rows.low, rows.high)
            )
            stored, factor = learned_rows(target, scale, zero, hessian, low, high, ratios)
            for q, f in zip(stored, factor, strict=True):
                yield q[:, :count], f[:, :count]
                yield q[:, count:], f[:, count:]

    def _flat(self, array: Array) -> Matrix:
        grid = self.layer.grid(array)
        return np.ascontiguousarray(grid).reshape(*grid.shape[:2], -1)
