"""One pattern algebra for both hosts; immutable, and no TVM is needed to write patterns.

A pattern is written from the result backwards, in Relay's operator names on either host::

    conv = Call("qnn.conv2d", Anything(), Weight, *PARAMETERS * 4).named("conv")
    biased = optional(conv, lambda inner: Call("add", inner, Constant().named("bias")))
    whole = optional(
        Call("qnn.requantize", biased, *PARAMETERS * 4).named("requantize"),
        lambda inner: Call("clip", inner).named("clip"),
    )

``relax_host.compile_pattern`` makes ``tvm.relax.dpl`` patterns of it, ``relay_host`` those of
``tvm.relay.dataflow_pattern``; :mod:`qdqbridge.tvm.byoc.match` runs it in Python, which is how
checks get their captures and how refusals get their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value.

    Attributes:
        name: Captures what it matched; two patterns of one name must match the same value.
    """

    name: str = field(default="", kw_only=True)

    def named(self, name: str) -> Anything:
        """Returns the same pattern with a capture."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class ConstantPattern:
    """A constant; in a composite it is embedded, so that a backend can read it."""

    name: str = field(default="", kw_only=True)

    def named(self, name: str) -> ConstantPattern:
        """Returns the same pattern with a capture."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, init=False)
class Tuple:
    """A tuple of exactly these fields, or of any number of values where none are given.

    Attributes:
        fields: Patterns of the values.
        every: The pattern of every value where no fields are given; None for anything.
        name: Captures the tuple.
    """

    fields: tuple[Pattern, ...]
    every: Pattern | None
    name: str

    def __init__(self, *fields: Pattern, every: Pattern | None = None, name: str = "") -> None:
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "name", name)

    def named(self, name: str) -> Tuple:
        """Returns the same pattern with a capture."""
        return Tuple(*self.fields, every=self.every, name=name)


@dataclass(frozen=True, slots=True, init=False)
class CallPattern:
    """A call of an operator.

    Attributes:
        op: Relay's name of the operator, on either host (``nn.max_pool2d``, ``transpose``).
        args: Patterns of the first tensor arguments; further ones may be anything.
        attrs: Attributes that must have these values.
        name: Captures the call.
    """

    op: str
    args: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...]
    name: str

    def __init__(
        self, op: str, *args: Pattern, attrs: Mapping[str, Any] | None = None, name: str = ""
    ) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "attrs", tuple(sorted((attrs or {}).items())))
        object.__setattr__(self, "name", name)

    def named(self, name: str) -> CallPattern:
        """Returns the same pattern with a capture."""
        return CallPattern(self.op, *self.args, attrs=dict(self.attrs), name=name)


@dataclass(frozen=True, slots=True, init=False)
class Either:
    """The first of several patterns that matches."""

    choices: tuple[Pattern, ...]

    def __init__(self, *choices: Pattern) -> None:
        object.__setattr__(self, "choices", choices)


@dataclass(frozen=True, slots=True)
class Optional:
    """``wrapped`` where it matches, else ``inner``, a part of it (see :func:`optional`)."""

    inner: Pattern
    wrapped: Pattern


Pattern: TypeAlias = "Anything | ConstantPattern | Tuple | CallPattern | Either | Optional"


def optional(inner: Pattern, wrap: Callable[[Pattern], Pattern]) -> Optional:
    """Returns a pattern of ``inner``, or of what ``wrap`` makes of it."""
    return Optional(inner, wrap(inner))


def choices(*ops: str) -> Callable[..., Either]:
    """Returns a builder of calls of any of several operators with the same arguments."""

    def build(*args: Pattern, name: str = "") -> Either:
        return Either(*(CallPattern(op, *args, name=name) for op in ops))

    return build


WEIGHT = Either(ConstantPattern(name="weight"), Anything(name="weight"))
"""A weight: embedded where it is a constant."""


def roots(pattern: Pattern) -> Iterator[Pattern]:
    """Yields the patterns without a choice at their root, the longest first."""
    if isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from roots(choice)
    elif isinstance(pattern, Optional):
        yield from roots(pattern.wrapped)
        yield from roots(pattern.inner)
    else:
        yield pattern


def operators(pattern: Pattern) -> frozenset[str]:
    """Returns every operator that can be inside a match."""
    if isinstance(pattern, CallPattern):
        return frozenset((pattern.op,)).union(*(operators(arg) for arg in pattern.args))
    return frozenset().union(*(operators(part) for part in parts(pattern)))


def parts(pattern: Pattern) -> tuple[Pattern, ...]:
    """Returns the patterns a pattern is made of."""
    match pattern:
        case CallPattern(args=args):
            return args
        case Tuple(fields=fields):
            return fields
        case Either(choices=some):
            return some
        case Optional(inner=inner, wrapped=wrapped):
            return (wrapped, inner)
        case _:
            return ()


def pattern_text(pattern: Pattern) -> str:
    """Returns a pattern on one line: ``[clip](qnn.requantize(…))``."""
    match pattern:
        case Anything():
            return "*"
        case ConstantPattern():
            return "C"
        case Tuple(fields=fields):
            return f"({', '.join(map(pattern_text, fields)) or '…'})"
        case CallPattern(op=op, args=args):
            return f"{op}({', '.join(map(pattern_text, args))})" if args else op
        case Either(choices=some):
            return " | ".join(map(pattern_text, some))
        case Optional(wrapped=wrapped):
            return f"[{pattern_text(wrapped)}]"
