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

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.repair.layers import ProductLayer
from qdqbridge.autoquant.repair.learned_rows import learned_rows
from qdqbridge.autoquant.repair.operand_moments import OperandMoments
from qdqbridge.core.graph.quantization import QuantParams

Array = NDArray[Any]
Matrix = NDArray[np.float64]
FEW_BITS = 4
"""Weights of so many bits have their ranges learned as well."""
RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""What scales are multiplied with, to try."""


@dataclass(frozen=True, slots=True)
class LearningWay:
    """How far samples are trusted.

    Attributes:
        hold: How many times as hard weights are held where they are.
        makes_up: Whether weights make up for what the layers before have rounded; otherwise they
            approach ``w x'``.
    """

    hold: float
    makes_up: bool


WAYS = tuple(LearningWay(hold, up) for hold in (1.0, 10.0, 100.0) for up in (True, False))


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
        for index, way in enumerate(WAYS):
            chosen = ways == index
            if not chosen.any():
                continue
            groups, some = chosen.any(axis=1), chosen.any(axis=0)
            block, taken = np.ix_(groups, some), chosen[np.ix_(groups, some)]
            fitted = self._fitted(every.of(block), whole.of_groups(groups), way, ratios)
            found[chosen], factors[chosen] = (each[taken] for each in fitted)
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
        """Returns for every row the place of its way in :data:`WAYS`; -1 where none helps."""
        if len(halves) == 1:
            return np.zeros(start.shape[:2], np.int64)
        as_it_was = sum(rows.loss(half, start) for half in halves)
        lost = np.zeros((len(WAYS), *start.shape[:2]))
        for seen, unseen in (halves, halves[::-1]):
            for index, way in enumerate(WAYS):
                stored, _ = self._fitted(rows, seen, way, RATIOS[:1])
                lost[index] += rows.loss(unseen, stored)
        return np.where(lost.min(axis=0) < as_it_was, lost.argmin(axis=0), -1)

    def _fitted(
        self, rows: _RealRows, moments: OperandMoments, way: LearningWay, ratios: Sequence[float]
    ) -> tuple[Matrix, Matrix]:
        square, cross = moments.square, moments.cross if way.makes_up else moments.square
        ends, hold = (rows.low, rows.high), self.hold * way.hold
        return learned_rows(rows.weight, rows.scale, rows.zero, square, cross, *ends, ratios, hold)

    def _flat(self, array: Array) -> Matrix:
        grid = self.layer.grid(array)
        return np.ascontiguousarray(grid).reshape(*grid.shape[:2], -1)
