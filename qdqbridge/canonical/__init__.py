"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from __future__ import annotations

from qdqbridge.canonical.driver import notes_of, run
from qdqbridge.canonical.interface import type_inputs
from qdqbridge.canonical.islands import islands
from qdqbridge.canonical.rules import RULES
from qdqbridge.graph.graph import Graph

__all__ = ["RULES", "canonicalize", "islands"]


def canonicalize(graph: Graph) -> Graph:
    """Rewrites ``graph`` in place to the canonical form and returns it.

    Applying it again changes nothing. Refusals that still stand are appended to ``graph.notes``.
    """
    type_inputs(graph)
    refused = run(graph, RULES)
    graph.canonical = True
    graph.notes.extend(note for note in notes_of(refused) if note not in graph.notes)
    return graph
