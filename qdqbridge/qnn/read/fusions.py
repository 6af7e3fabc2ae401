"""Operators that a host spells as several calls, put together again.

Every float operator without a counterpart on the host is emitted as a chain of others. The last
call of such a chain completes it: what stands behind it is compared with the chain, and the whole
operator takes its place. Where a span says which operator a call belongs to, only that one is
looked for; without spans, only chains that nobody writes for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import Operator
from qdqbridge.ops.bodies import in_order, matched
from qdqbridge.ops.composition import CompositionAttrs
from qdqbridge.ops.table import OPERATORS
from qdqbridge.qnn.origin import Provenance
from qdqbridge.qnn.read.activations import ACTIVATIONS, unmistakable
from qdqbridge.qnn.read.call import Call
from qdqbridge.qnn.read.fused import Find, Fused, stated_attributes
from qdqbridge.qnn.read.fused_operators import PRODUCTS, linear
from qdqbridge.qnn.read.reading import Reading, tensor


def fused(reading: Reading, call: Call, value: Value) -> Value:
    """Returns the result of the operator that ``value`` completes, or ``value`` itself."""
    node = value.producer
    if node is None:
        return value
    provenance = call.provenance
    if provenance is None:
        found = next((w for f in UNMISTAKABLE.get(node.op.name, ()) if (w := f(node, call))), None)
    elif provenance.op == node.op.name and provenance.op not in PARTIAL:
        return value
    else:
        finds = (
            (STATED.get(stated_attributes.op), stated_attributes)
            for stated_attributes in _spelled(provenance)
        )
        wholes = (
            find(node, replace(call, provenance=one)) for find, one in finds if find is not None
        )
        found = next((whole for whole in wholes if whole is not None), None)
    if found is None:
        return value
    return reading.node(found.op, found.attributes, found.operands, tensor(call), call)


def _spelled(provenance: Provenance) -> list[Provenance]:
    """Returns what the calls of a claim may spell: its operator, or a step that has forms."""
    if not isinstance(provenance.attributes, CompositionAttrs):
        return [provenance]
    steps = {(step.op.name, step.attributes): step for step in provenance.attributes.steps}
    return [
        replace(provenance, op=step.op.name, attributes=step.attributes)
        for step in steps.values()
        if step.op.forms
    ]


def _by_body(op: Operator) -> Find:
    """Returns what finds an operator that is written as the operators it stands for."""

    def find(node: Node, call: Call) -> Fused | None:
        attributes, operands = stated_attributes(call, op.attributes), dict[str, Value]()
        if attributes is None or op.body is None:
            return None
        if not matched(node.output, op.body(attributes), operands):
            return None
        return Fused(op.name, attributes, in_order(operands))

    return find


_BODIES = {op.name: _by_body(op) for op in OPERATORS if op.body}
STATED: Mapping[str, Find] = {**ACTIVATIONS, **PRODUCTS, **_BODIES}
"""What completes each operator, by the operator that a span names."""

PARTIAL = frozenset(("Min", "Max"))
"""Operators that are looked for behind a call of their own name too."""

_FORMS = unmistakable()
UNMISTAKABLE: Mapping[str, Sequence[Find]] = {
    **_FORMS,
    "Add": (linear, *_FORMS["Add"], STATED["Conv"], STATED["ConvTranspose"]),
    "Where": (STATED["PRelu"],),
}
"""Chains that are read without a span, by the operator that ends them."""
