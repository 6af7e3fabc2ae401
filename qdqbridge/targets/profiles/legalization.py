"""How a graph is put for one runtime before it is written: other nodes, the same numbers.

A profile's legalizations are rules (:mod:`qdqbridge.core.rewrite`) that rewrite a copy of the graph
where a rule of the runtime's would be broken otherwise. Where one cannot keep the numbers, its note
has the name of that rule, and says what is otherwise and how far off.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.matmul import MATMUL
from qdqbridge.core.ops.softmax import SOFTMAX
from qdqbridge.core.rewrite.driver import run
from qdqbridge.core.rewrite.rule import Rule


def legalized(graph: Graph, legalizations: Sequence[Rule]) -> Graph:
    """Returns a copy of a graph as a profile puts it; its notes are what that costs."""
    own = copied(graph).graph
    own.notes = []
    for each in legalizations:  # in this order: the next one sees what this one has put
        run(own, (each,))
    return own


def is_attention_score(node: Node) -> bool:
    """True for what a Softmax reads in front of a MatMul."""
    softmaxes = [user for user in readers(node.output) if user.op is SOFTMAX]
    return any(user.op is MATMUL for each in softmaxes for user in readers(each.output))


def enters(value: Value) -> bool:
    """True for an input of the graph, converted or not."""
    made = value.producer
    while made is not None and made.op.flow is Flow.CONVERT:
        value = made.operand(0)
        made = value.producer
    return made is None and value.constant is None


def readers(value: Value) -> list[Node]:
    """Returns what reads a value, conversions aside."""
    found: list[Node] = []
    pending = [value]
    while pending:
        for node, _ in pending.pop().users:
            if node.op.flow is Flow.CONVERT:
                pending.append(node.output)
            else:
                found.append(node)
    return found
