"""How a graph is put for one runtime before it is written: other nodes, the same numbers.

A respelling changes a copy of the graph where a rule of the profile's would be broken otherwise.
Where it cannot keep the numbers, it says at which cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.copying import copied
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.edit import Editor, link
from qdqbridge.graph.graph import NO_ORIGIN, Graph, Node, Origin, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType, TensorType, ValueType
from qdqbridge.ops.conversion import DEQUANTIZE, REQUANTIZE


@dataclass(frozen=True, slots=True)
class Cost:
    """What a respelling changes in the numbers of a model.

    Attributes:
        node: The node concerned.
        text: What is otherwise, and how far off.
    """

    node: str
    text: str


Respell: TypeAlias = "Callable[[Graph], Iterator[Cost]]"
"""Changes a graph in place; yields what that costs, nothing where the numbers stay the same."""


@dataclass(frozen=True, slots=True)
class Respelling:
    """One way in which graphs are put otherwise.

    Attributes:
        rule: The rule of the profile that is kept so.
        apply: Changes a graph in place.
    """

    rule: str
    apply: Respell


@dataclass(frozen=True, slots=True)
class Respelled:
    """A graph as it is written, and what that costs.

    Attributes:
        graph: A copy where anything was respelled.
        costs: By rule, what numbers are otherwise.
    """

    graph: Graph
    costs: tuple[tuple[str, Cost], ...]


def respelled(graph: Graph, respellings: Sequence[Respelling]) -> Respelled:
    """Returns a graph as a profile puts it; the one given is not changed."""
    if not respellings:
        return Respelled(graph, ())
    own, costs = copied(graph).graph, list[tuple[str, Cost]]()
    for respelling in respellings:
        costs += ((respelling.rule, cost) for cost in respelling.apply(own))
    Editor(own).finish()
    return Respelled(own, tuple(costs))


def replace_operand(node: Node, index: int, value: Value) -> None:
    """Makes a linked node read another value, which may come from a node that is not linked."""
    old = node.inputs[index]
    if old is not None:
        old.users.pop((node, index), None)
    node.inputs[index] = value
    value.users[node, index] = None
    if value.producer is not None and not value.producer.linked:
        link(value.producer)


def result(
    op: Operator,
    attributes: Attributes,
    operands: Sequence[Value | None],
    type_: ValueType,
    origin: Origin = NO_ORIGIN,
    name: str = "",
) -> Value:
    """Returns the result of a new node, which is not linked yet."""
    value = Value(type_, name)
    Node(op, attributes, operands, [value], origin)
    return value


def requantized(value: Value, params: QuantParams, name: str) -> Value:
    """Returns a stored value in other parameters."""
    type_ = QuantType(params, value.type.shape)
    return result(REQUANTIZE, NO_ATTRIBUTES, [value], type_, name=name)


def dequantized(value: Value, dtype: DType, name: str) -> Value:
    """Returns the real numbers of a stored value."""
    type_ = TensorType(dtype, value.type.shape)
    return result(DEQUANTIZE, NO_ATTRIBUTES, [value], type_, name=name)


def constant(elements: NDArray[Any] | Constant, params: QuantParams | None, name: str) -> Value:
    """Returns a constant, quantized where ``params`` are given."""
    data = elements if isinstance(elements, Constant) else Constant.of(elements)
    type_ = TensorType(data.dtype, data.shape) if params is None else QuantType(params, data.shape)
    return Value(type_, name, constant=data)


def put(graph: Graph, node: Node, value: Value) -> None:
    """Makes everybody read ``value`` where they read the result of ``node``."""
    editor = Editor(graph)
    editor.replace_value(node.output, value)
    editor.insert(value)
