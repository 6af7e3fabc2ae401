"""What a page shows of a quantization: the float graph beside what was made of it, and a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qdqbridge.app.report.quantization import quantization_article
from qdqbridge.app.viewer.document import Document, ShownGraph
from qdqbridge.app.viewer.paint import (
    BAD,
    FAIR,
    GOOD,
    Paint,
    bits,
    by_class,
    by_number,
    quantization,
)
from qdqbridge.core.graph.graph import Graph, Node, Note

if TYPE_CHECKING:
    from qdqbridge.autoquant.record import QuantizationRecord

_SUFFIX = "_quantized"
"""What a stored value is called behind its name in the float graph."""
_EQUAL = 110.0
"""What results without an error are shown as, in dB; float32 can tell no more apart."""


def document_of_quantization(
    record: QuantizationRecord, original: Graph, quantized: Graph, notes: Sequence[Note] = (),
    *, verdict: Sequence[tuple[str, str]] = (),
) -> Document:  # fmt: skip
    """Returns what the page of a quantization shows.

    Args:
        record: What is known of it.
        original: The float graph that was given.
        quantized: The quantized one.
        notes: What ``explain`` says about the quantized one.
        verdict: What is said first, as rows of a name and a sentence.
    """
    sides = (_QuantizationSide(original, record), _QuantizationSide(quantized, record))
    names = ("float", "quantized")
    own = ([sides[0].became()], [quantization(quantized, notes), bits(quantized)])
    shown = [
        ShownGraph(side.graph, {}).json(
            f"{record.model}, {name}", notes if side.graph is quantized else (),
            [*paints, *side.paints()],
        )
        for side, name, paints in zip(sides, names, own, strict=True)
    ]  # fmt: skip
    return Document(
        f"{record.model} quantized for {record.target}",
        tuple(shown),
        _pairs(*sides),
        paint="local" if record.layers else "quantization",
        report=quantization_article(record, verdict),
    )


class _QuantizationSide:
    """One of the two graphs, whose nodes are found by the names that the record has."""

    def __init__(self, graph: Graph, record: QuantizationRecord) -> None:
        self.graph, self.record = graph, record
        self.places = {node: index for index, node in enumerate(graph.nodes)}
        self.nodes = {name: node for node in graph.nodes for name in (*node.origin.nodes,
                                                                      node.name)}  # fmt: skip
        self.values: dict[str, Node] = {}
        for node in reversed(graph.nodes):  # of two with one name, the first
            for value in node.outputs:
                self.values[value.name.removesuffix(_SUFFIX)] = node
        ports = zip(graph.output_names, graph.outputs, strict=True)
        self.values.update({n: v.producer for n, v in ports if v.producer is not None})
        self.values.pop("", None)

    def became(self) -> Paint:
        """Returns what became of the float graph's nodes, and why some stay float."""
        kept = {each.node: each.reason for each in self.record.floats}
        said = {
            node: ("stays float", kept[node.name]) if node.name in kept else ("on integers", "")
            for node in self.graph.nodes
        }
        tones = {"on integers": GOOD, "stays float": BAD}
        return by_class("quantization", "Quantization", said, self.graph, tones)

    def paints(self) -> list[Paint]:
        """Returns errors, costs and ranges, as far as there are any."""
        record = self.record
        alone = {layer.name: layer.local_db for layer in record.layers}
        behind = {layer.name: layer.accumulated_db for layer in record.layers}
        costs = {each.layer: each.alone_db for each in record.culprits}
        found = [
            self._decibels("local", "Error that a layer adds", alone, self.values),
            self._decibels("accumulated", "Error behind all layers before", behind, self.values),
            self._decibels("cost", "Outputs where only this layer is quantized", costs, self.nodes),
            self._ranges(),
        ]
        return [paint for paint in found if any(each is not None for each in paint.of)]

    def _decibels(
        self, name: str, title: str, numbers: Mapping[str, float], places: Mapping[str, Node]
    ) -> Paint:
        known = {
            places[key]: max(min(number, _EQUAL), -_EQUAL)
            for key, number in numbers.items()
            if key in places and not math.isnan(number)
        }
        return by_number(name, title, known, self.graph, unit="dB", higher=True)

    def _ranges(self) -> Paint:
        """Returns who decided the range of each result, and what it clips."""
        tones = {"chosen": GOOD, "shared": 5, "fixed": FAIR}
        said: dict[Node, tuple[str, str]] = {}
        for tensor in self.record.tensors:
            kind = next((kind for kind in tones if tensor.decided.startswith(kind)), None)
            if kind is None or tensor.name not in self.values:
                continue
            words = f"{tensor.storage}, {tensor.low:.6g} to {tensor.high:.6g}"
            clipped = f", {tensor.clipped:.2%} clipped" if tensor.clipped else ""
            said[self.values[tensor.name]] = kind, f"{tensor.decided}; {words}{clipped}"
        return by_class("range", "Who decided the range", said, self.graph, tones)


def _pairs(a: _QuantizationSide, b: _QuantizationSide) -> tuple[tuple[int, int], ...]:
    """Returns which nodes correspond: those that nodes were made of, or whose result is theirs."""
    found: dict[tuple[int, int], None] = {}
    for node, place in b.places.items():
        partners = [a.nodes.get(name) for name in (*node.origin.nodes, node.name)]
        partners += [a.values.get(value.name.removesuffix(_SUFFIX)) for value in node.outputs]
        found.update({(a.places[p], place): None for p in partners if p is not None})
    return tuple(found)
