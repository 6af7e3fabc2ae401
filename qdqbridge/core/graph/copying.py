"""Copies of a graph: one's own, with other extents or constants, more outputs, other bytes.

Constants are shared with the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph import symbols
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import link, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Attributes, Flow
from qdqbridge.core.graph.types import Dim, QuantType, TensorType, shifted_constant, shifted_params
from qdqbridge.errors import InputDataError

Slot = tuple[Node, int]
"""An operand of a node."""


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A copy, and what became of what.

    Attributes:
        values: The copy of every value.
        nodes: The copy of every node.
    """

    graph: Graph
    values: dict[Value, Value]
    nodes: dict[Node, Node]


def copied(graph: Graph) -> Copy:
    """Returns a copy of ``graph``; the data of constants is not copied."""
    # Values are made as they are met: a constant has no node and stands in no list.
    values: dict[Value, Value] = {}
    nodes: dict[Node, Node] = {}

    def value_of(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value not in values:
            new = Value(value.type, value.name, constant=value.constant)
            new.metadata, new.written = value.metadata, value.written
            new.declared = value.declared
            values[value] = new
        return values[value]

    inputs = [new for value in graph.inputs if (new := value_of(value)) is not None]
    for node in graph.nodes:
        operands = [value_of(value) for value in node.inputs]
        results = [new for value in node.outputs if (new := value_of(value)) is not None]
        nodes[node] = Node(node.op, node.attributes, operands, results, node.origin)
        link(nodes[node])
    outputs = [new for value in graph.outputs if (new := value_of(value)) is not None]
    new_graph = replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        output_names=list(graph.output_names),
        nodes=list(nodes.values()),
        metadata=dict(graph.metadata),
        notes=list(graph.notes),
    )
    return Copy(new_graph, values, nodes)


def with_each_extent(graph: Graph, extent: Callable[[Dim], Dim]) -> Graph:
    """Returns a copy of ``graph`` in which each extent is what a function makes of it."""
    copy = copied(graph)
    for value in copy.values.values():
        shape = value.type.shape
        if shape is not None:
            value.type = value.type.with_shape(tuple(extent(dim) for dim in shape))
    for node in copy.graph.nodes:
        # Attributes may say something simpler once an extent is a number: windows of a pool are cut
        # to what fits.
        if node.op.known is not None:
            node.attributes = node.op.known(node.attributes, node.operand(0).type.shape)
    return copy.graph


LIMIT = 1 << 31
"""Hosts count extents in int32."""


def symbolic_extents(graph: Graph) -> tuple[str, ...]:
    """Returns the names of the inputs' symbolic extents, each once, in order."""
    named = (dim for value in graph.inputs for dim in value.type.shape or ())
    return tuple(dict.fromkeys(dim for dim in named if isinstance(dim, str)))


def with_numbers(graph: Graph, extents: Mapping[str, int]) -> Graph:
    """Returns a graph in which symbolic extents are numbers; ``graph`` itself where none is given.

    The new graph is saved in canonical form, also where ``graph`` would be with its file's nodes.

    Args:
        graph: The graph; it is not changed, and data of constants is shared.
        extents: Positive numbers by name.

    Raises:
        InputDataError: It is not a mapping, or a name or number does not fit.
    """
    check_extents(graph, extents)
    if not extents:
        return graph
    return with_each_extent(graph, lambda dim: symbols.with_numbers(dim, extents))


def check_extents(graph: Graph, extents: object) -> None:
    """Refuses what gives no numbers for symbolic extents of a graph.

    Args:
        graph: The graph; it may have more symbolic extents than are given.
        extents: Positive numbers by name.

    Raises:
        InputDataError: It is not a mapping, or a name or number does not fit.
    """
    symbolic = symbolic_extents(graph)
    known = f"its inputs have {', '.join(symbolic) or 'no symbolic extents'}"
    if not isinstance(extents, Mapping):
        raise InputDataError(
            "extents must be numbers by name",
            why=f"{type(extents).__name__} is not a mapping",
            fix=known,
        )
    for name, number in cast("Mapping[Any, Any]", extents).items():
        if name not in symbolic:
            raise InputDataError(
                f"the model has no symbolic extent '{name}'",
                where=graph.name,
                why=known,
                fix="give numbers for these only" if symbolic else "give no extents",
            )
        if not isinstance(number, Integral) or not 0 < int(number) < LIMIT:
            raise InputDataError(
                f"the extent '{name}' must be a number from 1 to {LIMIT - 1}",
                where=graph.name,
                why=f"it is {number!r}",
                fix=f"give a size, such as {name}=1",
            )


