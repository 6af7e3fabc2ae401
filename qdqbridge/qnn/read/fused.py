"""What the readers of chains share: the operator that is found, and what a span says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import Attributes
from qdqbridge.qnn.read.call import Call


@dataclass(frozen=True, slots=True)
class Fused:
    """An operator found behind a value."""

    op: str
    attributes: Attributes
    operands: list[Value]


Find: TypeAlias = "Callable[[Node, Call], Fused | None]"


def present(node: Node) -> list[Value]:
    """Returns the operands that are not left out."""
    return [value for value in node.inputs if value is not None]


def stated_attributes(call: Call, kind: type[Attributes]) -> Any:
    """Returns the attributes that a call's span claims, where they are of that kind."""
    given = None if call.provenance is None else call.provenance.attributes
    return given if isinstance(given, kind) else None
