"""A graph of one's own to change: nodes and values are new, constants are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from qdqbridge.graph.edit import link
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.types import Dim


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A copy, and what became of what.

    Attributes:
        graph: The copy.
        values: The copy of every value.
        nodes: The copy of every node.
    """

    graph: Graph
    values: dict[Value, Value]
    nodes: dict[Node, Node]


def copied(graph: Graph) -> Copy:
    """Returns a copy of ``graph``; the data of constants is not copied."""
    values: dict[Value, Value] = {}
    nodes: dict[Node, Node] = {}

    def value_of(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value not in values:
            new = Value(value.type, value.name, constant=value.constant)
            new.metadata, new.written = value.metadata, value.written
            new.declared = value.declared
            values[value] = new
        return values[value]

    inputs = [new for value in graph.inputs if (new := value_of(value)) is not None]
    for node in graph.nodes:
        operands = [value_of(value) for value in node.inputs]
        results = [new for value in node.outputs if (new := value_of(value)) is not None]
        nodes[node] = Node(node.op, node.attributes, operands, results, node.origin)
        link(nodes[node])
    outputs = [new for value in graph.outputs if (new := value_of(value)) is not None]
    new_graph = replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        output_names=list(graph.output_names),
        nodes=list(nodes.values()),
        metadata=dict(graph.metadata),
        notes=list(graph.notes),
    )
    return Copy(new_graph, values, nodes)


def with_each_extent(graph: Graph, extent: Callable[[Dim], Dim]) -> Graph:
    """Returns a copy of ``graph`` in which each extent is what a function makes of it."""
    copy = copied(graph)
    for value in copy.values.values():
        shape = value.type.shape
        if shape is not None:
            value.type = value.type.with_shape(tuple(extent(dim) for dim in shape))
    return copy.graph
