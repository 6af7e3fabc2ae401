"""Which bodies of If, Loop and Scan stay quantized where a goal is given.

The simulated graph has float bodies, so they are judged on real graphs in which they alone are
quantized: the most costly ones become float until the goal is met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from qdqbridge.autoquant.planning.decide import Decision, apply
from qdqbridge.autoquant.planning.plan import QuantizationPlan
from qdqbridge.autoquant.search.search import Search
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.metrics import Metrics, outputs_of
from qdqbridge.core.graph.graph import Node


def bodies_that_meet(
    decision: Decision, met: Callable[[Metrics], bool], simulation: Simulation, goal: str
) -> tuple[Decision, dict[Node, Metrics]]:
    """Returns a decision with the bodies that a goal bears, and what the others cost alone.

    Args:
        decision: Some of its nodes may have quantized bodies.
        met: Whether outputs are good enough.
        simulation: Of its graph.
        goal: In words.
    """
    search = Search[Collection[Node]](
        lambda nodes: _with_these(decision, nodes, simulation), met, key=frozenset
    )
    if not decision.bodies or search.met([*decision.bodies]):
        return decision, {}
    alone = {node: search.metrics([node]) for node in decision.bodies}
    kept = sorted(alone, key=lambda node: alone[node].nmse)
    fewer = (kept[:count] for count in range(len(kept), 0, -1))
    few = search.in_turn(fewer) or []
    dropped = {node: alone[node] for node in reversed(kept[len(few) :])}
    return without_bodies(decision, dropped, f"its bodies stay float for {goal}"), dropped


def without_bodies(decision: Decision, nodes: Collection[Node], reason: str) -> Decision:
    """Returns a decision in which the bodies of some nodes are float."""
    plan = replace(decision.plan, floats={**decision.plan.floats, **dict.fromkeys(nodes, reason)})
    bodies = {node: new for node, new in decision.bodies.items() if node not in nodes}
    return replace(decision, plan=plan, bodies=bodies)


def _with_these(decision: Decision, nodes: Collection[Node], simulation: Simulation) -> Metrics:
    """Returns the outputs where nothing but the bodies of some nodes is quantized."""
    bodies = {node: new for node, new in decision.bodies.items() if node in nodes}
    graph = apply(Decision(QuantizationPlan(decision.plan.graph), bodies=bodies))
    return simulation.compared(outputs_of(graph, simulation.batches), simulation.reference)
