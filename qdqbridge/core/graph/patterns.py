"""The pattern language: what a chain of operators looks like, and how one is found.

A pattern is

- ``"x"``: any value, the same wherever the name stands; ``"beta?"``: an operand that may be left
  out;
- ``2.0``: a constant of that number; ``"#alpha"``: any number, the same wherever the name stands
  (``"#-alpha"``: its negative);
- ``("Mul", a, b)``: an operator of its operands, one of several: ``(("Reshape", "Flatten"), a)``.
  Behind the operands come attributes: those that matter by field, ``{"axes": "#axes", "keepdims":
  True}``, or all in their record's order, as a row's forms and bodies have them;
- :class:`Part`: a value with a name, of which more is said;
- :class:`AnyOf`: one of several patterns.

The search begins at the end of a chain and follows the pattern only: it costs what the pattern
has nodes, not what the graph has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from qdqbridge.core.graph.dtypes import DType

if TYPE_CHECKING:
    from qdqbridge.core.graph.graph import Node, Origin, Value

Pattern: TypeAlias = "tuple[Any, ...] | str | float"
"""A chain of operators; in one that only rules look for are parts and alternatives, too."""
AnyPattern: TypeAlias = "Pattern | Part | AnyOf"

_EITHER_ORDER = frozenset(("Add", "Mul", "Max", "Min"))


@dataclass(frozen=True, slots=True)
class Part:
    """A value with a name and conditions.

    Attributes:
        name: What the rule calls it; with a ``?`` behind it is an operand that may be left out.
        pattern: How it is computed; None for anything.
        constant: Whether it is a constant; None where either will do.
        sole: One operand of one node reads it, and it does not leave the graph.
    """

    name: str
    pattern: AnyPattern | None = None
    constant: bool | None = None
    sole: bool = False


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several patterns, tried in their order."""

    patterns: tuple[AnyPattern, ...]


@dataclass(slots=True)
class PatternMatch:
    """What a pattern's names stand for.

    Attributes:
        values: By name; operands that are left out have none.
        numbers: Numbers and attributes, by name.
        nodes: Every node of the chain, its end first; the chain may read what it leaves.
    """

    values: dict[str, Value] = field(default_factory=dict[str, "Value"])
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: list[Node] = field(default_factory=list["Node"])

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def node(self, name: str) -> Node:
        """Returns what computes a part whose pattern is an operator."""
        node = self.values[name].producer
        assert node is not None, f"the pattern says of no operator that it makes '{name}'"
        return node

    def origin(self, *first: str) -> Origin:
        """Returns the origin of a node that stands for the chain: its steps, the last one last.

        Args:
            first: Parts whose names come before all others.
        """
        nodes = dict.fromkeys([*(self.node(name) for name in first), *reversed(self.nodes)])
        origin, *others = (node.origin for node in nodes)
        for other in others:
            origin = origin.joined(other)
        return origin

    def take(self, other: PatternMatch) -> None:
        """Becomes ``other``."""
        self.values, self.numbers, self.nodes = other.values, other.numbers, other.nodes

    def copy(self) -> PatternMatch:
        """Returns a match that can be thrown away."""
        return PatternMatch(dict(self.values), dict(self.numbers), list(self.nodes))


def match_value_pattern(
    value: Value | None, pattern: AnyPattern, found: PatternMatch, *, either_order: bool = False
) -> bool:
    """True where ``value`` is computed as ``pattern`` says; fills ``found``.

    Args:
        value: The end of the chain.
        pattern: What it has to look like.
        found: What the names stand for already, and where to write the others.
        either_order: As for :func:`matches`.
    """
    match = next(matches(value, pattern, found, either_order=either_order), None)
    if match is None:
        return False
    found.take(match)
    return True


def matches(
    value: Value | None, pattern: AnyPattern, found: PatternMatch | None = None, *,
    either_order: bool = False, is_output: Callable[[Value], bool] = lambda value: False,
) -> Iterator[PatternMatch]:  # fmt: skip
    """Yields every way in which ``value`` is computed as ``pattern`` says.

    Args:
        value: The end of the chain.
        pattern: What it has to look like.
        found: What names stand for already; it is not changed.
        either_order: The operands of sums, products and extremes may stand in either order, and
            a number may be a constant of one element of any rank.
        is_output: Whether a value leaves the graph, for parts that nobody else reads.
    """
    if not _may_be(value, pattern):
        return iter(())
    begun = PatternMatch() if found is None else found.copy()
    return _solved([(value, pattern)], begun, _MatchSettings(either_order, is_output))


def anchors(pattern: AnyPattern) -> frozenset[str]:
    """Returns the operators with which a pattern ends; none where it ends with anything."""
    if isinstance(pattern, AnyOf):
        each = [anchors(one) for one in pattern.patterns]
        return frozenset[str]().union(*each) if all(each) else frozenset()
    if isinstance(pattern, Part):
        return frozenset() if pattern.pattern is None else anchors(pattern.pattern)
    if not isinstance(pattern, tuple):
        return frozenset()
    return frozenset((pattern[0],) if isinstance(pattern[0], str) else pattern[0])


def operand_makers(pattern: AnyPattern) -> tuple[frozenset[str], ...]:
    """Returns sets of operators: of each, one must make an operand of the last node."""
    if not isinstance(pattern, tuple):
        return ()
    return tuple(filter(None, (anchors(p) for p in pattern[1:] if not isinstance(p, dict))))


