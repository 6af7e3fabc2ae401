"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from __future__ import annotations

from qdqbridge.canonical.diagnostics import diagnose
from qdqbridge.canonical.driver import notes_of, run
from qdqbridge.canonical.interface import type_inputs
from qdqbridge.canonical.islands import explanation, islands
from qdqbridge.canonical.rules import DECOMPOSED, RULES
from qdqbridge.graph.graph import Graph

__all__ = ["RULES", "canonicalize", "explanation", "islands"]


def canonicalize(graph: Graph, *, decomposed: bool = False) -> Graph:
    """Rewrites ``graph`` in place to the canonical form and returns it.

    Applying it again changes nothing. Refusals that still stand are appended to ``graph.notes``,
    and so is what the parameters say that somebody should know.

    Args:
        graph: Any graph.
        decomposed: Read fake-quantization in float arithmetic (idiom L2) as Q and DQ.
    """
    type_inputs(graph)
    refused = run(graph, DECOMPOSED if decomposed else RULES)
    graph.canonical = True
    for note in (*notes_of(refused), *diagnose(graph)):
        if note not in graph.notes:
            graph.notes.append(note)
    return graph
