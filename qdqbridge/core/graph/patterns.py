"""Comparing what stands behind a value with a chain of operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Pattern

_EITHER_ORDER = frozenset(("Add", "Mul", "Max", "Min"))


@dataclass(slots=True)
class PatternMatch:
    """What a pattern's letters stand for.

    Attributes:
        values: By letter.
        numbers: By name.
        nodes: Every node of the chain, its end first; the chain may read what it leaves.
    """

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    nodes: list[Node] = field(default_factory=list[Node])

    def take(self, other: PatternMatch) -> None:
        """Becomes ``other``."""
        self.values, self.numbers, self.nodes = other.values, other.numbers, other.nodes

    def copy(self) -> PatternMatch:
        """Returns a match that can be thrown away."""
        return PatternMatch(dict(self.values), dict(self.numbers), list(self.nodes))


def match_value_pattern(
    value: Value | None, pattern: Pattern, found: PatternMatch, *, either_order: bool = False
) -> bool:
    """True where ``value`` is computed as ``pattern`` says; fills ``found``.

    Args:
        value: The end of the chain.
        pattern: What it has to look like.
        found: What the letters stand for already, and where to write the others.
        either_order: The operands of sums, products and extremes may stand in either order, and
            a number may be a constant of one element of any rank.
    """
    trial = found.copy()
    if not _matches(value, pattern, trial, either_order):
        return False
    found.take(trial)
    return True


def _matches(
    value: Value | None, pattern: Pattern, found: PatternMatch, either_order: bool
) -> bool:
    if value is None:
        return False
    if isinstance(pattern, tuple):
        return _node_matches(value, pattern, found, either_order)
    if isinstance(pattern, str) and not pattern.startswith("#"):
        return found.values.setdefault(pattern, value) is value
    number = scalar(value, one_element=either_order)
    if number is None:
        return False
    if isinstance(pattern, str):
        name = pattern[1:].removeprefix("-")
        number = -number if pattern.startswith("#-") else number
        return found.numbers.setdefault(name, number) == number
    return number == float(np.asarray(pattern, value.type.dtype.numpy))


def _node_matches(
    value: Value, pattern: tuple[Any, ...], found: PatternMatch, either_order: bool
) -> bool:
    node = value.producer
    if node is None or node.op.name != pattern[0]:
        return False
    operands = [v for v in node.inputs if v is not None]
    parts = pattern[1 : 1 + len(operands)]
    if len(operands) != len(parts):
        return False
    if not _attributes_match(node, pattern[1 + len(operands) :], found):
        return False
    orders = [operands]
    if either_order and node.op.name in _EITHER_ORDER and len(operands) == 2:
        orders.append(operands[::-1])
    for order in orders:
        trial = found.copy()
        trial.nodes.append(node)
        pairs = zip(order, parts, strict=True)
        if all(_matches(operand, part, trial, either_order) for operand, part in pairs):
            found.take(trial)
            return True
    return False


def _attributes_match(node: Node, wanted: tuple[Any, ...], found: PatternMatch) -> bool:
    """Compares attributes with what stands behind the operands of a pattern; nothing takes any."""
    values = node.op.values(node.attributes).values()
    if not wanted:
        return True
    if len(wanted) != len(values):
        return False
    for value, part in zip(values, wanted, strict=True):
        named = isinstance(part, str) and part.startswith("#")
        same = found.numbers.setdefault(part[1:], value) == value if named else value == part
        if not same:
            return False
    return True


def scalar(value: Value, *, one_element: bool = False) -> float | None:
    """Returns the number in a plain constant of rank 0, or of one element."""
    data = value.constant
    if data is None or value.quant is not None:
        return None
    if data.shape != () and not (one_element and data.size == 1):
        return None
    return float(data.numpy().reshape(()).astype(np.float64))


def near(a: float, b: float, dtype: DType = DType.FLOAT32) -> bool:
    """True where two numbers are the same in float32, or in float16 where they are of that."""
    narrow = np.float16 if dtype is DType.FLOAT16 else np.float32
    with np.errstate(over="ignore"):
        return bool(narrow(a) == narrow(b))
