"""The only place that changes a graph: rewiring edges, adding and removing nodes."""

from __future__ import annotations

from collections.abc import Iterable

from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.order import execution_order


def link(node: Node) -> None:
    """Enters ``node`` into the user lists of its operands."""
    node.linked = True
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users[node, index] = None


def unlink(node: Node) -> None:
    """Takes ``node`` out of the user lists of its operands."""
    node.linked = False
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users.pop((node, index), None)


def rewire(node: Node, index: int, value: Value) -> None:
    """Makes a linked node read ``value`` as operand ``index``; one behind the last is appended."""
    old = node.optional(index)
    if old is not None:
        old.users.pop((node, index), None)
    node.inputs += [None] * (index + 1 - len(node.inputs))
    node.inputs[index] = value
    value.users[node, index] = None


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

    def is_dead(self, node: Node) -> bool:
        """True where nothing reads any result of ``node``."""
        return not any(value.users or self.is_output(value) for value in node.outputs)

    def insert(self, value: Value) -> list[Node]:
        """Links the nodes behind ``value`` that are still proposals; returns them."""
        added: list[Node] = []
        pending = [value.producer]
        while pending:
            node = pending.pop()
            if node is None or node.linked:
                continue
            link(node)
            added.append(node)
            pending.extend(v.producer for v in node.inputs if v is not None)
        return added

    def replace_value(self, old: Value, new: Value) -> set[Node]:
        """Makes every reader of ``old`` read ``new``; returns the readers."""
        readers: set[Node] = set()
        for node, index in list(old.users):
            rewire(node, index, new)
            readers.add(node)
        if new.declared is None:
            new.declared = old.declared
        for slot in self._output_slots.pop(old, ()):
            self.graph.outputs[slot] = new
            self._output_slots.setdefault(new, []).append(slot)
        return readers

    def remove(self, node: Node) -> Iterable[Node]:
        """Removes a dead node; returns the producers of its operands, which may be dead now."""
        unlink(node)
        return {v.producer for v in node.inputs if v is not None and v.producer is not None}

    def finish(self) -> None:
        """Sets ``graph.nodes`` to the deterministic order of the nodes that outputs need."""
        order = execution_order(self.graph.outputs)
        alive = set(order)
        for node in self.graph.nodes:
            if node not in alive and node.linked:
                unlink(node)
        for node in order:
            if not node.linked:
                link(node)
        self.graph.nodes = order
