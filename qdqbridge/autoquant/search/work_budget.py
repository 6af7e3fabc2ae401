"""How much is tried, counted in operations: the same on a fast machine, a slow one and a busy one.

A clock would make what is tried, and so the quantized file, depend on what else runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.weights import geometry_of

RATE = 2e10
"""Operations that a usual core does in a second, about."""


@dataclass(slots=True)
class WorkBudget:
    """What may be tried, and what was.

    Attributes:
        budget: Seconds of a core of :data:`RATE`.
        spent: The same.
    """

    budget: float
    spent: float = 0.0

    @property
    def left(self) -> bool:
        """True while another step may be begun."""
        return self.spent < self.budget

    def spend(self, graph: Graph, profile: Profile, runs: float) -> None:
        """Notes a step.

        Args:
            graph: What it runs.
            profile: Of the graph, which knows how large tensors are.
            runs: For how many samples.
        """
        self.spent += operations(graph, profile) * runs / RATE


def operations(graph: Graph, profile: Profile) -> float:
    """Returns what one sample takes: products' multiplications, and an operation per element.

    Args:
        graph: A float graph.
        profile: Its profile; tensors that it does not know count nothing.
    """
    seen, total = profile.by_name(), 0
    for node in graph.nodes:
        elements = sum(seen[v.name].count for v in node.outputs if v.name in seen)
        geometry = geometry_of(node) if node.op.flow is Flow.ACCUMULATE else None
        weight, terms = node.optional(1), 1
        if geometry is not None and weight is not None and weight.constant is not None:
            terms = geometry.terms(weight.constant.shape)
        total += elements * max(terms, 1)
    return total / max(profile.samples, 1)
