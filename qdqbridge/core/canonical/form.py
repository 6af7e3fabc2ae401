"""The canonical form: its rules to their fixpoint, and what looks at the whole graph."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.arguments import BIT_FOR_BIT, ReadingOptions
from qdqbridge.core.canonical.diagnostics import diagnose
from qdqbridge.core.canonical.order import order_operands, order_steps
from qdqbridge.core.canonical.rules import rules_with
from qdqbridge.core.canonical.storage import propagate_storage, share_dequantized
from qdqbridge.core.graph.graph import Graph, Node, Note
from qdqbridge.core.ops.integers import leave_as_stored, propagate_parameters, release_interface
from qdqbridge.core.rewrite.driver import run
from qdqbridge.core.rewrite.rule import Reject, Rule


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
    refused = _settled(graph, rules)
    if propagate_parameters(graph):  # once: rules may make plain again what it has typed
        refused = _settled(graph, rules)
    order_steps(graph.nodes)
    order_operands(graph)
    release_interface(graph)
    graph.canonical = True
    for note in (*notes_of(refused), *diagnose(graph)):
        if note not in graph.notes:
            graph.notes.append(note)
    return graph


def _settled(graph: Graph, rules: Sequence[Rule]) -> dict[tuple[str, Node], Reject]:
    """Runs the rules, and again behind what looks at the whole graph, to their fixpoint."""
    refused = run(graph, rules)
    while leave_as_stored(graph) or propagate_storage(graph) or share_dequantized(graph):
        refused = run(graph, rules)
    return refused


def notes_of(refused: dict[tuple[str, Node], Reject]) -> list[Note]:
    """Returns refusals as notes, in the order of the graph's nodes."""
    return [
        Note(name, (reject.about or node).name, reject.reason, reject.culprits)
        for (name, node), reject in refused.items()
    ]
