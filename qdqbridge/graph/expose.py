"""Making intermediate values visible: which there are, and a name for each."""

from __future__ import annotations

from collections import Counter

from qdqbridge.graph.graph import Graph, Value


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
