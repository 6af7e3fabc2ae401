"""Tensors as they arrive behind what is quantized already, while parameters are being chosen.

Parameters are chosen in topological order, so that everything before a tensor is decided when a
chooser looks at it. What lies between two looks is compiled and run once, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import suited
from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.plan import QuantizationPlan, Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.simulation.engines import OnnxRuntime
from qdqbridge.autoquant.simulation.graph import Feeds, Needs, simulated
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantParams

Array = NDArray[Any]
Chosen = Callable[[Sequence[Weight]], Mapping[Weight, QuantParams]]
"""Returns parameters for some weights, as they are before a target's arithmetic raises scales."""


class QuantizedPrefix:
    """The simulated graph, run as far as somebody has looked."""

    def __init__(self, plan: QuantizationPlan, samples: Samples, weights: Chosen) -> None:
        """Prepares it; nothing is run before the first look.

        Args:
            plan: What is quantized.
            samples: What is looked at.
            weights: Chooses parameters of weights where they are needed.
        """
        self._plan, self._weights = plan, weights
        self._graph = simulated(plan.graph, Needs.of([plan]))
        self._feeds, self._engine = Feeds(self._graph), OnnxRuntime(parts=1)
        self._nodes = self._graph.graph.nodes
        self._position = {node: index for index, node in enumerate(self._nodes)}
        self._originals: dict[Node, list[Weight]] = {}
        for weight in plan.weights:
            self._originals.setdefault(weight.node, []).append(weight)
        self._done, self._decided = 0, Decision(plan)
        self._order = {node: index for index, node in enumerate(plan.graph.nodes)}
        self._arrays: list[dict[Value, Array]] = [
            {value: np.asarray(piece[value.name]) for value in self._graph.samples}
            for piece in samples.batches(plan.graph.inputs)
        ]

    def look(self, value: Value, chosen: Mapping[Value, QuantParams]) -> list[Array]:
        """Returns a value of the plan's graph for every batch of samples, before its rounding.

        Args:
            value: The value.
            chosen: Parameters of the values before it, by the value that decides.
        """
        wanted = self._graph.values[value]
        if wanted.producer is not None:
            end = self._position[wanted.producer] + 1
            if end > self._done:
                self._advance(end, value, chosen)
        return [_read_only(arrays[wanted]) for arrays in self._arrays]

    def _advance(self, end: int, value: Value, chosen: Mapping[Value, QuantParams]) -> None:
        """Runs the nodes up to a position."""
        plan, decision = self._plan, self._decided
        decision.values = {
            v: chosen[plan.root(v)] for v in plan.specs if plan.root(v) in chosen and v is not value
        }
        assert value.producer is not None
        last = self._order[value.producer]
        before = [n for n in self._originals if self._order[n] <= last]
        few = self._weights([w for n in before for w in self._originals.pop(n)])
        decision.weights.update(suited(plan, decision.values, few))
        nodes = self._nodes[self._done : end]
        made = dict.fromkeys(v for node in nodes for v in node.outputs)
        read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
        inputs = [v for v in read if v not in made and not v.is_constant]
        outputs = [v for v in made if v is self._graph.values[value] or self._read_behind(v, end)]
        part = replace(
            self._graph.graph,
            inputs=inputs,
            outputs=outputs,
            output_names=[v.name for v in outputs],
            nodes=nodes,
            metadata={},
            notes=[],
        )
        run, feeds = self._engine(part), self._feeds.of(decision)
        for arrays in self._arrays:
            known = {**feeds, **arrays}
            found = run({v.name: known[v] for v in inputs})
            arrays.update(zip(outputs, found, strict=True))
            for v in [v for v in arrays if not self._read_behind(v, end) and v not in made]:
                del arrays[v]
        self._done = end

    def _read_behind(self, value: Value, end: int) -> bool:
        """True where a node from a position on reads a value."""
        return any(self._position[node] >= end for node, _ in value.users)


def _read_only(array: Array) -> Array:
    """Returns a view that nobody changes: what comes behind is computed of the same array."""
    view = array.view()
    view.flags.writeable = False
    return view
