"""What a page shows, as JSON: the nodes and values of a graph, of two, and how they are painted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.app.report.articles import quantization_article
from qdqbridge.app.report.plots import Markup
from qdqbridge.app.viewer.paint import (
    BAD,
    FAIR,
    GOOD,
    Paint,
    bits,
    by_class,
    by_number,
    painted,
    quantization,
)
from qdqbridge.core.graph.alignment import align
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.diff import diff, granularity
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.printer import attributes_text
from qdqbridge.core.graph.types import QuantType

if TYPE_CHECKING:
    from qdqbridge.autoquant.record import QuantizationRecord


# ---- histograms of what a value holds: of a constant, or of a run --------------------------------

BINS = 48
SAMPLED = 1 << 16
"""Elements that are looked at: more of them move no bar that can be seen."""

_ROWS = 48
"""Indices of an axis that are looked at in any case."""


def histogram(value: Value, stored: NDArray[Any], *, run: bool = False) -> dict[str, Any] | None:
    """Returns the histogram of real numbers; None where there are none, or they are no numbers.

    Args:
        value: The value, whose type says what stored integers mean.
        stored: Its elements, of which an even sample is taken where they are very many.
        run: True where they come from a run, and not from the file.
    """
    if stored.dtype == np.object_ or stored.dtype.kind in "USb" or not stored.size:
        return None
    with np.errstate(all="ignore"):
        real = _dequantized_sample(value, stored)
        finite = real[np.isfinite(real)]
    if not finite.size:
        return None
    counts, edges = np.histogram(finite, bins=BINS)
    what = f"{stored.size} {'values of a run' if run else 'weights'}"
    if real.size < stored.size:
        what += f" ({real.size} of them looked at)"
    if finite.size < real.size:
        what += f", {real.size - finite.size} of them no finite number"
    return {
        "low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist(),
        "clip": _range(value), "what": what,
    }  # fmt: skip


def _dequantized_sample(value: Value, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the real numbers of an even sample; what is not in it is not read."""
    steps = _sampling_strides(stored)
    part = stored[tuple(slice(None, None, step) for step in steps)]
    if not isinstance(value.type, QuantType):
        return part.astype(np.float64)
    params = value.type.params
    if params.axis is None or part.size == stored.size:
        return dequantize(part, params).astype(np.float64)
    axis = params.axis
    block = params.block_size or 1
    places = np.asarray(range(0, stored.shape[axis], steps[axis]), np.int64) // block
    scale, zero = (
        _along(numbers, places, axis, steps) for numbers in (params.scale, params.zero_point)
    )
    wide = part.astype(np.float64)
    integer = params.storage_dtype.is_integer
    return (wide - zero.astype(np.float64) if integer else wide) * scale.astype(np.float64)


def _along(
    numbers: NDArray[Any], places: NDArray[Any], axis: int, steps: tuple[int, ...]
) -> NDArray[Any]:
    """Returns scales or zero points as they lie against a sample."""
    if numbers.ndim <= 1:
        shape = [1] * len(steps)
        shape[axis] = -1
        return numbers[places].reshape(shape)
    taken = numbers.take(places, axis=axis)
    others = (slice(None) if i == axis else slice(None, None, s) for i, s in enumerate(steps))
    return taken[tuple(others)]


