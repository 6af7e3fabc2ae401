"""How much is tried, counted in operations: the same on a fast machine, a slow one and a busy one.

A clock would make what is tried, and so the quantized file, depend on what else runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from qdqbridge.autoquant.planning.unstored import RECURRENT
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.core.graph.operator import Flow, geometry_of

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
    return sum(_of_nodes(graph, profile).values()) / max(profile.samples, 1)


def shares_of_operations(graph: Graph, profile: Profile) -> dict[str, float]:
    """Returns which part of a graph's operations each of its nodes has, by name."""
    each = _of_nodes(graph, profile)
    total = max(sum(each.values()), 1)
    return {node.name: count / total for node, count in each.items()}


def _of_nodes(graph: Graph, profile: Profile) -> dict[Node, int]:
    seen = {name: stats.count for name, stats in profile.by_name().items()}
    return {node: _of_node(node, seen) for node in graph.nodes}


def _of_node(node: Node, seen: Mapping[str, int]) -> int:
    elements = sum(seen.get(value.name, 0) for value in node.outputs)
    shapes = [
        None if v is None or v.constant is None else v.constant.shape for v in node.inputs[:3]
    ]
    weight, states = (*shapes, None, None)[1:3]
    if node.op.name in RECURRENT and weight is not None and states is not None:
        steps = seen.get(node.operand(0).name, 0) // max(weight[-1], 1)
        return elements + steps * (math.prod(weight) + math.prod(states))
    geometry = geometry_of(node) if node.op.flow is Flow.ACCUMULATE else None
    if geometry is None or weight is None:
        return elements
    return elements * max(geometry.terms(weight), 1)