def with_constants(
    graph: Graph,
    constants: Mapping[Slot, NDArray[Any]],
    attributes: Mapping[Node, Attributes] | None = None,
) -> Copy:
    """Returns a copy of ``graph`` that reads other constants in some places.

    A constant that several nodes read is changed for those alone that are named. An operand behind
    the last one is appended.

    Args:
        graph: Not changed.
        constants: The new constants; float arrays become float32.
        attributes: New attributes of nodes.
    """
    copy = copied(graph)
    for (node, index), array in constants.items():
        put_constant(copy.nodes[node], index, array)
    for node, changed in (attributes or {}).items():
        copy.nodes[node].attributes = changed
    return copy


def put_constant(node: Node, index: int, array: NDArray[Any]) -> None:
    """Makes a node read another constant, float32; an operand behind the last one is appended."""
    old = node.optional(index)
    name = f"{node.output.name}_bias" if old is None else old.name
    data = Constant.of(np.ascontiguousarray(array, np.float32))
    rewire(node, index, Value(TensorType(data.dtype, data.shape), name, constant=data))


def with_outputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """Returns ``graph`` with ``values`` as further outputs, named ``value.name``.

    Nodes and values are shared with ``graph``, so run the result and do not edit it. Values that
    are outputs already are left out; a missing or repeated name gets a number.

    Args:
        graph: Any graph.
        values: Values of its nodes.
    """
    known = set(graph.outputs)
    extra = [value for value in dict.fromkeys(values) if value not in known]
    names = list(graph.output_names)
    for value in extra:
        names.append(_unused(value.name or "value", names))
    return replace(graph, outputs=[*graph.outputs, *extra], output_names=names)


def _unused(name: str, taken: Sequence[str]) -> str:
    used, number, candidate = set(taken), 1, name
    while candidate in used:
        number += 1
        candidate = f"{name}#{number}"
    return candidate


def _every(value: Value) -> bool:
    del value
    return True


def recentered(
    graph: Graph, source: DType = DType.UINT8, only: Callable[[Value], bool] = _every
) -> Graph:
    """Returns a copy of a graph in which values of one 8-bit type have the other one.

    Inputs, outputs and values whose bits something else looks at keep their type, and so does what
    data-movement operators tie to them.

    Args:
        graph: The graph; it is not changed.
        source: ``uint8`` (to become int8) or ``int8`` (to become uint8).
        only: Which values; others keep their type.
    """
    copy = copied(graph)
    kept = keeping_types(graph, copy.values, only)
    for value, new in copy.values.items():
        quant = None if value in kept else value.quant
        if quant is not None and quant.params.storage_dtype is source:
            new.type = QuantType(shifted_params(quant.params), quant.shape)
            new.constant = None if value.constant is None else shifted_constant(value.constant)
    return copy.graph


def keeping_types(
    graph: Graph, values: Iterable[Value], only: Callable[[Value], bool]
) -> set[Value]:
    """Returns the values that keep their type: the interface, and whose bits something looks at."""
    kept = {*graph.inputs, *graph.outputs}
    kept.update(value for value in values if value.quant is not None and not only(value))
    for node in graph.nodes:
        if node.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
            kept.update(v for v in (*node.inputs, *node.outputs) if v is not None)
    movements = [moved_alike(node) for node in graph.nodes if node.op.flow is Flow.MOVE]
    while True:  # a data-movement operator has one type on both sides
        tied = {value for ties in movements if not kept.isdisjoint(ties) for value in ties}
        if tied <= kept:
            return kept
        kept |= tied


def moved_alike(node: Node) -> list[Value]:
    """Returns the values that a data-movement operator gives one type."""
    operands = [value for _, value in node.data_operands()]
    return [value for value in (*operands, *node.outputs) if value.quant is not None]
