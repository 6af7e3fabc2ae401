"""What the span of a call says of the node that it became, and operators that take its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, AnyAttributes, Attributes, Operator
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.elementwise import MAX, MIN
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Replace
from qdqbridge.tvm.qnn.origin import Provenance
from qdqbridge.tvm.qnn.read.written import as_written

UNREAD = "unread:"
"""Begins the name of the operator of a call that has no row."""


@dataclass(frozen=True, slots=True)
class RecordedOrigin(Origin):
    """The origin of a node while a module is read.

    Attributes:
        provenance: What the span of its call says.
    """

    provenance: Provenance | None = None


def recorded_origin(provenance: Provenance) -> RecordedOrigin:
    """Returns the origin of a node whose call has a span."""
    own = provenance.origin
    return RecordedOrigin(
        **{f.name: getattr(own, f.name) for f in fields(Origin)}, provenance=provenance
    )


def provenance_of_node(node: Node | None) -> Provenance | None:
    """Returns what the span of the node's call says, None where it has none."""
    origin = None if node is None else node.origin
    return origin.provenance if isinstance(origin, RecordedOrigin) else None


def candidates(node: Node) -> list[Provenance]:
    """Returns what a node's calls may come to: the recorded operator, or a step that has forms.

    There are none where the node is that operator already. A Min or Max of several operands ends
    with one of two.
    """
    provenance = provenance_of_node(node)
    if provenance is None or (provenance.op == node.op.name and node.op not in (MIN, MAX)):
        return []
    if not isinstance(provenance.attributes, CompositionAttrs):
        return [provenance]
    steps = {(step.op.name, step.attributes): step for step in provenance.attributes.steps}
    return [
        replace(provenance, op=step.op.name, attributes=step.attributes)
        for step in steps.values()
        if step.op.forms
    ]


def says(node: Node, *names: str) -> bool:
    """True where a node's calls may come to one of these operators."""
    return any(one.op in names for one in candidates(node))


def stated(node: Node, op: str, kind: type[AnyAttributes]) -> AnyAttributes | None:
    """Returns the attributes of the operator that a node's calls may come to."""
    for one in candidates(node):
        if one.op == op and isinstance(one.attributes, kind):
            return one.attributes
    return None


def completed(
    node: Node,
    op: Operator | str,
    operands: Sequence[Value | None],
    attributes: Attributes = NO_ATTRIBUTES,
) -> Replace:
    """Returns that an operator takes the place of the last of its calls."""
    row = op if isinstance(op, Operator) else BY_NAME[op]
    result = Value(node.output.type, node.output.name)
    Node(
        row, attributes, as_written(row, operands, provenance_of_node(node)), [result], node.origin
    )
    return Replace({node.output: result})


def made_by_unread(value: Value, name: str) -> bool:
    """True where a value is the result of a call without a row."""
    return value.producer is not None and value.producer.op.name == f"{UNREAD}{name}"


def present(node: Node) -> list[Value]:
    """Returns the operands that are not left out."""
    return [value for value in node.inputs if value is not None]
