"""Constants that a module computes: the elements of an expression that depends on no input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.folding import Budget, folded
from qdqbridge.errors import InvalidModelError


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
    known: dict[Value, Constant] = {}
    budget = Budget()
    for node in cone:
        operands = [None if v is None else v.constant or known[v] for v in node.inputs]
        try:
            results = folded(node, operands, budget)
        except InvalidModelError:  # the constants do not fit together
            return None
        if results is None:
            return None
        known[node.output] = results[0]
    return known[value].numpy()


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
