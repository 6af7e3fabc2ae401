"""What nodes are coloured by: quantization, bits, and what others measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.operator import Flow


@dataclass(frozen=True, slots=True)
class Paint:
    """A class or a number for each node of a graph.

    Attributes:
        name: What it is called in addresses and on the command line.
        title: What it is called on the page.
        of: The index of the class, or the number, of each node; None where there is none.
        classes: The names of the classes; empty where ``of`` are numbers.
        tones: Which of the page's colours each class has; by default one after the other.
        words: What more there is to say of each node.
        unit: The unit of the numbers.
        higher: True where the larger number is the better one.
    """

    name: str
    title: str
    of: tuple[float | None, ...]
    classes: tuple[str, ...] = ()
    tones: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    unit: str = ""
    higher: bool = False

    def json(self) -> dict[str, Any]:
        """Returns it as the page reads it."""
        found: dict[str, Any] = {"name": self.name, "title": self.title, "of": list(self.of)}
        if self.classes:
            found["classes"] = list(self.classes)
        if self.tones:
            found["tones"] = list(self.tones)
        if any(self.words):
            found["words"] = list(self.words)
        return found | {"unit": self.unit, "higher": self.higher}


def painted(paint: Mapping[str, Any], index: int) -> str:
    """Returns what a paint says of a node; nothing where it says nothing.

    Args:
        paint: The paint as the page reads it.
        index: Which node.
    """
    value = paint["of"][index]
    more = paint["words"][index] if "words" in paint else ""
    if value is None:
        return more
    said = paint["classes"][value] if "classes" in paint else f"{value:.4g} {paint['unit']}".strip()
    return f"{said}: {more}" if more else said


_KINDS = ("integer", "integers moved", "between integers and floats", "float", "no float data")


def quantization(graph: Graph, notes: Sequence[Note]) -> Paint:
    """Returns which nodes compute on integers, and why the others do not.

    Args:
        graph: Any graph.
        notes: What ``explain`` says about it.
    """
    why: dict[str, str] = {}
    for note in notes:
        why.setdefault(note.node, note.reason)
    kinds = tuple(_kind(node) for node in graph.nodes)
    words = tuple(
        why.get(node.name, "") if kind == _KINDS.index("float") else ""
        for node, kind in zip(graph.nodes, kinds, strict=True)
    )
    return Paint("quantization", "Quantization", kinds, _KINDS, words=words)


def _kind(node: Node) -> int:
    results = [value.quant is not None for value in node.outputs]
    operands = [value.quant is not None for _, value in node.data_operands()]
    if all(results) and operands and all(operands):
        return 1 if node.op.flow is Flow.MOVE else 0
    if any(results) or any(operands):
        return 2
    floats = any(value.type.dtype.is_float for value in _values(node))
    return 3 if floats else 4


def _values(node: Node) -> Iterable[Value]:
    return (value for value in (*node.inputs, *node.outputs) if value is not None)


def bits(graph: Graph) -> Paint:
    """Returns what the first result of each node is stored as."""
    kinds = [str(node.output.type.dtype) if node.outputs else "" for node in graph.nodes]
    classes = tuple(dict.fromkeys(kind for kind in kinds if kind))
    of = tuple(classes.index(kind) if kind else None for kind in kinds)
    return Paint("bits", "Storage of the result", of, classes)


TONES = ("#c7e5c8", "#d9ecd3", "#fbe3b5", "#f9c9c2", "#e3e6ea", "#cfdcf5", "#e4d3f3", "#c9ecec")
HEATS = ("#e8f1e6", "#f7efc2", "#fbd899", "#f7a987", "#ee7c79")
"""The page's colours of classes, and of numbers from the best to the worst, in light."""
GOOD, FAIR, BAD, NEUTRAL = 0, 2, 3, 4
"""The page's colours: all is well, to be looked at, wrong, and none of these."""


def by_class(
    name: str, title: str, found: Mapping[Node, tuple[str, str]], graph: Graph,
    tones: Mapping[str, int],
) -> Paint:  # fmt: skip
    """Returns a paint of classes.

    Args:
        name: What it is called.
        title: What it is called on the page.
        found: The class of a node and what more there is to say of it.
        graph: The graph that is painted.
        tones: Every class there may be, with its colour.
    """
    classes = tuple(tones)
    of = tuple(classes.index(found[node][0]) if node in found else None for node in graph.nodes)
    words = tuple(found[node][1] if node in found else "" for node in graph.nodes)
    return Paint(name, title, of, classes, tuple(tones.values()), words)


def by_number(
    name: str, title: str, found: Mapping[Node, float], graph: Graph, *,
    unit: str, higher: bool = False, words: Mapping[Node, str] | None = None,
) -> Paint:  # fmt: skip
    """Returns a paint of numbers.

    Args:
        name: What it is called.
        title: What it is called on the page.
        found: The number of a node.
        graph: The graph that is painted.
        higher: True where the larger number is the better one.
        words: What more there is to say of a node.
    """
    of, said = tuple(found.get(node) for node in graph.nodes), words or {}
    spoken = tuple(said.get(node, "") for node in graph.nodes)
    return Paint(name, title, of, words=spoken, unit=unit, higher=higher)
