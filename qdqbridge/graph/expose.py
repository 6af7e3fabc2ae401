"""Making intermediate values visible: a variant of a graph with more outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qdqbridge.graph.graph import Graph, Value


def with_outputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """Returns ``graph`` with ``values`` as further outputs, named ``value.name``.

    Nodes and values are shared with ``graph``, so run the result and do not edit it. Values that
    are outputs already are left out; a missing or repeated name gets a number.

    Args:
        graph: Any graph.
        values: Values of its nodes.
    """
    known = set(graph.outputs)
    extra = [value for value in dict.fromkeys(values) if value not in known]
    names = list(graph.output_names)
    for value in extra:
        names.append(_unused(value.name or "value", names))
    return replace(graph, outputs=[*graph.outputs, *extra], output_names=names)


def _unused(name: str, taken: Sequence[str]) -> str:
    used, number, candidate = set(taken), 1, name
    while candidate in used:
        number += 1
        candidate = f"{name}#{number}"
    return candidate


def intermediates(graph: Graph) -> list[Value]:
    """Returns the results of nodes that are no outputs and have a name of their own."""
    outputs = set(graph.outputs)
    results = [value for node in graph.nodes for value in node.outputs]
    times = Counter(value.name for value in results)
    taken = {*graph.output_names, *(value.name for value in graph.inputs)}
    return [
        value
        for value in results
        if value not in outputs
        and value.name
        and value.name not in taken
        and times[value.name] == 1
    ]
