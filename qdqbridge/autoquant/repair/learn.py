"""Rounding and ranges of weights learned from what products shall compute, in few bits and in 8.

A product shall compute ``w x``; it computes ``q x'``, of stored weights and of operands that the
layers before it have rounded. The squared error is a quadratic in ``q``: its least point among real
numbers makes up for errors of the operands too, its least point on the grid of stored integers is
approached by rounding columns one after the other (:mod:`qdqbridge.autoquant.repair.gptq`) and
then changing one integer at a time while that helps. AdaRound (Nagel et al., "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020) learns the same rounding by gradients; weights that
leave their neighbouring integers, and scales that are learned, are AdaQuant's (Hubara et al.,
"Accurate Post Training Quantization With Small Calibration Sets", 2021).

A row is learned only where that helps on samples that it was not learned from. Biases are corrected
on the way, so that later layers see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import suited
from qdqbridge.autoquant.planning.decide import Decision, stored_integers
from qdqbridge.autoquant.planning.plan import Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.correct import Correcting, places, shifted
from qdqbridge.autoquant.repair.gptq import columns, rounded_rows
from qdqbridge.autoquant.repair.layers import ProductLayer, layer_of
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.graph.graph import Node
from qdqbridge.graph.quantization import QuantParams

Array = NDArray[Any]
Matrix = NDArray[np.float64]
DAMPING = 0.01
"""How strongly weights are held where they are, as a share of the mean square of an operand."""
FEW_BITS = 4
"""Weights of so many bits have their ranges learned as well."""
RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""What scales are multiplied with, to try."""
_SWEEPS, _BLOCK = 4, 64
_TERMS = 1024
"""Sums of more terms are learned only where weights have few bits: it takes long."""
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
        for a, b in map(_alike, real, rounded) if alike else zip(real, rounded, strict=True):
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

    def loss(self, group: int, weight: Matrix, real: Matrix) -> NDArray[np.float64]:
        """Returns the squared error of every row but for a constant.

        Args:
            group: Which one.
            weight: ``[rows, n]`` as the float graph has it.
            real: The same as the quantized graph has it.
        """
        twice = 2 * weight @ self.cross[group]
        return np.einsum("rj,rj->r", real @ self.square[group] - twice, real)


def _alike(real: Array, rounded: Array) -> tuple[Array, Array]:
    """Returns operands whose samples are divided by the root of the mean square of the real one."""
    square = np.square(real, dtype=np.float64).mean(axis=tuple(range(1, real.ndim)), keepdims=True)
    size = np.sqrt(np.where(square > 0, square, 1.0))
    return real / size, rounded / size


def learned_rows(
    weight: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    square: Matrix,
    cross: Matrix,
    low: int,
    high: int,
    ratios: Sequence[float] = (1.0,),
    hold: float = 1.0,
) -> tuple[Matrix, Matrix]:
    """Returns stored integers for the rows of a matrix, and a factor of each row's scales.

    Args:
        weight: ``[rows, columns]``.
        scale: Of each element.
        zero_point: Of each element.
        square: ``X' X'^T``, ``[columns, columns]``.
        cross: ``X X'^T``.
        low: The smallest stored integer.
        high: The largest one.
        ratios: Factors to try.
        hold: How many times as hard weights are held where they are.
    """
    damping = hold * DAMPING * float(np.diag(square).mean()) or 1.0
    hessian = square + damping * np.eye(len(square))
    wanted = (weight @ cross + damping * weight).T
    target = np.asarray(np.linalg.solve(hessian, wanted).T, np.float64)
    best = np.full(len(weight), np.inf)
    stored, factor = np.zeros_like(weight), np.ones(len(weight))
    for ratio in ratios:
        own = scale * ratio
        q = rounded_rows(target, own, zero_point, hessian, low, high)
        q = descended(target, q, own, zero_point, hessian, low, high)
        error = (q - zero_point) * own - target
        lost = np.einsum("rj,rj->r", error @ hessian, error)
        better = lost < best
        best = np.where(better, lost, best)
        stored[better], factor[better] = q[better], ratio
    return stored, factor


def descended(
    target: Matrix,
    stored: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    hessian: Matrix,
    low: int,
    high: int,
) -> Matrix:
    """Returns integers from which changing a single one in a row no longer helps, or nearly.

    Args:
        target: ``[rows, columns]``, what is approached.
        stored: Integers to begin with.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``e H e^T``.
        low: The smallest stored integer.
        high: The largest one.
    """
    q, diagonal = stored.copy(), np.diag(hessian)
    gradient = ((q - zero_point) * scale - target) @ hessian
    for _ in range(_SWEEPS):
        moved = False
        for start in range(0, len(hessian), _BLOCK):
            part = slice(start, min(start + _BLOCK, len(hessian)))
            inner, rest = hessian[part, part], gradient[:, part].copy()
            change = np.zeros_like(rest)
            for j in range(rest.shape[1]):
                column = start + j
                s = scale[:, column]
                best = q[:, column] - rest[:, j] / (diagonal[column] * s)
                best = np.clip(np.rint(best), low, high)
                change[:, j] = (best - q[:, column]) * s
                q[:, column] = best
                rest += change[:, j, None] * inner[j]
            if change.any():
                moved = True
                gradient += change @ hessian[part]
        if not moved:
            break
    return q