def operand_counts(pattern: AnyPattern) -> tuple[int, int, tuple[int, ...]]:
    """Returns the least and the most operands of a pattern's last node.

    Behind them are the places of those among the least ones that may be left out.
    """
    parts = [part for part in pattern[1:] if not isinstance(part, dict)] if isinstance(
        pattern, tuple
    ) else []  # fmt: skip
    needed = [index for index, part in enumerate(parts) if not _may_be_left_out(part)]
    least = needed[-1] + 1 if needed else 0
    return least, len(parts), tuple(sorted(set(range(least)) - set(needed)))


_Goal: TypeAlias = "tuple[Value | None, AnyPattern]"


@dataclass(frozen=True, slots=True)
class _MatchSettings:
    either_order: bool
    is_output: Callable[[Value], bool]


def _solved(
    goals: list[_Goal], found: PatternMatch, settings: _MatchSettings
) -> Iterator[PatternMatch]:
    """Yields every match of all of ``goals``; the last of them is looked at first."""
    while goals:
        value, pattern = goals.pop()
        if value is None:
            if not _may_be_left_out(pattern):
                return
        elif isinstance(pattern, tuple):
            choices = _operand_goals(value, pattern, found, settings)
            if not choices:
                return
            if value.producer is not None:
                found.nodes.append(value.producer)
            # Operands that may change places are the one choice here. Each is tried on a copy, so
            # that what a wrong one has named is forgotten.
            if len(choices) > 1:
                for choice in choices:
                    yield from _solved([*goals, *choice], found.copy(), settings)
                return
            goals.extend(choices[0])
        elif isinstance(pattern, AnyOf):
            for each in pattern.patterns:
                # Looking at the first operator is cheap, a copy of the match is not.
                if _may_be(value, each):
                    yield from _solved([*goals, (value, each)], found.copy(), settings)
            return
        elif isinstance(pattern, Part):
            if not _is_part(value, pattern, found, settings):
                return
            if pattern.pattern is not None:
                goals.append((value, pattern.pattern))
        elif not _is_leaf(value, pattern, found, settings):
            return
    yield found


def _is_part(value: Value, part: Part, found: PatternMatch, settings: _MatchSettings) -> bool:
    if part.constant is not None and part.constant is not value.is_constant:
        return False
    if part.sole and (len(value.users) != 1 or settings.is_output(value)):
        return False
    return found.values.setdefault(part.name.removesuffix("?"), value) is value


def _is_leaf(
    value: Value, pattern: str | float, found: PatternMatch, settings: _MatchSettings
) -> bool:
    if isinstance(pattern, str) and not pattern.startswith("#"):
        return found.values.setdefault(pattern.removesuffix("?"), value) is value
    number = scalar(value, one_element=settings.either_order)
    if number is None:
        return False
    if isinstance(pattern, str):
        name = pattern[1:].removeprefix("-")
        number = -number if pattern.startswith("#-") else number
        return found.numbers.setdefault(name, number) == number
    return number == float(np.asarray(pattern, value.type.dtype.numpy))


def _may_be(value: Value | None, pattern: AnyPattern) -> bool:
    """False where one look says that ``value`` is something else: nothing is copied for that."""
    if isinstance(pattern, Part):
        if pattern.constant and not (value is not None and value.is_constant):
            return pattern.name.endswith("?") and value is None
        return pattern.pattern is None or _may_be(value, pattern.pattern)
    if not isinstance(pattern, tuple):
        return True
    node = None if value is None else value.producer
    if node is None:
        return False
    head = pattern[0]
    return node.op.name == head or (isinstance(head, tuple) and node.op.name in head)


def _may_be_left_out(pattern: AnyPattern) -> bool:
    name = pattern.name if isinstance(pattern, Part) else pattern
    return isinstance(name, str) and name.endswith("?")


def _operand_goals(
    value: Value, pattern: tuple[Any, ...], found: PatternMatch, settings: _MatchSettings
) -> list[list[_Goal]]:
    """Returns what has to hold of the operands of a node, once per order; nothing if it cannot."""
    node = value.producer
    if node is None or not _may_be(value, pattern):
        return []
    split = _split(node, pattern)
    if split is None or not _attributes_match(node, split[2], found):
        return []
    operands, parts, _ = split
    orders = [operands]
    if settings.either_order and node.op.name in _EITHER_ORDER and len(operands) == 2:
        orders = [operands, operands[::-1]] if operands[0] is not operands[1] else orders
    pairs = (list(zip(order, parts, strict=True))[::-1] for order in orders)
    return [goals for goals in pairs if all(_may_be(v, part) or v is None for v, part in goals)]


def _split(
    node: Node, pattern: tuple[Any, ...]
) -> tuple[list[Value | None], tuple[AnyPattern, ...], Mapping[str, Any]] | None:
    """Returns operands, what they have to be, and attributes; None for another number of them."""
    parts: tuple[Any, ...] = pattern[1:]
    fields: Mapping[str, Any] | None = None
    if parts and isinstance(parts[-1], dict):
        fields, parts = cast("dict[str, Any]", parts[-1]), parts[:-1]
    if fields is not None or any(_may_be_left_out(part) for part in parts):
        missing = len(parts) - len(node.inputs)
        if missing < 0:
            return None
        return [*node.inputs, *[None] * missing], parts, fields or {}
    operands = [v for v in node.inputs if v is not None]
    parts, stated = parts[: len(operands)], parts[len(operands) :]
    if len(operands) != len(parts) or len(stated) not in (0, len(node.op.fields)):
        return None
    return list(operands), parts, dict(zip(node.op.fields, stated, strict=False))


def _attributes_match(node: Node, wanted: Mapping[str, Any], found: PatternMatch) -> bool:
    """Compares the attributes that a pattern states."""
    for name, part in wanted.items():
        if name not in node.op.fields:  # the file's own operator of that name, which nobody decoded
            return False
        value = getattr(node.attributes, name)
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
