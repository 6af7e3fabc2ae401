"""Weights learned on the way through the graph, with biases, in few bits and in 8.

A product shall compute ``w x``; it computes ``q x'``, of stored weights and of operands that the
layers before it have rounded. What is learned of each product, and how, is said in
:mod:`qdqbridge.autoquant.repair.learned_layer`. Biases are corrected on the way, so that later
layers see them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import suited
from qdqbridge.autoquant.planning.decide import Decision, stored_integers
from qdqbridge.autoquant.planning.plan import Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.correct import Correcting, places, shifted
from qdqbridge.autoquant.repair.layers import layer_of
from qdqbridge.autoquant.repair.learned_layer import FEW_BITS, LayerLearning
from qdqbridge.autoquant.repair.operand_moments import OperandMoments
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams

Array = NDArray[Any]
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
        learning = LayerLearning(layer, params, start, self.hold, limits)
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
    outcome = f"{found.rows[0]} of {found.rows[1]} rows of weights learned"
    return shifted(result, found.biases), outcome
