"""The layout plan: the fewest transposes, found as a minimum cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Operator
from qdqbridge.ops.data_movement import TRANSPOSE
from qdqbridge.qnn.layout.constraints import WINDOWS, LayoutConstraint, NodeConstraints, constraints
from qdqbridge.qnn.layout.cut import INFINITE, SINK, SOURCE, Network
from qdqbridge.qnn.layout.permutation import channels_last, unmoved

_TRANSPOSE = 1 << 10
"""Cost of a transpose; its element size decides between equally many, a reshape costs 1."""


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """In which layout every value and node is carried.

    Attributes:
        values: The values whose results are carried channels-last.
        nodes: For each node, whether its operands are taken channels-last and whether its results
            are given so; a node whose operands may have any layout has them as their value does.
        transposes: Values that are needed in the layout that they are not carried in; converting
            one of them is a transpose, or a reshape where no element moves.
    """

    values: frozenset[Value]
    nodes: dict[Node, tuple[tuple[bool, ...], bool]]
    transposes: tuple[Value, ...]

    def permutation(self, value: Value) -> tuple[int, ...] | None:
        """Returns the permutation in which a value is carried; None as the graph has it."""
        if value not in self.values or value.rank is None:
            return None
        return channels_last(value.rank)


def plan(
    graph: Graph,
    channels_last: bool = True,
    *,
    ranks: Collection[int] = (3, 4),
    fixed: Collection[Operator] = (),
) -> LayoutPlan:
    """Returns the plan with the fewest transposes under which window operators are channels-last.

    Transposes that the graph has itself vanish where values are carried so; a graph without a
    window operator stays as it is unless it loses some. The time is linear in the nodes for graphs
    whose regions between window operators are small.

    Args:
        graph: A canonical graph.
        channels_last: False to carry everything as it is.
        ranks: Ranks of the values that may be carried channels-last; axis 1 is their channel.
        fixed: Operators whose host form is channels-first only.
    """
    if channels_last:
        found = _LayoutPlanner(graph.nodes, ranks, fixed).plan(graph.inputs, graph.outputs)
        windows = any(n.op in WINDOWS and n.output.rank in ranks for n in graph.nodes)
        if windows or len(found.transposes) < _vanishing(found):
            return found
    alone = {node: ((False,) * len(node.inputs), False) for node in graph.nodes}
    return LayoutPlan(frozenset(), alone, ())


def _vanishing(plan: LayoutPlan) -> int:
    """Returns how many transposes of the graph are none under the plan."""
    nodes = plan.nodes.items()
    return sum(n.op is TRANSPOSE and taken[0] != given for n, (taken, given) in nodes)


class _LayoutPlanner:
    def __init__(
        self, nodes: Sequence[Node], ranks: Collection[int], fixed: Collection[Operator]
    ) -> None:
        self.nodes, self.ranks = nodes, ranks
        self.constraints: dict[Node, NodeConstraints] = {
            n: constraints(n, ranks, fixed) for n in nodes
        }
        self.network = Network()
        self.followers: dict[Node, int] = {}

    def plan(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> LayoutPlan:
        readers = self._readers(inputs, outputs)
        for value, places in readers.items():
            self._connect(value, self._producer(value), places)
        near = self.network.source_side()
        values = frozenset(v for v in readers if not near[self._producer(v)])
        moved = [
            v
            for v, places in readers.items()
            if len({near[p] for p in places} | {near[self._producer(v)]}) > 1
        ]
        return LayoutPlan(
            values, {n: self._node(n, near, values) for n in self.nodes}, tuple(moved)
        )

    def _readers(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[Value, list[int]]:
        """Returns the network nodes that read each value with a layout."""
        found: dict[Value, list[int]] = {}
        for value in inputs:
            if value.rank in self.ranks:
                found[value] = []
        for node in self.nodes:
            for value, side in zip(node.inputs, self.constraints[node].inputs, strict=True):
                if (
                    value is not None
                    and side is not LayoutConstraint.FREE
                    and self._laid_out(value)
                ):
                    found.setdefault(value, []).append(self._place(node, side))
            found.update({v: [] for v in node.outputs if self._laid_out(v)})
        for value in outputs:
            if self._laid_out(value):
                found[value].append(SOURCE)
        return found

    def _laid_out(self, value: Value) -> bool:
        return value.rank in self.ranks and not value.is_constant

    def _producer(self, value: Value) -> int:
        node = value.producer
        return SOURCE if node is None else self._place(node, self.constraints[node].outputs[0])

    def _place(self, node: Node, side: LayoutConstraint) -> int:
        if side is LayoutConstraint.AS_IS or node.output.rank not in self.ranks:
            return SOURCE
        if side is LayoutConstraint.LAST:
            return SINK
        if node not in self.followers:
            self.followers[node] = self.network.node()
        return self.followers[node]

    def _connect(self, value: Value, producer: int, places: list[int]) -> None:
        """One conversion serves all readers of the other layout."""
        cost = 1 if unmoved(value) else _TRANSPOSE + value.type.dtype.bits
        others = {place for place in places if place != producer}
        if not others:
            return
        there, back = self.network.node(), self.network.node()
        self.network.edge(producer, there, cost)
        self.network.edge(back, producer, cost)
        for place in others:
            self.network.edge(there, place, INFINITE)
            self.network.edge(place, back, INFINITE)

    def _node(
        self, node: Node, near: list[bool], values: frozenset[Value]
    ) -> tuple[tuple[bool, ...], bool]:
        own = self.constraints[node]
        taken = tuple(
            value in values
            if side is LayoutConstraint.FREE and value is not None
            else not near[self._place(node, side)]
            if side is not LayoutConstraint.FREE
            else False
            for value, side in zip(node.inputs, own.inputs, strict=True)
        )
        return taken, not near[self._place(node, own.outputs[0])]
