"""The only place that changes a graph: rewiring edges, adding and removing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.order import execution_order


def set_operand(node: Node, index: int, value: Value | None) -> None:
    """Makes ``value`` operand ``index`` of ``node``."""
    old = node.inputs[index]
    if old is not None:
        old.users.pop((node, index), None)
    node.inputs[index] = value
    if value is not None:
        value.users[node, index] = None


def set_operands(node: Node, values: Sequence[Value | None]) -> None:
    """Replaces all operands of ``node``."""
    detach(node)
    node.inputs = list(values)
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users[node, index] = None


def detach(node: Node) -> None:
    """Takes ``node`` out of the user lists of its operands."""
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users.pop((node, index), None)


class Editor:
    """Changes one graph; :meth:`finish` restores the deterministic order and drops dead nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._output_slots: dict[Value, list[int]] = {}
        for slot, value in enumerate(graph.outputs):
            self._output_slots.setdefault(value, []).append(slot)

    def is_output(self, value: Value) -> bool:
        """True where ``value`` leaves the graph."""
        return value in self._output_slots

    def only_user(self, value: Value) -> Node | None:
        """Returns the single node that reads ``value`` once, None otherwise."""
        if len(value.users) != 1 or self.is_output(value):
            return None
        return next(iter(value.users))[0]

    def replace_value(self, old: Value, new: Value) -> set[Node]:
        """Makes every reader of ``old`` read ``new``; returns the readers."""
        readers: set[Node] = set()
        for node, index in list(old.users):
            set_operand(node, index, new)
            readers.add(node)
        for slot in self._output_slots.pop(old, ()):
            self.graph.outputs[slot] = new
            self._output_slots.setdefault(new, []).append(slot)
        return readers

    def is_dead(self, node: Node) -> bool:
        """True where nothing reads any result of ``node``."""
        return not any(value.users or self.is_output(value) for value in node.outputs)

    def remove(self, node: Node) -> Iterable[Node]:
        """Removes a dead node; yields the producers of its operands (perhaps dead now)."""
        producers = {v.producer for v in node.inputs if v is not None and v.producer is not None}
        detach(node)
        node.inputs = []
        return producers

    def finish(self) -> None:
        """Sets ``graph.nodes`` to the deterministic order of the nodes that outputs need."""
        order = execution_order(self.graph.outputs)
        alive = set(order)
        for node in self.graph.nodes:
            if node not in alive:
                detach(node)
        self.graph.nodes = order
