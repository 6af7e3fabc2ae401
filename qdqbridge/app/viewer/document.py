"""What a page shows, as JSON: the nodes and values of a graph, of two, and how they are painted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.app.report.quantization.markup import Markup
from qdqbridge.app.viewer.histograms import histogram
from qdqbridge.app.viewer.paint import BAD, FAIR, GOOD, Paint, bits, by_class, quantization
from qdqbridge.app.viewer.scopes import scope
from qdqbridge.core.graph.alignment import align
from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.difference import granularity
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.printer import attributes_text
from qdqbridge.core.graph.types import QuantType

_STATES = {"the same": GOOD, "changed": FAIR, "only here": BAD}
_LISTED = 8
"""Numbers of a scale or zero point per channel that are written out."""
_HASHED = 1 << 27
"""Bytes of weights of which a digest is made for the page."""
NO_DIGEST = "not made of weights of"
"""What a page says in place of the digest of a large graph."""
_USERS = 64
"""Readers of one value that are listed."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a page shows.

    Attributes:
        title: Its title.
        graphs: One graph, or two that are compared.
        pairs: Which nodes of two graphs correspond, by index.
        differences: Where two graphs differ.
        paint: The name of the paint that is shown first.
        report: What is told beside the graphs; nothing where it is None.
    """

    title: str
    graphs: tuple[Mapping[str, Any], ...]
    pairs: tuple[tuple[int, int], ...] = ()
    differences: tuple[Mapping[str, Any], ...] = ()
    paint: str = "quantization"
    report: Markup | None = None

    def json(self) -> dict[str, Any]:
        """Returns it as the page reads it."""
        return {
            "title": self.title, "graphs": list(self.graphs), "pairs": list(self.pairs),
            "differences": list(self.differences), "paint": self.paint,
        }  # fmt: skip


def document(
    graph: Graph,
    name: str,
    notes: Sequence[Note] = (),
    *,
    paints: Sequence[Paint] = (),
    recorded: Mapping[Value, NDArray[Any]] | None = None,
) -> Document:
    """Returns what the page of one graph shows.

    Args:
        graph: A canonical graph.
        name: What its file is called.
        notes: What ``explain`` says about it.
        paints: More that its nodes can be coloured by; the first of them is shown first.
        recorded: Stored elements of values in a run, for histograms.
    """
    own = [quantization(graph, notes), bits(graph), *paints]
    shown = ShownGraph(graph, recorded or {}).json(name, notes, own)
    return Document(name, (shown,), paint=(paints[0] if paints else own[0]).name)


def document_of_two(
    first: tuple[Graph, str, Sequence[Note]], second: tuple[Graph, str, Sequence[Note]]
) -> Document:
    """Returns what a page shows of two graphs: what corresponds, what differs, what is only here.

    Args:
        first: One graph, what its file is called, and what ``explain`` says about it.
        second: The other one.
    """
    (a, _, _), (b, _, _) = first, second
    aligned, differences = align(a, b).forward, diff(a, b)
    places = ({n: i for i, n in enumerate(a.nodes)}, {n: i for i, n in enumerate(b.nodes)})
    names = [{node.name: node for node in graph.nodes} for graph in (a, b)]
    entries: list[Mapping[str, Any]] = []
    changed: tuple[dict[Node, str], dict[Node, str]] = ({}, {})
    for each in differences:
        nodes = [names[side].get(name) for side, name in enumerate((each.a, each.b))]
        for side, node in enumerate(nodes):
            if node is not None:
                changed[side].setdefault(node, each.text)
        at = [-1 if n is None else places[side][n] for side, n in enumerate(nodes)]
        entries.append({"where": each.where, "text": each.text, "a": at[0], "b": at[1]})
    backward = {theirs: mine for mine, theirs in aligned.items()}
    graphs: list[Mapping[str, Any]] = []
    sides = ((first, aligned, changed[0]), (second, backward, changed[1]))
    for (graph, name, notes), partners, differing in sides:
        found = {node: _state(node, partners, differing) for node in graph.nodes}
        paints = [
            by_class("difference", "Difference", found, graph, _STATES),
            quantization(graph, notes),
            bits(graph),
        ]
        graphs.append(ShownGraph(graph, {}).json(name, notes, paints))
    return Document(
        f"{first[1]} and {second[1]}",
        tuple(graphs),
        tuple((places[0][mine], places[1][theirs]) for mine, theirs in aligned.items()),
        tuple(entries),
        "difference",
    )


def _state(
    node: Node, partners: Mapping[Node, Node], differing: Mapping[Node, str]
) -> tuple[str, str]:
    if node not in partners:
        return "only here", ""
    return ("changed", differing[node]) if node in differing else ("the same", "")


class ShownGraph:
    """One graph as JSON, its values by number."""

    def __init__(self, graph: Graph, recorded: Mapping[Value, NDArray[Any]]) -> None:
        self.graph, self.recorded = graph, recorded
        self.numbers = {value: number for number, value in enumerate(graph.values())}
        self.places = {node: index for index, node in enumerate(graph.nodes)}

    def json(self, name: str, notes: Sequence[Note], paints: Sequence[Paint]) -> dict[str, Any]:
        """Returns the graph with its paints."""
        said: dict[str, list[str]] = {}
        for note in notes:
            said.setdefault(note.node, []).append(f"{note.reason} ({note.rule})")
        return {
            "name": name,
            "digest": self._digest(),
            "facts": self._facts(),
            "values": [self._value(value) for value in self.numbers],
            "nodes": [self._node(node, said.get(node.name, [])) for node in self.graph.nodes],
            "paints": [paint.json() for paint in paints],
        }

    def _digest(self) -> str:
        """Returns the graph's digest; of a large one it would read all weights for a picture."""
        size = sum(v.constant.nbytes for v in self.numbers if v.constant is not None)
        return self.graph.digest if size <= _HASHED else f"{NO_DIGEST} {size / 1e9:.1f} GB"

    def _facts(self) -> list[list[str]]:
        graph = self.graph
        ports = zip(graph.output_names, graph.outputs, strict=True)
        return [
            ["Nodes", str(len(graph.nodes))],
            *(
                [f"Input {v.name}", f"{_type(v)} {_value_shape_text(v)}".strip()]
                for v in graph.inputs
            ),
            *(
                [f"Output {name}", f"{_type(v)} {_value_shape_text(v)}".strip()]
                for name, v in ports
            ),
        ]

    def _node(self, node: Node, notes: list[str]) -> dict[str, Any]:
        number = self.numbers
        return {
            "op": node.op.name,
            "name": node.name,
            "scope": list(scope(node)),
            "attributes": attributes_text(node.attributes).strip(),
            "ins": [-1 if value is None else number[value] for value in node.inputs],
            "outs": [number[value] for value in node.outputs],
            "notes": notes,
        }

    def _value(self, value: Value) -> dict[str, Any]:
        users = list(dict.fromkeys(self.places[node] for node, _ in value.users))[:_USERS]
        found: dict[str, Any] = {
            "name": value.name, "type": _type(value), "shape": _value_shape_text(value),
            "by": -1 if value.producer is None else self.places[value.producer], "users": users,
        }  # fmt: skip
        if value.constant is not None:
            found["constant"] = True
        if isinstance(value.type, QuantType):
            params = value.type.params
            found["scale"] = _numbers(params.scale)
            found["zero"] = _numbers(params.zero_point)
            found["range"] = f"{params.qmin} to {params.qmax}"
        drawn = self._histogram(value)
        return found if drawn is None else {**found, "histogram": drawn}

    def _histogram(self, value: Value) -> dict[str, Any] | None:
        if value.constant is not None:
            return histogram(value, value.constant.numpy()) if value.constant.size > 1 else None
        stored = self.recorded.get(value)
        return None if stored is None else histogram(value, stored, run=True)


def _type(value: Value) -> str:
    if not isinstance(value.type, QuantType):
        return str(value.type.dtype)
    return f"{value.type.dtype} quantized {granularity(value.type.params)}"


def _value_shape_text(value: Value) -> str:
    shape = value.type.shape
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"


def _numbers(array: NDArray[Any]) -> str:
    flat = array.reshape(-1)
    listed = ", ".join(_format_float(float(number)) for number in flat[:_LISTED])
    if flat.size <= _LISTED:
        return listed
    wide = flat.astype(np.float64)
    low, high = (_format_float(float(end)) for end in (wide.min(), wide.max()))
    return f"{listed}, … ({flat.size}: {low} to {high})"


def _format_float(number: float) -> str:
    return f"{number:.9g}" if math.isfinite(number) else str(number)
