"""Conversions at a graph's inputs and outputs, which keep their types while those inside change."""

from __future__ import annotations

from collections.abc import Callable

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.rewrite.rule import Replace, RuleContext


def converted_interface(
    node: Node, context: RuleContext, wanted: Callable[[Value], bool],
    convert: Callable[[Value], Value],
) -> Replace | None:  # fmt: skip
    """Proposes conversions of the inputs and outputs of a graph that a node reads and gives.

    Args:
        node: The node.
        context: What a rule may ask.
        wanted: Of which inputs and outputs, where they are not converted already.
        convert: Returns a value behind a requantize that changes nothing but the type, later.
    """
    operands: dict[tuple[Node, int], Value] = {}
    for value in node.inputs:
        if value is None or value.producer is not None or value.constant is not None:
            continue
        if wanted(value) and not any(made_for_interface(user) for user, _ in value.users):
            operands |= dict.fromkeys(value.users, context.once(convert, value))
    values: dict[Value, Value] = {}
    for value in () if made_for_interface(node) else node.outputs:
        if context.is_output(value) and wanted(value):
            values[value] = convert(value)
            operands |= dict.fromkeys(value.users, value)  # inside it is read as it was
    return Replace(values, operands=operands) if operands or values else None


def made_for_interface(node: Node) -> bool:
    """True for a requantize that changes nothing, and for a movement beside one."""
    if node.op.flow is Flow.MOVE:
        beside = [node.operand(0).producer, *(user for user, _ in node.output.users)]
        return any(other is not None and _changes_nothing(other) for other in beside)
    return _changes_nothing(node)


def _changes_nothing(node: Node) -> bool:
    if node.op is not REQUANTIZE:
        return False
    source, own = node.operand(0).quant, node.output.quant
    return source is not None and own is not None and source.params.same_mapping(own.params)