@dataclass(slots=True, eq=False)
class Learning:
    """Learns weights on the way through the graph, and corrects biases.

    Attributes:
        decision: Says which weights are stored, and how.
        biases: Corrects them.
        hold: How many times as hard weights are held where they are.
        alike: All samples count the same, however loud they are.
        integers: What was learned, by weight.
        params: Parameters with scales that were learned, by weight.
        rows: How many rows were learned, and how many there are.
    """

    decision: Decision
    biases: Correcting
    hold: float = 1.0
    alike: bool = False
    integers: dict[Weight, Array] = field(default_factory=dict["Weight", "Array"])
    params: dict[Weight, QuantParams] = field(default_factory=dict["Weight", "QuantParams"])
    rows: list[int] = field(default_factory=lambda: [0, 0])

    def weight(
        self, weight: Weight, real: Batches, operands: Batches
    ) -> tuple[Array, QuantParams] | None:
        """Returns the integers and parameters of a weight."""
        params, layer = self.decision.weights[weight], layer_of(weight.node)
        storage = params.storage_dtype
        if layer is None or not storage.is_integer or storage.bits > 8:
            return None
        if storage.bits > FEW_BITS and layer.weight.size // layer.outputs > _TERMS:
            return None
        if not all(np.isfinite(a).all() for a in (*real, *operands)):
            return None
        start = stored_integers(weight, params, self.decision).numpy()
        node = self._bias_of(weight.node)
        halves = [
            OperandMoments.of(
                layer, real[i::2], operands[i::2],
                centred=node in self.biases.places, alike=self.alike,
            )
            for i in (0, 1)
            if real[i::2]
        ]  # fmt: skip
        found = _Learned(layer, params, start, self.hold).rows(halves)
        self.rows = [a + b for a, b in zip(self.rows, found[2:], strict=True)]
        if not found[2]:
            return None
        self.integers[weight], self.params[weight] = found[:2]
        return found[:2]

    def result(self, node: Node, real: Batches, quantized: Batches) -> Array | None:
        """Returns the correction of a node with a bias."""
        return self.biases.result(node, real, quantized)

    def _bias_of(self, product: Node) -> Node:
        """Returns the node that adds the bias of a product: itself, or an Add behind it."""
        readers = [node for node, _ in product.output.users if node in self.biases.places]
        return readers[0] if len(product.output.users) == 1 and readers else product


@dataclass(slots=True, eq=False)
class _Learned:
    layer: ProductLayer
    params: QuantParams
    start: Array
    hold: float

    def rows(self, halves: Sequence[OperandMoments]) -> tuple[Array, QuantParams, int, int]:
        """Returns integers, parameters, and how many rows of how many are learned."""
        params, layer = self.params, self.layer
        weight, scale, zero, start = (
            self._flat(np.broadcast_to(a, layer.weight.shape).astype(np.float64))
            for a in (
                layer.weight,
                params.aligned(params.scale, layer.weight.shape),
                params.aligned(params.zero_point, layer.weight.shape),
                self.start,
            )
        )
        whole = halves[0] if len(halves) == 1 else halves[0] + halves[1]
        own = params.axis == layer.geometry.axis and params.block_size is None
        ratios = RATIOS if own and params.storage_dtype.bits <= FEW_BITS else RATIOS[:1]
        found, factors = start.copy(), np.ones(weight.shape[:2])
        for group in range(len(weight)):
            each = weight[group], scale[group], zero[group]
            keep = np.ones(len(each[0]), bool)
            if len(halves) == 2:
                q, factor = self._fitted(each, halves[0], group, ratios)
                before = halves[1].loss(group, each[0], (start[group] - each[2]) * each[1])
                real = (q - each[2]) * each[1] * factor[:, None]
                keep = halves[1].loss(group, each[0], real) < before
            if keep.any():
                q, factor = self._fitted([a[keep] for a in each], whole, group, ratios)
                found[group][keep], factors[group][keep] = q, factor
        grid = layer.grid(layer.weight).shape
        stored = layer.ungrid(found.reshape(grid)).astype(np.int64)
        if (factors != 1).any():
            scales = params.scale.astype(np.float64).reshape(-1) * factors.reshape(-1)
            params = replace(params, scale=scales.astype(np.float32))
        changed = int((found != start).any(axis=2).sum())
        integers = np.ascontiguousarray(stored.astype(params.storage_dtype.numpy))
        return integers, params, changed, start.shape[0] * start.shape[1]

    def _fitted(
        self, each: Sequence[Matrix], moments: OperandMoments, group: int, ratios: Sequence[float]
    ) -> tuple[Matrix, Matrix]:
        square, cross = moments.square[group], moments.cross[group]
        weight, scale, zero = each
        low, high = self.params.qmin, self.params.qmax
        return learned_rows(weight, scale, zero, square, cross, low, high, ratios, self.hold)

    def _flat(self, array: Array) -> Matrix:
        grid = self.layer.grid(array)
        return np.ascontiguousarray(grid).reshape(*grid.shape[:2], -1)


def learned(
    decision: Decision,
    samples: Samples,
    *,
    limit: int = SAMPLES,
    hold: float = 1.0,
    alike: bool = False,
) -> tuple[Decision, str]:
    """Returns a decision with learned weights and corrected biases, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        limit: How many samples to use.
        hold: How many times as hard weights are held where they are.
        alike: All samples count the same, however loud they are.
    """
    plan = decision.plan
    found = Learning(decision, Correcting(places(plan)), hold, alike)
    sweep(decision, samples, found, limit=limit)
    if not found.integers:
        return decision, f"none of {found.rows[1]} rows of weights is better off"
    weights = {**decision.weights, **found.params}
    roomy = suited(plan, decision.values, weights)
    integers = {**decision.integers, **found.integers}
    kept = {w: a for w, a in integers.items() if roomy[w] == weights[w]}
    result = replace(decision, weights=roomy, integers=kept)
    told = f"{found.rows[0]} of {found.rows[1]} rows of weights learned"
    return shifted(result, found.biases), told
