"""What a user asks for by name, and what that is in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from qdqbridge.autoquant.formats import Format
from qdqbridge.autoquant.plan import Wishes
from qdqbridge.autoquant.profile import observable
from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Graph, Node
from qdqbridge.graph.quantization import QuantParams


@dataclass(frozen=True, slots=True)
class Request:
    """What a user wants otherwise than the target.

    Names of nodes may be patterns (``*`` and ``?``); they are looked for among the nodes' own names
    and their operators' (``Conv``).

    Attributes:
        exclude: Nodes that stay float.
        only: Nodes that are quantized, all others staying float; empty for all.
        fixed: Parameters of tensors, by name.
        formats: Formats of what nodes read and compute.
    """

    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    fixed: Mapping[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    formats: Mapping[str, Format] = field(default_factory=dict[str, Format])


def resolve(request: Request, graph: Graph) -> Wishes:
    """Returns what ``request`` means in ``graph``.

    Raises:
        InputDataError: A name or pattern stands for nothing.
    """
    floats: dict[Node, str] = {}
    if request.only:
        kept = {node for pattern in request.only for node in _nodes(graph, pattern)}
        floats = {
            node: "the user quantizes others only" for node in graph.nodes if node not in kept
        }
    for pattern in request.exclude:
        floats |= dict.fromkeys(_nodes(graph, pattern), f"the user excludes {pattern!r}")
    values = {value.name: value for value in observable(graph)}
    unknown = sorted(set(request.fixed) - set(values))
    if unknown:
        raise InputDataError(
            "parameters are given for tensors that the model does not have",
            why=f"unknown: {', '.join(unknown)}",
            fix="give names of float tensors of the model; batch normalizations are folded first",
        )
    return Wishes(
        floats=floats,
        fixed={values[name]: params for name, params in request.fixed.items()},
        formats={n: f for pattern, f in request.formats.items() for n in _nodes(graph, pattern)},
    )


def _nodes(graph: Graph, pattern: str) -> list[Node]:
    found = [node for node in graph.nodes if _matches(node, pattern)]
    if not found:
        raise InputDataError(
            f"no node is called {pattern!r}",
            why="a wish that concerns nothing is a mistake",
            fix="qdqbridge inspect MODEL shows the operators; names may hold * and ?",
        )
    return found


def _matches(node: Node, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (*node.origin.nodes, node.op.name))
