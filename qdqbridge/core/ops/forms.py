"""The forms of an operator, recognized: one matcher for files, for hosts, and for fusion rules.

A row lists the ways in which its operator is written with others (``Operator.forms``). What a
chain of nodes comes to, by these forms, is found here; whoever reads such a chain asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Form, Operator
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern, near

OPERANDS = ("", "x", "ab")
"""The letters of the operands in a form, by the operator's arity."""
OPERAND_LETTERS = frozenset("xab")


@dataclass(frozen=True, slots=True)
class Written:
    """An operator that a chain of nodes comes to.

    Attributes:
        op: Its row.
        attributes: Its attributes.
        operands: Its operands.
        nodes: The chain, its end first.
    """

    op: Operator
    attributes: Attributes
    operands: list[Value]
    nodes: list[Node]


def written(
    op: Operator, value: Value, *, forms: Sequence[Form] | None = None,
    either_order: bool = False, stated: Attributes | None = None,
) -> Written | None:  # fmt: skip
    """Returns ``op`` where ``value`` is computed by one of its forms, else None.

    Args:
        op: The operator that is looked for.
        value: The end of the chain.
        forms: Those to look for; by default all of them.
        either_order: As for :func:`qdqbridge.core.graph.patterns.match_value_pattern`.
        stated: Attributes that the chain is said to have: taken where its numbers are the same
            in float32, which is all that a chain of float32 operators shows (or in float16).
    """
    for form in op.forms if forms is None else forms:
        found = PatternMatch()
        if match_value_pattern(value, form.pattern, found, either_order=either_order):
            operands = [found.values[letter] for letter in OPERANDS[op.arity]]
            attributes = _attributes_of_match(op, form, found, stated, value.type.dtype)
            return Written(op, attributes, operands, found.nodes)
    return None


def _attributes_of_match(
    op: Operator, form: Form, found: PatternMatch, stated: Attributes | None, dtype: DType
) -> Attributes:
    values = {name: form.given.get(name, found.numbers.get(name)) for name in op.fields}
    if isinstance(stated, op.attributes):
        said = op.values(stated)
        if all(_equal_attribute(values[name], said[name], dtype) for name in op.fields):
            return stated
    return op.attributes(**values)


def _equal_attribute(a: object, b: object, dtype: DType) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return near(a, b, dtype)
    return a == b


def outermost_forms(op: Operator) -> tuple[Form, ...]:
    """Returns the forms that are no part of another one.

    Whoever reads a chain from its begin, as readers of hosts do, meets the part first.
    """
    patterns = [form.pattern for form in op.forms]
    return tuple(
        form for form in op.forms if not any(_is_part(form.pattern, other) for other in patterns)
    )


def _is_part(pattern: Pattern, whole: Pattern) -> bool:
    """Returns whether some steps of ``whole``, but not all, look like ``pattern``."""
    if not isinstance(whole, tuple):
        return False
    return any(_patterns_overlap(pattern, part) or _is_part(pattern, part) for part in whole[1:])


def _patterns_overlap(pattern: Pattern, other: Pattern) -> bool:
    if isinstance(pattern, tuple) and isinstance(other, tuple) and len(pattern) == len(other):
        return pattern[0] == other[0] and all(map(_patterns_overlap, pattern[1:], other[1:]))
    return pattern in OPERAND_LETTERS or pattern == other


def ends(op: Operator) -> tuple[str, ...]:
    """Returns the operators with which the forms of ``op`` end."""
    patterns = (form.pattern for form in op.forms)
    return tuple(dict.fromkeys(str(p[0]) for p in patterns if isinstance(p, tuple)))


def form_for(op: Operator, attributes: Attributes) -> Form | None:
    """Returns the first form in which an operator with these attributes can be written."""
    values = op.values(attributes)
    for form in op.forms:
        if all(values[name] == number for name, number in form.given.items()):
            return form
    return None
