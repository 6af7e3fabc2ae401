"""Constants that a module computes: the elements of an expression that depends on no input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.interpreter import evaluate_node
from qdqbridge.graph.types import TensorType


def constant_value(array: NDArray[Any], name: str = "") -> Value:
    """Returns a constant of the elements of ``array``."""
    constant = Constant.of(np.ascontiguousarray(array).reshape(array.shape))
    return Value(TensorType(constant.dtype, constant.shape), name, constant=constant)


def constant_of(value: Value) -> NDArray[Any] | None:
    """Returns the elements of a constant expression, None where it depends on an input."""
    if value.constant is not None:
        return value.constant.numpy()
    cone = _cone(value)
    if cone is None:
        return None
    known: dict[Value, Value] = {}
    for node in cone:
        operands = [None if v is None else known.get(v, v) for v in node.inputs]
        result = _evaluated(Node(node.op, node.attributes, operands, [Value(node.output.type)]))
        if result is None:
            return None
        known[node.output] = Value(node.output.type, constant=Constant.of(result))
    found = known[value].constant
    return None if found is None else found.numpy()


def _evaluated(node: Node) -> NDArray[Any] | None:
    """Returns the result of a node of constants, None where they do not fit together."""
    operands = [
        None if v is None or v.constant is None else v.constant.numpy() for v in node.inputs
    ]
    try:
        return np.asarray(evaluate_node(node, operands)[0])
    except (ValueError, IndexError):  # NumPy's word for shapes that do not fit
        return None


def _cone(value: Value) -> list[Node] | None:
    """Returns the nodes behind a value, operands first; None where not all of it is known."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        current, ready = stack.pop()
        node = current.producer
        if current.constant is not None or node in done:
            continue
        if node is None or len(node.outputs) != 1 or not node.inputs or ":" in node.op.name:
            return None
        if ready:
            done.add(node)
            order.append(node)
            continue
        stack.append((current, True))
        stack += [(operand, False) for operand in node.inputs if operand is not None]
    return order
