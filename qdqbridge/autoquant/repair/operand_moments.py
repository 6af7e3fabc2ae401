"""What the operands of a product tell about it: products of their columns, summed over samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.repair.gptq import columns
from qdqbridge.autoquant.repair.layers import ProductLayer
from qdqbridge.autoquant.repair.sweep import Batches

Array = NDArray[Any]
Matrix = NDArray[np.float64]
_POSITIONS, _TIMES = 8192, 8
"""Columns of operands that are looked at: so many, or so many times the number of terms."""


@dataclass(frozen=True, slots=True)
class OperandMoments:
    """What a product's operands tell about it, per group.

    Attributes:
        square: ``X' X'^T`` of rounded operands, ``[groups, n, n]``.
        cross: ``X X'^T``, of real ones by rounded ones.
    """

    square: Matrix
    cross: Matrix

    @staticmethod
    def of(
        layer: ProductLayer, real: Batches, rounded: Batches, *, centred: bool, alike: bool = False
    ) -> OperandMoments:
        """Looks at operands.

        Args:
            layer: The product.
            real: Its first operand in the float graph, batch by batch.
            rounded: The same in the quantized graph.
            centred: A bias makes up for means, so that they do not count.
            alike: All samples count the same, however loud they are.
        """
        terms = layer.weight.size // layer.outputs
        most = max(_POSITIONS, _TIMES * terms) // max(len(real), 1) + 1
        square, cross = (np.zeros((layer.groups, terms, terms)) for _ in range(2))
        sums, count = np.zeros((2, layer.groups, terms)), 0
        for a, b in (
            map(_normalize_sample_rms, real, rounded) if alike else zip(real, rounded, strict=True)
        ):
            x, y = (columns(layer, np.asarray(each, np.float64)) for each in (a, b))
            step = -(-x.shape[2] // most)
            x, y = x[:, :, ::step], y[:, :, ::step]
            square += y @ y.transpose(0, 2, 1)
            cross += x @ y.transpose(0, 2, 1)
            sums += x.sum(axis=2), y.sum(axis=2)
            count += x.shape[2]
        if centred and count:
            x, y = sums
            square -= y[:, :, None] * y[:, None, :] / count
            cross -= x[:, :, None] * y[:, None, :] / count
        return OperandMoments(square, cross)

    def __add__(self, other: OperandMoments) -> OperandMoments:
        return OperandMoments(self.square + other.square, self.cross + other.cross)

    def of_groups(self, chosen: NDArray[np.bool_]) -> OperandMoments:
        """Returns what some groups tell."""
        return OperandMoments(self.square[chosen], self.cross[chosen])

    def loss(self, weight: Matrix, real: Matrix) -> NDArray[np.float64]:
        """Returns the squared error of every row but for a constant.

        Args:
            weight: ``[groups, rows, n]`` as the float graph has it.
            real: The same as the quantized graph has it.
        """
        twice = 2 * weight @ self.cross
        return np.einsum("grj,grj->gr", real @ self.square - twice, real)


def _normalize_sample_rms(real: Array, rounded: Array) -> tuple[Array, Array]:
    """Returns operands whose samples are divided by the root of the mean square of the real one."""
    square = np.square(real, dtype=np.float64).mean(axis=tuple(range(1, real.ndim)), keepdims=True)
    size = np.sqrt(np.where(square > 0, square, 1.0))
    return real / size, rounded / size
