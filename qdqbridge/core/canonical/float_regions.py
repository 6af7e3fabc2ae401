"""What stays float between quantized neighbours, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE

_TAUTOLOGY = "absorb-accumulator-operands"
"""Refuses float operands, as all are in a file without quantization."""
_CONVERSIONS = (Flow.CONVERT, Flow.REINTERPRET)


def explanation(graph: Graph, bodies: Iterable[tuple[str, Graph]] = ()) -> list[Note]:
    """Returns the notes and float regions of a graph; one sentence where nothing is quantized.

    Args:
        graph: The graph.
        bodies: What the bodies of its nodes are, by their places.
    """
    inside = [(place, body) for place, body in bodies if _is_quantized_graph(body)]
    own = [*graph.notes, *float_region_notes(graph)]
    if not _is_quantized_graph(graph):
        own = [note for note in graph.notes if note.rule != _TAUTOLOGY]
        if not inside:
            return [Note("no-quantization", "", "the file has no quantization"), *own]
    return [*own, *(note for place, body in inside for note in _placed(place, body))]


def _placed(place: str, body: Graph) -> list[Note]:
    """Returns the notes and float regions of a body, its nodes named with their place."""
    return [
        replace(note, node=note.node if note.node.startswith(place) else place + note.node)
        for note in (*body.notes, *float_region_notes(body))
    ]


def _is_quantized_graph(graph: Graph) -> bool:
    names = (node.op.name for node in graph.nodes)
    return any(value.quant for value in graph.values()) or any(
        "Quantize" in name or "Integer" in name for name in names
    )


def float_region_notes(graph: Graph) -> list[Note]:
    """Returns one note per float operator that reads a dequantized value or feeds a quantize."""
    outputs = set(graph.outputs)
    notes: list[Note] = []
    reasons = {note.node: note for note in graph.notes}
    for node in graph.nodes:
        if node.op.flow in _CONVERSIONS or not _is_float(node):
            continue
        reads = [v.name for v in node.inputs if v is not None and _dequantized(v)]
        feeds = [v.name for v in node.outputs if any(n.op is QUANTIZE for n, _ in v.users)]
        if not reads and not feeds:
            continue
        known = reasons.get(node.name)
        reason = _reason(node, outputs) if known is None else known.reason
        notes.append(Note("float-region", node.name, f"{node.op.name}: {reason}", (*reads, *feeds)))
    return notes


def _is_float(node: Node) -> bool:
    """True where a result is float: TopK, for one, has an index as well."""
    return any(isinstance(v.type, TensorType) and v.type.dtype.is_float for v in node.outputs)


def _dequantized(value: Value) -> bool:
    return value.producer is not None and value.producer.op is DEQUANTIZE


def _reason(node: Node, outputs: set[Value]) -> str:
    if node.op.flow is Flow.FLOAT:
        return "the operator has no quantized form"
    if all(v.quant for i, v in node.data_operands() if i < 2):
        return "operands are quantized and the result is float (integer sums, then dequantize)"
    for index, value in node.data_operands():
        if value.constant is None and not _dequantized(value) and not value.quant:
            maker = "a graph input" if value.producer is None else value.producer.op.name
            return f"operand {index} is float: the result of {maker}"
    if node.output in outputs:
        return "its float result is a graph output"
    readers = sorted({n.op.name for n, _ in node.output.users})
    if readers != ["quantize"]:
        return f"its float result is read by {', '.join(readers)}"
    return "the file does not quantize it"
