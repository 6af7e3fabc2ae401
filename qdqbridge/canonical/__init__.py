"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from __future__ import annotations

from qdqbridge.canonical.diagnostics import diagnose
from qdqbridge.canonical.driver import notes_of, run
from qdqbridge.canonical.islands import explanation, islands
from qdqbridge.canonical.order import order_operands, order_steps
from qdqbridge.canonical.rules import RULES, rules_with
from qdqbridge.canonical.storage import propagate_storage, share_dequantized
from qdqbridge.graph.graph import Graph
from qdqbridge.ops.integers import propagate_parameters, release_interface
from qdqbridge.options import BIT_FOR_BIT, ReadingOptions

__all__ = ["RULES", "canonicalize", "explanation", "islands"]


def canonicalize(
    graph: Graph, options: ReadingOptions = BIT_FOR_BIT, *, channels_first: bool = False
) -> Graph:
    """Rewrites ``graph`` in place to the canonical form and returns it.

    Applying it again changes nothing. Refusals that still stand are appended to ``graph.notes``,
    and so is what the parameters say that somebody should know.

    Args:
        graph: Any graph.
        options: What is rewritten beyond what keeps every bit.
        channels_first: Carry transposes to channels-last down the graph until something undoes
            them, as an image network of another layout wants it. Float sums change their order.
    """
    propagate_parameters(graph)
    rules = rules_with(options, channels_first=channels_first)
    refused = run(graph, rules)
    while propagate_storage(graph) or share_dequantized(graph):
        refused = run(graph, rules)
    order_steps(graph.nodes)
    order_operands(graph)
    release_interface(graph)
    graph.canonical = True
    for note in (*notes_of(refused), *diagnose(graph)):
        if note not in graph.notes:
            graph.notes.append(note)
    return graph
