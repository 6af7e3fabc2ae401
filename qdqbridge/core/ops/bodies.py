"""Operators that others stand for, as ONNX's functions: computed, emitted and recognized by them.

The body of an operator is a chain of others, as its forms are, made of its attributes; a step of
several attributes has its record behind its operands::

    def _euclidean(a: ReduceAttrs) -> Pattern:
        return ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), a))

``"x"`` is the operand, ``"a"``, ``"b"`` and so on are those of several; a number has the
element type of the first. ``"c?"`` may be left out, and then is what the step makes of the other
operand. Steps that are equal are one. From the body follow the reference function, what hosts are
given, and what is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import (
    NO_ATTRIBUTES,
    AnyAttributes,
    Array,
    Attributes,
    Compute,
    Flow,
    OnnxOp,
    Operands,
    Operator,
    Row,
)
from qdqbridge.core.graph.patterns import Pattern, near, scalar
from qdqbridge.core.ops.forms import written

T = TypeVar("T")
LETTERS = "abcdefgh"


def function(
    name: str, body: Callable[[Any], Pattern], check: Callable[[Node, Any], Iterator[str]], *,
    attributes: type[AnyAttributes], onnx: tuple[OnnxOp, ...], numerics: str,
    flow: Flow = Flow.ROUND,
) -> Row[AnyAttributes]:  # fmt: skip
    """Returns the row of an operator that others stand for.

    Args:
        name: ONNX's name.
        body: The chain of others, from its attributes.
        check: What is wrong with a node.
        attributes: The record of its attributes.
        onnx: How ONNX writes it.
        numerics: The contract in words.
        flow: How quantization flows through it.
    """
    return Row(
        name=name, flow=flow, attributes=attributes, compute=computed(body), check=check,
        onnx=onnx, body=of_any_rank(body), numerics=numerics,
    )  # fmt: skip


def of_any_rank(body: Callable[[Any], Pattern]) -> Callable[[Any, int], Pattern]:
    """Returns a body that does not depend on the rank of its operand as rows have it."""
    return lambda attributes, rank: body(attributes)


def parts(body: tuple[Any, ...]) -> tuple[Operator, tuple[Pattern, ...], Attributes]:
    """Returns the last operator of a body, the bodies of its operands, and its attributes."""
    from qdqbridge.core.ops.table import BY_NAME  # which is made of the rows that have bodies

    name, *rest = body
    row = BY_NAME[name]
    if rest and isinstance(rest[-1], Attributes):
        return row, tuple(rest[:-1]), rest[-1]
    return row, tuple(rest), NO_ATTRIBUTES


def folded(
    body: Pattern,
    operands: Sequence[T],
    step: Callable[[Operator, Attributes, list[T]], T],
    number: Callable[[float], T],
    made: dict[Pattern, T] | None = None,
) -> T:
    """Returns what a body comes to, one step after the other.

    Args:
        body: The body.
        operands: Those of the whole.
        step: Makes a result of an operator, its attributes and its operands.
        number: Makes an operand of a number.
        made: What steps have come to already, for several parts of one body.
    """
    known: dict[Pattern, T] = {} if made is None else made

    def value(part: Pattern) -> T:
        if isinstance(part, str):
            return operands[max(LETTERS.find(part), 0)]
        if not isinstance(part, tuple):
            return number(part)
        if part not in known:
            row, inner, attributes = parts(part)
            known[part] = step(row, attributes, [value(each) for each in inner])
        return known[part]

    return value(body)


def body_of(row: Operator, attributes: Attributes, rank: int | None, count: int) -> Pattern:
    """Returns the body of a row with the steps of so many operands as are given."""
    assert row.body is not None
    body = row.body(attributes, rank or 0)
    if not isinstance(body, tuple) or not str(body[-1]).endswith("?"):
        return body
    step, inner, left_out = body
    letter = left_out.removesuffix("?")
    return (step, inner, letter) if LETTERS.find(letter) < count else inner


def computed(body: Callable[[Any], Pattern]) -> Compute:
    """Returns the reference function of a body: its rows', in the operands' element type."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        return (results(body(attributes), operands)[-1],)

    return compute


def results(body: Pattern, operands: Operands) -> list[Array]:
    """Returns the results of all steps of a body, the last one last."""
    found: list[Array] = []
    dtype = next(operand.dtype for operand in operands if operand is not None)

    def step(row: Operator, attributes: Attributes, values: list[Array | None]) -> Array:
        with np.errstate(all="ignore"):
            found.append(row.compute(attributes, trimmed(values))[0])
        return found[-1]

    padded = [*operands, *[None] * len(LETTERS)]
    last = folded(body, padded, step, lambda value: np.asarray(value, dtype))
    return found or [operand for operand in (last,) if operand is not None]


def trimmed(values: Sequence[T]) -> list[T]:
    """Returns operands without those at the end that are left out."""
    last = max((i for i, value in enumerate(values) if value is not None), default=-1)
    return list(values[: last + 1])


def matched(value: Value | None, body: Pattern, operands: dict[str, Value]) -> bool:
    """True where ``value`` is computed as a body says; fills in the operands by their letters."""
    if value is None:
        return False
    if isinstance(body, str):
        return operands.setdefault(body, value) is value
    if not isinstance(body, tuple):
        number = scalar(value)
        return number is not None and near(number, body, value.type.dtype)
    row, inner, attributes = parts(body)
    given = _step_operands(value, row, attributes)
    if given is None or len(given) != len(inner):
        return False
    return all(matched(v, part, operands) for v, part in zip(given, inner, strict=True))


def _step_operands(value: Value, row: Operator, attributes: Attributes) -> list[Value] | None:
    """Returns the operands of a step behind a value, which may be written with others itself."""
    node = value.producer
    if node is not None and node.op is row and node.attributes == attributes:
        return [operand for operand in node.inputs if operand is not None]
    if row.body is not None:
        found: dict[str, Value] = {}
        body = body_of(row, attributes, value.rank, len(LETTERS))
        return in_order(found) if matched(value, body, found) else None
    form = written(row, value, stated=attributes) if row.forms else None
    return form.operands if form is not None and form.attributes == attributes else None


def in_order(operands: Mapping[str, Value]) -> list[Value]:
    """Returns operands in the order of their letters."""
    return [operands[letter] for letter in sorted(operands)]
