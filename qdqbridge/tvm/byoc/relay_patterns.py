"""Relay's own patterns in our algebra: so a shipped table can say why it leaves an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.relay import dataflow_pattern as dfp

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import (
    Anything,
    CallPattern,
    ConstantPattern,
    Either,
    Pattern,
    Tuple,
)
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.relay_host import EXTENSION
from qdqbridge.tvm.byoc.table import Check, Entry, Table

_ENDS = ("clip", "qnn.requantize", "qnn.quantize")
"""What a composite may end with, behind the operator that it is about."""
Why = Callable[[str, Any], "list[str]"]
"""(entry, root expression) -> why the table's own check refuses."""


def converted(pattern: Any) -> Pattern:
    """Returns a pattern of ``tvm.relay.dataflow_pattern`` in our algebra.

    Conditions on types are left out; a shipped table's checks ask for them again.
    """
    return _converted(pattern, {})


def _converted(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    if pattern not in known:
        known[pattern] = _made(pattern, known)
    return known[pattern]


def _made(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    if isinstance(pattern, dfp.ConstantPattern):
        return ConstantPattern()
    if isinstance(pattern, dfp.AltPattern):
        return Either(_converted(pattern.left, known), _converted(pattern.right, known))
    if isinstance(pattern, dfp.AttrPattern):
        return _with_attributes(_converted(pattern.pattern, known), pattern.attrs)
    if isinstance(pattern, dfp.TypePattern | dfp.DataTypePattern | dfp.ShapePattern):
        return _converted(pattern.pattern, known)
    if isinstance(pattern, dfp.TuplePattern):
        return Tuple(*(_converted(field, known) for field in pattern.fields or ()))
    if isinstance(pattern, dfp.CallPattern):
        return _call(pattern, known)
    return Anything()


def _call(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    args = [_converted(arg, known) for arg in pattern.args or ()]
    names = _operators(pattern.op)
    calls = [CallPattern(name, *args) for name in names]
    if not calls:
        return Anything()
    return calls[0] if len(calls) == 1 else Either(*calls)


def _operators(pattern: Any) -> list[str]:
    if isinstance(pattern, dfp.AltPattern):
        return _operators(pattern.left) + _operators(pattern.right)
    if isinstance(pattern, dfp.ExprPattern) and isinstance(pattern.expr, tvm.ir.Op):
        return [str(pattern.expr.name)]
    return []


def _with_attributes(pattern: Pattern, attrs: Any) -> Pattern:
    if isinstance(pattern, Either):
        return Either(*(_with_attributes(choice, attrs) for choice in pattern.choices))
    if not isinstance(pattern, CallPattern):
        return pattern
    wanted = {str(key): _pattern_attr_value(attrs[key]) for key in attrs.keys()}  # noqa: SIM118
    return CallPattern(pattern.op, *pattern.args, attrs=wanted, name=pattern.name)


def _pattern_attr_value(value: Any) -> Any:
    if isinstance(value, tvm.ir.Array):
        return [_pattern_attr_value(part) for part in value]
    inner = getattr(value, "value", value)
    return inner if isinstance(inner, bool | int | float) else str(inner)


def explaining(name: str, patterns: Sequence[Any], why: Why | None = None) -> Table:
    """Returns a table that judges as a shipped one does, and finds words for it.

    Args:
        name: The codegen.
        patterns: (name, pattern) or (name, pattern, check) as its pattern table returns them.
        why: Says more than "its own check refuses" where a check does.
    """
    entries: list[Entry] = []
    used: dict[str, int] = {}
    for full, pattern, *check in patterns:
        short = str(full).removeprefix(f"{name}.")
        used[short] = count = used.get(short, 0) + 1
        unique = short if count == 1 else f"{short}#{count}"
        own = _own_check(short, check[0] if check else _anything, why)
        entries.append(Entry(unique, converted(pattern), descriptions.other, own))
    return Table(name.replace(".", "_"), tuple(entries))


def _anything(expr: Any) -> bool:
    del expr
    return True


def _extension(expr: Any) -> str:
    """Returns the operator of ours for which a pattern of Relay's operators is meant to stand."""
    while isinstance(expr, tvm.relay.Call):
        name = str(getattr(expr.op, "name", ""))
        if name.startswith(EXTENSION):
            return name
        if name not in _ENDS:
            return ""
        expr = expr.args[0]
    return ""


def _own_check(entry: str, check: Callable[[Any], Any], why: Why | None) -> Check:
    def asked(record: Record) -> list[str]:
        expr = record.output.term.source
        extension = _extension(expr)
        if extension:
            return [
                f"it is {extension}, with an element type or axis that Relay's operator has not"
            ]
        try:
            taken = bool(check(expr))
        # A vendor's check meets calls of ours that it was not written for.
        except (tvm.TVMError, QdqBridgeError, AttributeError, IndexError, KeyError, TypeError,
                ValueError, AssertionError) as error:  # fmt: skip
            return [f"its own check fails: {type(error).__name__} {error}".splitlines()[0]]
        if taken:
            return []
        return (why(entry, expr) if why else []) or ["its own check refuses"]

    return asked