def _sampling_strides(stored: NDArray[Any]) -> tuple[int, ...]:
    """Returns how far apart elements are looked at along each axis.

    First along the axis whose elements lie furthest apart: a large array is read from a file, and
    whole pages of it.
    """
    shape, left, steps = stored.shape, list(stored.shape), [1] * stored.ndim
    while math.prod(left) > SAMPLED:
        many = [axis for axis, extent in enumerate(left) if extent > _ROWS]
        axis = max(many or range(len(left)), key=lambda axis: (
            stored.strides[axis] if many else left[axis]))  # fmt: skip
        steps[axis] *= 2
        left[axis] = -(-shape[axis] // steps[axis])
    return tuple(steps)


def _range(value: Value) -> list[float] | None:
    """Returns the least and the largest real number that can be stored, of one scale only."""
    if not isinstance(value.type, QuantType) or not value.type.params.per_tensor:
        return None
    return [*value.type.params.real_range]


# ---- the name scope of a node: the modules of the network that it was written in -----------------

_EXPORTED = "namespace"
"""The property in which PyTorch's exporter says the modules around a node."""

_SEPARATORS = re.compile(r"/+")


def scope(node: Node) -> tuple[str, ...]:
    """Returns the scopes around a node, the outermost first.

    They are those of PyTorch's ``namespace`` property (``b.0: nets.Block/…``) where a file has it,
    else the parts of the node's name before the last ``/``, as most producers write it.

    Args:
        node: Any node.
    """
    exported = dict(node.origin.metadata).get(_EXPORTED)
    if exported is not None:
        names = [part.partition(":")[0].strip() for part in _SEPARATORS.split(exported)]
    else:
        names = _SEPARATORS.split(node.name)
    return _relative([name for name in names[:-1] if name])


def _relative(names: list[str]) -> tuple[str, ...]:
    """Leaves out of each name what the one around it says: ``layer1/layer1.0`` is ``layer1/0``."""
    return tuple(
        name.removeprefix(f"{outer}.") if name != outer else name
        for outer, name in zip(["", *names], names, strict=False)
    )


# ---- what a page says of nodes as ``metadata_props`` of an ONNX file, which Netron shows ---------
# Netron lists a node's ``metadata_props`` under *Metadata* when the node is selected
# (``onnx.Node`` in its ``source/onnx.js``); nothing else reads them, and they are no part of a
# graph's text or digest.

PREFIX = "qdqbridge."


def with_metadata(graph: Graph, document: Document) -> Graph:
    """Returns a copy whose nodes carry what a page of the graph says of them.

    Args:
        document: What is shown of it.
    """
    copy, shown = copied(graph), document.graphs[0]
    values = shown["values"]
    for index, (node, said) in enumerate(zip(graph.nodes, shown["nodes"], strict=True)):
        rows = {f"{PREFIX}{paint['name']}": painted(paint, index) for paint in shown["paints"]}
        for number, value in enumerate(said["outs"]):
            keys = ("type", "shape", "scale", "zero", "range")
            parts = [f"{key} {values[value][key]}" for key in keys if values[value].get(key)]
            rows[f"{PREFIX}result{number or ''}"] = ", ".join(parts)
        rows |= {f"{PREFIX}note{i or ''}": note for i, note in enumerate(said["notes"])}
        other = copy.nodes[node]
        # A file that was annotated before gets what is true now, not both.
        kept = tuple(row for row in other.origin.metadata if not row[0].startswith(PREFIX))
        stated = tuple((key, text) for key, text in rows.items() if text)
        other.origin = replace(other.origin, metadata=kept + stated)
    return copy.graph


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
        graphs: One graph, or two that are compared.
        pairs: Which nodes of two graphs correspond, by index.
        differences: Where two graphs differ.
        paint: The name of the paint that is shown first.
        report: What is shown beside the graphs; nothing where it is None.
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
    report: Markup | None = None,
) -> Document:
    """Returns what the page of one graph shows.

    Args:
        graph: A canonical graph.
        name: What its file is called.
        notes: What ``explain`` says about it.
        paints: More that its nodes can be coloured by; the first of them is shown first.
        recorded: Stored elements of values in a run, for histograms.
        report: What is shown beside the graph.
    """
    own = [quantization(graph, notes), bits(graph), *paints]
    shown = ShownGraph(graph, recorded or {}).json(name, notes, own)
    return Document(name, (shown,), paint=(paints[0] if paints else own[0]).name, report=report)


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


def kinds_of(paints: Sequence[Paint]) -> list[list[str]]:
    """Returns how many nodes are of each kind: what computes on integers, moves them, is float."""
    found = next((paint for paint in paints if paint.name == "quantization"), None)
    if found is None:
        return []
    counts = {kind: found.of.count(index) for index, kind in enumerate(found.classes)}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return [["By kind", said]] if said else []


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
            "facts": [*kinds_of(paints), *self._facts()],
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
        # A node that reads a value twice is one reader.
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


# ---- quantization --------------------------------------------------------------------------------
# What a page shows of a quantization: the float graph beside what was made of it, and a report.


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
        # Results that nobody named would all be one.
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
            # JSON has no infinity, and a colour scale that reached it would show nothing else.
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
