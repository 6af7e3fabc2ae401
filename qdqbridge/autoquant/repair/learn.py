"""Weights learned on the way through the graph, with biases, in few bits and in 8.

A product shall compute ``w x``; it computes ``q x'``, of stored weights and of operands that the
layers before it have rounded. What is learned of each product, and how, is said in
:mod:`qdqbridge.autoquant.repair.learn`. Biases are corrected on the way, so that later
layers see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import product_of, suited
from qdqbridge.autoquant.planning.decide import Decision, about_copy, stored_integers
from qdqbridge.autoquant.planning.plan import Derived, QuantizationPlan, Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.repair.gptq import columns, loss, rounded_rows
from qdqbridge.autoquant.repair.layers import ProductLayer, layer_of
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.core.graph.copying import Slot, with_constants
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE, GEMM
from qdqbridge.core.ops.shapes import laid_along

# ---- Full bias correction in one sweep -----------------------------------------------------------
# Rounding weights shifts the mean of what a product computes; errors of earlier layers shift it
# further. ``b += mean(y - y')`` per channel, over samples and positions, makes up for both, where
# ``y'`` is computed from operands that are quantized and corrected already
# (Nagel et al. 2019; "full" or sequential correction elsewhere, one pass over the data per layer
# there).
#
# A channel is corrected only where that helps on samples that the correction was not made from.
#
# A product that reads activations as they are, or quantized by what each run brings, is off by what
# is proportional to its operand. A constant that makes up for the mean of that is right for data of
# one scale only: of data 255 times as large it is 255 times as large, on a network whose weights
# alone are stored and which needs no ranges at all. Such products are given no bias.


Array = NDArray[Any]
_WITHOUT_BIAS = (CONV, CONV_TRANSPOSE, GEMM, DENSE)


@dataclass(frozen=True, slots=True)
class CorrectionPlace:
    """Where a correction goes.

    Attributes:
        slot: The node and operand that holds the bias, or would hold it.
        axis: The axis of the node's result that numbers channels; may count from the end.
        channels: Their number.
    """

    slot: Slot
    axis: int
    channels: int


def places(plan: QuantizationPlan) -> dict[Node, CorrectionPlace]:
    """Returns by node where the biases of products are whose operands are stored."""
    found: dict[Node, CorrectionPlace] = {}
    outcome: set[Node] = set()
    quantized = dict.fromkeys(node for node in plan.rules if node not in plan.unstored)
    for weight in plan.weights:
        product = product_of(weight) if isinstance(weight.spec, Derived) else None
        layer = None if product is None else layer_of(product)
        if layer is None or product not in quantized:
            continue
        outcome.add(layer.node)
        constant = weight.value.constant
        idle = getattr(weight.node.attributes, "beta", 1.0) == 0
        if constant is not None and not idle and constant.size in (1, layer.outputs):
            found[weight.node] = CorrectionPlace(
                (weight.node, weight.index), layer.result_axis, layer.outputs
            )
    for node in quantized:
        layer = layer_of(node) if node.op in _WITHOUT_BIAS else None
        if layer is not None and node not in outcome and node.optional(2) is None:
            found[node] = CorrectionPlace((node, 2), layer.result_axis, layer.outputs)
    return found


@dataclass(slots=True, eq=False)
class Correcting:
    """Finds the corrections on the way through the graph.

    Attributes:
        places: Where biases are.
        shifts: By node what has to be added to its bias, per channel.
        tried: Number of channels looked at.
    """

    places: dict[Node, CorrectionPlace]
    shifts: dict[Node, Array] = field(default_factory=dict["Node", "Array"])
    tried: int = 0

    def weight(self, weight: Weight, real: Batches, operands: Batches) -> None:
        """Leaves weights as they are."""

    def result(self, node: Node, real: Batches, quantized: Batches) -> Array | None:
        """Returns the correction of a node with a bias."""
        place = self.places.get(node)
        if place is None:
            return None
        rank = real[0].ndim
        pairs = [comparable(y, z) for y, z in zip(real, quantized, strict=True)]
        errors = [np.moveaxis(y - z, place.axis, 0).reshape(place.channels, -1) for y, z in pairs]
        shift = correction(errors)
        self.tried += place.channels
        if not shift.any():
            return None
        self.shifts[node] = shift
        return laid_along(shift, place.axis, rank)


def correction(errors: Batches) -> Array:
    """Returns what to add per channel: the mean error, 0 where halves of the data disagree.

    Args:
        errors: ``[channels, elements]`` for every batch.
    """
    sums = np.stack([each.sum(axis=1) for each in errors])
    counts = np.array([each.shape[1] for each in errors], np.float64)[:, None]
    mean = np.nan_to_num(sums.sum(axis=0) / counts.sum(), posinf=0.0, neginf=0.0)
    if len(errors) < 2:
        return mean
    first, second = (sums[i::2].sum(axis=0) / counts[i::2].sum() for i in (0, 1))
    # |e - m|^2 < |e|^2 on the other half, which is 2 m mean(e) > m^2 there
    agree = (2 * first * second > first**2) & (2 * first * second > second**2)
    return np.where(agree, mean, 0.0)


def corrected(
    decision: Decision,
    samples: Samples,
    *,
    limit: int = SAMPLES,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Decision, str]:
    """Returns a decision with corrected biases, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        limit: How many samples to use.
        progress: Called with the number of nodes done, and of all.
    """
    found = Correcting(places(decision.plan))
    sweep(decision, samples, found, limit=limit, progress=progress)
    if not found.shifts:
        return decision, f"no mean of {len(found.places)} products is off"
    count = sum(int(np.count_nonzero(s)) for s in found.shifts.values())
    outcome = f"{count} of {found.tried} channels of {len(found.places)} products shifted"
    return shifted(decision, found), outcome


def shifted(decision: Decision, found: Correcting) -> Decision:
    """Returns a decision whose biases have the corrections that were found.

    Where a bias is missing it is about a copy of the graph with zeros, which computes the same.
    """
    if not found.shifts:
        return decision
    own = decision.plan
    biases = {
        found.places[n].slot: _corrected_bias(own, found.places[n], s)
        for n, s in found.shifts.items()
    }
    missing = {(n, i): np.zeros_like(a) for (n, i), a in biases.items() if n.optional(i) is None}
    if missing:
        copy = with_constants(own.graph, missing)
        result = about_copy(decision, copy)
        biases = {(copy.nodes[n], i): a for (n, i), a in biases.items()}
    else:
        plan = replace(own, biases=dict(own.biases), weights=list(own.weights))
        result = replace(decision, plan=plan)
    result.plan.biases |= {slot: np.asarray(a, np.float32, order="C") for slot, a in biases.items()}
    known = {(w.node, w.index) for w in result.plan.weights}
    for slot in result.plan.biases:
        if slot not in known:
            result.plan.weights.append(Weight(*slot, Derived()))
    return _with_room(result)


def _corrected_bias(plan: QuantizationPlan, place: CorrectionPlace, shift: Array) -> Array:
    node, index = place.slot
    old = node.optional(index)
    if old is None or old.constant is None:
        return shift
    array = plan.biases.get(place.slot, old.constant.numpy()).astype(np.float64)
    factor = getattr(node.attributes, "beta", 1.0)
    if array.size == place.channels:
        return array + (shift / factor).reshape(array.shape)
    rank = max(array.ndim, 1 if index == 2 else (node.output.rank or 1))
    return array + laid_along(shift / factor, place.axis if index != 2 else 0, rank)


def _with_room(decision: Decision) -> Decision:
    """Raises scales of weights where a corrected bias needs it."""
    weights = suited(decision.plan, decision.values, decision.weights)
    integers = {w: a for w, a in decision.integers.items() if weights[w] == decision.weights[w]}
    return replace(decision, weights=weights, integers=integers)


# ---- Integers on a grid that are close to what rows of a matrix shall compute --------------------
# The squared error of a row is a quadratic in it. Its least point on the grid is approached by
# rounding columns one after the other (:mod:`qdqbridge.autoquant.repair.gptq`) and then changing
# one integer at a time while that helps.


Matrix = NDArray[np.float64]
DAMPING = 0.01
"""How strongly weights are held where they are, as a share of the mean square of an operand."""
_SWEEPS, _BLOCK = 2, 64


def targets(
    weight: Matrix, square: Matrix, cross: Matrix, hold: Matrix | float
) -> tuple[Matrix, Matrix]:
    """Returns real numbers that rows shall come close to, and what errors cost, ``e H e^T``.

    Args:
        weight: ``[…, rows, columns]``.
        square: ``X' X'^T``, ``[…, columns, columns]``.
        cross: ``X X'^T``.
        hold: How many times as hard weights are held where they are.
    """
    mean = np.diagonal(square, axis1=-2, axis2=-1).mean(axis=-1)[..., None, None]
    damping = np.where(mean > 0, hold * DAMPING * mean, 1.0)
    hessian = square + damping * np.eye(square.shape[-1])
    wanted = np.swapaxes(weight @ cross + damping * weight, -1, -2)
    return np.asarray(np.swapaxes(np.linalg.solve(hessian, wanted), -1, -2), np.float64), hessian


def learned_rows(
    target: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    hessian: Matrix,
    low: Matrix | int,
    high: Matrix | int,
    ratios: Sequence[float] = (1.0,),
) -> tuple[Matrix, Matrix]:
    """Returns stored integers for the rows of a matrix, and a factor of each row's scales.

    There may be one matrix for each of several groups.

    Args:
        target: ``[…, rows, columns]``, what is approached.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``[…, columns, columns]``.
        low: The smallest stored integer, of all or of each element.
        high: The largest one.
        ratios: Factors to try.
    """
    best = np.full(target.shape[:-1], np.inf)
    stored, factor = np.zeros_like(target), np.ones(target.shape[:-1])
    for ratio in ratios:
        own = scale * ratio
        q = rounded_rows(target, own, zero_point, hessian, low, high)
        q = descended(target, q, own, zero_point, hessian, low, high)
        lost = loss(target, q, own, zero_point, hessian)
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
    low: Matrix | int,
    high: Matrix | int,
) -> Matrix:
    """Returns integers from which changing a single one in a row no longer helps, or nearly.

    Args:
        target: ``[…, rows, columns]``, what is approached.
        stored: Integers to begin with.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``e H e^T``.
        low: The smallest stored integer, of all or of each element.
        high: The largest one.
    """
    q, count = stored.copy(), stored.shape[-1]
    least, most = (np.broadcast_to(end, q.shape) for end in (low, high))
    curvature = scale * np.diagonal(hessian, axis1=-2, axis2=-1)[..., None, :]
    gradient = ((q - zero_point) * scale - target) @ hessian
    for _ in range(_SWEEPS):
        moved = False
        for start in range(0, count, _BLOCK):
            part = slice(start, min(start + _BLOCK, count))
            inner, rest = hessian[..., part, part], gradient[..., part].copy()
            change = np.zeros_like(rest)
            for j in range(rest.shape[-1]):
                column = start + j
                best = q[..., column] - rest[..., j] / curvature[..., column]
                # np.clip takes longer
                best = np.minimum(np.maximum(np.rint(best), least[..., column]), most[..., column])
                step = (best - q[..., column]) * scale[..., column]
                q[..., column], change[..., j] = best, step
                rows = step.nonzero()  # few, from the second sweep on
                rest[rows] += step[rows][:, None] * inner[..., j, :][rows[:-1]]
            if change.any():
                moved = True
                gradient += change @ hessian[..., part, :]
        if not moved:
            break
    return q


# ---- operand moments -----------------------------------------------------------------------------
# What the operands of a product tell about it: products of their columns, summed over samples.


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
            x, y = (columns(layer, each, most) for each in (a, b))
            step = -(-x.shape[2] // most)
            x, y = (np.asarray(each[:, :, ::step], np.float64) for each in (x, y))
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


# ---- Rounding and ranges of one product's weights, learned from its operands ---------------------
# The squared error of a row is a quadratic in its weights: its least point among real numbers makes
# up for errors of the operands too, its least point on the grid of stored integers is approached
# (:mod:`qdqbridge.autoquant.repair.learn`). AdaRound (Nagel et al., "Up or Down? Adaptive
# Rounding for Post-Training Quantization", 2020) learns the same rounding by gradients; weights
# that leave their neighbouring integers, and scales that are learned, are AdaQuant's (Hubara et
# al., "Accurate Post Training Quantization With Small Calibration Sets", 2021).
#
# Few samples say little about many weights. So each row is learned in several ways, which trust
# them more or less, from one half of the samples and from the other; the way is taken that is best
# on the half that it has not seen, and none where the row is better as it was.


FEW_BITS = 4
"""Weights of so many bits have their ranges learned as well."""
RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""What scales are multiplied with, to try."""


