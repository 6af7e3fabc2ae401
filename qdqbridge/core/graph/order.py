"""The deterministic topological order of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.errors import InvalidModelError


def execution_order(outputs: Sequence[Value]) -> list[Node]:
    """Returns the nodes that ``outputs`` need, operands first.

    The order is the post-order of a depth-first walk from the outputs through the operands in
    their order, so it depends on the structure alone: not on names, nor on the file's order.

    Raises:
        InvalidModelError: The graph has a cycle.
    """
    order: list[Node] = []
    done: set[Node] = set()
    open_: set[Node] = set()
    for output in outputs:
        stack: list[tuple[Node, int]] = []
        if output.producer is not None and output.producer not in done:
            stack.append((output.producer, 0))
            open_.add(output.producer)
        while stack:
            node, index = stack.pop()
            if index == len(node.inputs):
                open_.discard(node)
                done.add(node)
                order.append(node)
                continue
            stack.append((node, index + 1))
            operand = node.inputs[index]
            producer = None if operand is None else operand.producer
            if producer is None or producer in done:
                continue
            if producer in open_:
                raise InvalidModelError(
                    "the graph has a cycle",
                    where=f"node '{node.name}', operand {index}",
                    why=f"it depends on the result of '{producer.name}', which depends on it",
                    fix="ONNX graphs must be acyclic; export the model again",
                )
            open_.add(producer)
            stack.append((producer, 0))
    return order
