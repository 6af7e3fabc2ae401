"""The form in which a file has a graph, for as long as nobody changes the graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqbridge.core.graph.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class AsRead:
    """What a file says, node by node, and the state of the graph that means the same.

    Attributes:
        form: The file's own nodes, as the writer of its format takes them.
        state: All that the graph says; empty before it has its canonical form.
    """

    form: object
    state: tuple[Any, ...] = ()

    def of(self, graph: Graph) -> AsRead:
        """Returns the same form, which stands for ``graph`` as it is now."""
        return replace(self, state=_state(graph))

    def stands_for(self, graph: Graph) -> bool:
        """True while nothing of the graph has changed: no node, type, constant or name."""
        return bool(self.state) and self.state == _state(graph)


def _state(graph: Graph) -> tuple[Any, ...]:
    """Returns all parts of a graph; nodes and values are what they are by identity."""
    nodes = tuple(
        (node, node.op, node.attributes, node.origin, tuple(node.inputs), tuple(node.outputs))
        for node in graph.nodes
    )
    values = tuple((value, value.name, value.type, value.constant) for value in graph.values())
    ends = (tuple(graph.inputs), tuple(graph.outputs), tuple(graph.output_names))
    return (*ends, graph.opset, nodes, values)
