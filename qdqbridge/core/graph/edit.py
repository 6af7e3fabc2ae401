"""The only place that changes a graph: rewiring edges, adding and removing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.errors import InvalidModelError

# ---- the deterministic topological order of a graph ----------------------------------------------


def execution_order(outputs: Sequence[Value]) -> list[Node]:
    """Returns the nodes that ``outputs`` need, operands first.

    The order is the post-order of a depth-first walk from the outputs through the operands in
    their order, so it depends on the structure alone: not on names, nor on the file's order.

    Raises:
        InvalidModelError: The graph has a cycle.
    """
    order: list[Node] = []
    done: set[Node] = set()
    open_: set[Node] = set()
    for output in outputs:
        stack: list[tuple[Node, int]] = []
        if output.producer is not None and output.producer not in done:
            stack.append((output.producer, 0))
            open_.add(output.producer)
        while stack:
            node, index = stack.pop()
            if index == len(node.inputs):
                open_.discard(node)
                done.add(node)
                order.append(node)
                continue
            stack.append((node, index + 1))
            operand = node.inputs[index]
            producer = None if operand is None else operand.producer
            if producer is None or producer in done:
                continue
            if producer in open_:
                raise InvalidModelError(
                    "the graph has a cycle",
                    where=f"node '{node.name}', operand {index}",
                    why=f"it depends on the result of '{producer.name}', which depends on it",
                    fix="ONNX graphs must be acyclic; export the model again",
                )
            open_.add(producer)
            stack.append((producer, 0))
    return order


# --------------------------------------------------------------------------------------------------


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
        return not any(value.users or value in self._output_slots for value in node.outputs)

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

    def replace_value(
        self, old: Value, new: Value, users: Sequence[tuple[Node, int]] | None = None
    ) -> set[Node]:
        """Makes every reader of ``old``, or those given, read ``new``; returns the readers."""
        readers: set[Node] = set()
        for node, index in list(old.users) if users is None else users:
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


def name_values(graph: Graph) -> Graph:
    """Gives every computed value a name that no other has, in place, and returns the graph.

    Inputs keep theirs, and so does the first of several values of one name. The names depend on
    nothing but the graph.
    """
    taken = {value.name for value in graph.inputs}
    given = {v.name for node in graph.nodes for v in node.outputs} | taken
    counts: dict[str, int] = {}
    for node in graph.nodes:
        for value in node.outputs:
            if not value.name or value.name in taken:
                value.name = _fresh(value.name or node.op.name.lower(), given, counts)
                given.add(value.name)
            taken.add(value.name)
    return graph


def _fresh(base: str, given: set[str], counts: dict[str, int]) -> str:
    """Returns ``base`` with the first free number, counted on from where it was left."""
    count = counts.get(base, 1)
    while f"{base}_{count}" in given:
        count += 1
    counts[base] = count + 1
    return f"{base}_{count}"
