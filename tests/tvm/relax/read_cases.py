"""What the tests of reading share: a graph, emitted and read back, is the same graph."""

from __future__ import annotations

import difflib
from typing import Any

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.options import RelaxVariant


def read_back(graph: Graph, *, keep_params: bool = False, variant: RelaxVariant = "qnn") -> Graph:
    """Returns the canonical graph of the module that ``graph`` is emitted as."""
    module, params = qb.to_relax(graph, keep_params=keep_params, variant=variant)
    return qb.from_relax(module, params)


def same(found: Graph, wanted: Graph) -> None:
    """Asserts that two graphs have one digest; shows the lines in which they differ."""
    if found.digest != wanted.digest:
        lines = difflib.unified_diff(
            wanted.text().splitlines(), found.text().splitlines(), lineterm="", n=0
        )
        raise AssertionError("\n".join(lines))


def kept(graph: Graph, **options: Any) -> None:
    """Asserts that emission and reading together keep the digest of ``graph``."""
    same(read_back(graph, **options), graph)
