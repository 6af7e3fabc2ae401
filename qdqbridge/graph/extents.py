"""Numbers for the symbolic extents of a graph's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, cast

from qdqbridge.errors import InputDataError
from qdqbridge.graph import symbols
from qdqbridge.graph.copying import with_each_extent
from qdqbridge.graph.graph import Graph

LIMIT = 1 << 31
"""Hosts count extents in int32."""


def symbolic_extents(graph: Graph) -> tuple[str, ...]:
    """Returns the names of the inputs' symbolic extents, each once, in order."""
    named = (dim for value in graph.inputs for dim in value.type.shape or ())
    return tuple(dict.fromkeys(dim for dim in named if isinstance(dim, str)))


def with_numbers(graph: Graph, extents: Mapping[str, int]) -> Graph:
    """Returns a graph in which symbolic extents are numbers; ``graph`` itself where none is given.

    Args:
        graph: The graph; it is not changed, and data of constants is shared.
        extents: Positive numbers by name.

    Raises:
        InputDataError: It is no mapping, or a name or number does not fit.
    """
    check_extents(graph, extents)
    if not extents:
        return graph
    return with_each_extent(graph, lambda dim: symbols.with_numbers(dim, extents))


def check_extents(graph: Graph, extents: object) -> None:
    """Refuses what gives no numbers for symbolic extents of a graph.

    Args:
        graph: The graph; it may have more symbolic extents than are given.
        extents: Positive numbers by name.

    Raises:
        InputDataError: It is no mapping, or a name or number does not fit.
    """
    symbolic = symbolic_extents(graph)
    known = f"its inputs have {', '.join(symbolic) or 'no symbolic extents'}"
    if not isinstance(extents, Mapping):
        raise InputDataError(
            "extents must be numbers by name",
            why=f"{type(extents).__name__} is no mapping",
            fix=known,
        )
    for name, number in cast("Mapping[Any, Any]", extents).items():
        if name not in symbolic:
            raise InputDataError(
                f"the model has no symbolic extent '{name}'",
                where=graph.name,
                why=known,
                fix="give numbers for these only" if symbolic else "give no extents",
            )
        if not isinstance(number, Integral) or not 0 < int(number) < LIMIT:
            raise InputDataError(
                f"the extent '{name}' must be a number from 1 to {LIMIT - 1}",
                where=graph.name,
                why=f"it is {number!r}",
                fix=f"give a size, such as {name}=1",
            )