HOLDS = (1.0, 10.0, 100.0)
"""How many times as hard weights are held where they are. Each is two ways: weights make up for
what the layers before have rounded, or they approach ``w x'``."""
_USUAL = (10.0,)
"""Of weights of 8 bits whose operands are stored: others take long, and bring no more."""
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
        holds: What to try of :data:`HOLDS`.
    """

    layer: ProductLayer
    params: QuantParams
    start: Array
    hold: float = 1.0
    limits: tuple[Array, Array] | None = None
    holds: Sequence[float] = HOLDS

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
        lost = np.zeros((2 * len(self.holds), *start.shape[:2]))
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
        for first in range(0, len(self.holds), together):
            holds = self.hold * np.reshape(self.holds[first : first + together], (-1, 1, 1, 1))
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


# ---- Weights learned on the way through the graph, with biases, in few bits and in 8 -------------


_TERMS = 1024
"""Sums of more terms are learned only where weights have few bits: it takes long."""


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
        plan, node = self.decision.plan, weight.node
        room, x = plan.room, self.decision.values.get(node.operand(0))
        x = None if node in plan.unstored else x
        start = stored_integers(weight, params, self.decision).numpy()
        adds = self._bias_of(node)
        halves = [
            OperandMoments.of(
                layer, real[i::2], operands[i::2],
                centred=adds in self.biases.places, alike=self.alike,
            )
            for i in (0, 1)
            if real[i::2]
        ]  # fmt: skip
        limits = None if room is None else room.limits(node, start, params, x)
        holds = HOLDS if x is None or storage.bits <= FEW_BITS else _USUAL
        learning = LayerLearning(layer, params, start, self.hold, limits, holds)
        integers, learned_params, rows = learning.rows(halves)
        self.rows = [a + b for a, b in zip(self.rows, rows, strict=True)]
        if not rows[0]:
            return None
        self.integers[weight], self.params[weight] = integers, learned_params
        return integers, learned_params

    def result(self, node: Node, real: Batches, quantized: Batches) -> Array | None:
        """Returns the correction of a node with a bias."""
        return self.biases.result(node, real, quantized)

    def _bias_of(self, product: Node) -> Node:
        """Returns the node that adds the bias of a product: itself, or an Add behind it."""
        readers = [node for node, _ in product.output.users if node in self.biases.places]
        return readers[0] if len(product.output.users) == 1 and readers else product


def learned(
    decision: Decision,
    samples: Samples,
    *,
    limit: int = SAMPLES,
    hold: float = 1.0,
    alike: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Decision, str]:
    """Returns a decision with learned weights and corrected biases, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        limit: How many samples to use.
        hold: How many times as hard weights are held where they are.
        alike: All samples count the same, however loud they are.
        progress: Called with the number of nodes done, and of all.
    """
    plan = decision.plan
    found = Learning(decision, Correcting(places(plan)), hold, alike)
    sweep(decision, samples, found, limit=limit, progress=progress)
    if not found.integers:
        return decision, f"rounding weights otherwise helps none of {found.rows[1]} channels"
    weights = {**decision.weights, **found.params}
    roomy = suited(plan, decision.values, weights)
    integers = {**decision.integers, **found.integers}
    kept = {w: a for w, a in integers.items() if roomy[w] == weights[w]}
    result = replace(decision, weights=roomy, integers=kept)
    outcome = (
        f"weights of {found.rows[0]} of {found.rows[1]} output channels rounded otherwise, and "
        "biases, so that outputs come closer"
    )
    return shifted(result, found.biases), outcome
