"""Full bias correction in one sweep.

Rounding weights shifts the mean of what a product computes; errors of earlier layers shift it
further. ``b += mean(y - y')`` per channel, over samples and positions, makes up for both, where
``y'`` is computed from operands that are quantized and corrected already
(Nagel et al. 2019; "full" or sequential correction elsewhere, one pass over the data per layer
there).

A channel is corrected only where that helps on samples that the correction was not made from.

A product that reads activations as they are, or quantized by what each run brings, is off by what
is proportional to its operand. A constant that makes up for the mean of that is right for data of
one scale only: of data 255 times as large it is 255 times as large, on a network whose weights
alone are stored and which needs no ranges at all. Such products are given no bias.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import product_of, suited
from qdqbridge.autoquant.planning.decide import Decision, about_copy
from qdqbridge.autoquant.planning.plan import Derived, QuantizationPlan, Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.repair.layers import along, layer_of
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.core.graph.copying import Slot, with_constants
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE, GEMM

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
        return along(shift, place.axis, rank)


def correction(errors: Batches) -> Array:
    """Returns what to add per channel: the mean error, 0 where halves of the data disagree.

    Args:
        errors: ``[channels, elements]`` for every batch.
    """
    halves = [np.concatenate(errors[start::2], axis=1) for start in (0, 1) if errors[start::2]]
    whole = np.concatenate(list(errors), axis=1)
    mean = np.nan_to_num(whole.mean(axis=1), posinf=0.0, neginf=0.0)
    if len(halves) < 2:
        return mean
    first, second = (half.mean(axis=1) for half in halves)
    # |e - m|^2 < |e|^2 on the other half, which is 2 m mean(e) > m^2 there
    agree = (2 * first * second > first**2) & (2 * first * second > second**2)
    return np.where(agree, mean, 0.0)


def corrected(
    decision: Decision, samples: Samples, *, limit: int = SAMPLES
) -> tuple[Decision, str]:
    """Returns a decision with corrected biases, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        limit: How many samples to use.
    """
    found = Correcting(places(decision.plan))
    sweep(decision, samples, found, limit=limit)
    if not found.shifts:
        return decision, f"no mean of {len(found.places)} products is off"
    count = sum(int(np.count_nonzero(s)) for s in found.shifts.values())
    outcome = f"{count} of {found.tried} channels of {len(found.places)} products shifted"
    return shifted(decision, found), outcome


def shifted(decision: Decision, found: Correcting) -> Decision:
    """Returns a decision whose biases have the corrections that were found.

    It is about a graph with zeros where a bias is missing, which computes the same.
    """
    if not found.shifts:
        return decision
    own = decision.plan
    biases = {
        found.places[n].slot: _corrected_bias(own, found.places[n], s)
        for n, s in found.shifts.items()
    }
    missing = {(n, i): np.zeros_like(a) for (n, i), a in biases.items() if n.optional(i) is None}
    copy = with_constants(own.graph, missing)
    result = about_copy(decision, copy)
    result.plan.biases |= {
        (copy.nodes[n], i): np.asarray(a, np.float32, order="C") for (n, i), a in biases.items()
    }
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
    return array + along(shift / factor, place.axis if index != 2 else 0, rank)


def _with_room(decision: Decision) -> Decision:
    """Raises scales of weights where a corrected bias needs it."""
    weights = suited(decision.plan, decision.values, decision.weights)
    integers = {w: a for w, a in decision.integers.items() if weights[w] == decision.weights[w]}
    return replace(decision, weights=weights, integers=integers)
