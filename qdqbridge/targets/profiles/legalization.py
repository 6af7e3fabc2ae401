"""How a graph is put for one runtime before it is written: other nodes, the same numbers.

A legalization changes a copy of the graph where a rule of the profile's would be broken otherwise.
Where it cannot keep the numbers, it says at which cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.edit import Editor, link, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.matmul import MATMUL
from qdqbridge.core.ops.softmax import SOFTMAX


@dataclass(frozen=True, slots=True)
class Cost:
    """What a legalization changes in the numbers of a model.

    Attributes:
        node: The node concerned.
        text: What is otherwise, and how far off.
    """

    node: str
    text: str


Legalize: TypeAlias = "Callable[[Graph], Iterator[Cost]]"
"""Changes a graph in place; yields what that costs, nothing where the numbers stay the same."""


@dataclass(frozen=True, slots=True)
class Legalization:
    """One way in which graphs are put otherwise.

    Attributes:
        rule: The rule of the profile that is kept so.
        apply: Changes a graph in place.
    """

    rule: str
    apply: Legalize


@dataclass(frozen=True, slots=True)
class Legalized:
    """A graph as it is written, and what that costs.

    Attributes:
        graph: A copy where anything was legalized.
        costs: By rule, what numbers are otherwise.
    """

    graph: Graph
    costs: tuple[tuple[str, Cost], ...]


def legalized(graph: Graph, legalizations: Sequence[Legalization]) -> Legalized:
    """Returns a graph as a profile puts it; the one given is not changed."""
    if not legalizations:
        return Legalized(graph, ())
    own, costs = copied(graph).graph, list[tuple[str, Cost]]()
    for legalization in legalizations:
        costs += ((legalization.rule, cost) for cost in legalization.apply(own))
        Editor(own).finish()  # the next one sees what this one has put
    return Legalized(own, tuple(costs))


def replace_operand(node: Node, index: int, value: Value) -> None:
    """Makes a linked node read another value, which may come from a node that is not linked."""
    rewire(node, index, value)
    if value.producer is not None and not value.producer.linked:
        link(value.producer)


def put(graph: Graph, node: Node, value: Value) -> None:
    """Makes everybody read ``value`` where they read the result of ``node``."""
    editor = Editor(graph)
    editor.replace_value(node.output, value)
    editor.insert(value)


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
