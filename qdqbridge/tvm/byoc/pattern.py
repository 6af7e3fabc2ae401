"""One pattern algebra for both hosts; immutable, and no TVM is needed to write patterns.

A pattern is written from the result backwards, in Relay's operator names on either host::

    conv = Call("qnn.conv2d", Anything(), Weight, *PARAMETERS * 4).named("conv")
    biased = optional(conv, lambda inner: Call("add", inner, Constant().named("bias")))
    whole = optional(
        Call("qnn.requantize", biased, *PARAMETERS * 4).named("requantize"),
        lambda inner: Call("clip", inner).named("clip"),
    )

``relax_host.compile_pattern`` makes ``tvm.relax.dpl`` patterns of it, ``relay_host`` those of
``tvm.relay.dataflow_pattern``; :mod:`qdqbridge.tvm.byoc.pattern` runs it in Python, which is how
checks get their captures and how refusals get their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# ---- What patterns are matched against: expressions of either host, seen in one way --------------
# A host (:mod:`relax_host`, :mod:`relay_host`) hands out terms; nothing here imports TVM. Operators
# have Relay's names and attributes have Relay's names and plain Python values on both hosts.


# A value as a composite sees it: shape, element type, parameters, and the data of a constant.

RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
}
"""Smallest and largest value of the integer types."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A value as it is stored.

    Attributes:
        shape: Its extents; symbolic ones by name.
        dtype: Its element type.
        term: Where it comes from.
        scale: float32, rank 0 (per tensor) or 1 (along ``axis``); None for values whose
            parameters the composite does not state: floats, and moved data.
        zero_point: int32, of the scale's shape or rank 0.
        axis: The axis of rank-1 parameters.
    """

    shape: Extents
    dtype: str
    term: Term
    scale: NDArray[np.float32] | None = None
    zero_point: NDArray[np.int32] | None = None
    axis: int | None = None

    def __repr__(self) -> str:
        extents = "?" if self.shape is None else ", ".join(map(str, self.shape))
        parts = [f"{self.dtype}[{extents}]", "constant" if self.is_constant else ""]
        if self.scale is not None and self.zero_point is not None:
            one = self.per_tensor
            parts.append(f"scale={float(self.scale):.9g}" if one else f"{self.scale.size} scales")
            parts.append(f"zero_point={self.zero_point}" if one else f"axis={self.axis}")
        return f"<{' '.join(part for part in parts if part)}>"

    @property
    def data(self) -> NDArray[Any] | None:
        """The elements of a constant, None for what is computed."""
        return constant(self.term)

    @property
    def is_constant(self) -> bool:
        """True for a constant that is embedded in the composite."""
        return constant(self.term) is not None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return 0 if self.shape is None else len(self.shape)

    @property
    def is_float(self) -> bool:
        """True for floating-point elements."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def per_tensor(self) -> bool:
        """True where one scale and one zero point hold for all elements."""
        return all(p is None or p.size == 1 for p in (self.scale, self.zero_point))

    @property
    def symmetric(self) -> bool:
        """True where every zero point is 0."""
        return self.zero_point is None or not self.zero_point.any()

    def same_params(self, other: Tensor) -> bool:
        """True where both map stored integers to the same real numbers, bit for bit."""
        if self.scale is None or other.scale is None or self.dtype != other.dtype:
            return self.scale is other.scale and self.dtype == other.dtype
        assert self.zero_point is not None and other.zero_point is not None
        return np.array_equal(self.scale, other.scale) and np.array_equal(
            self.zero_point, other.zero_point
        )


Extents: TypeAlias = "tuple[int | str, ...] | None"
"""Lengths of axes; symbolic ones by name. None for tuples and unknown ranks."""


class Term:
    """One value.

    Attributes:
        shape: Its extents; None for a tuple.
        dtype: Its element type; empty for a tuple.
        source: The host's expression, for a backend that needs more.
    """

    __slots__ = ("dtype", "shape", "source")

    def __init__(self, source: Any, shape: Extents, dtype: str) -> None:
        self.source, self.shape, self.dtype = source, shape, dtype

    def __repr__(self) -> str:
        extents = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.label()}: {self.dtype}[{extents}]"

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a value"


class Free(Term):
    """A value from outside: a parameter, or a variable that nothing is known about.

    Attributes:
        name: The variable's name.
    """

    __slots__ = ("name",)

    def __init__(self, source: Any, shape: Extents, dtype: str, name: str) -> None:
        super().__init__(source, shape, dtype)
        self.name = name

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return f"variable {self.name}"


class FixedTerm(Term):
    """A constant; read when asked for."""

    __slots__ = ("_array", "_read")

    def __init__(
        self, source: Any, shape: Extents, dtype: str, read: Callable[[], NDArray[Any]]
    ) -> None:
        super().__init__(source, shape, dtype)
        self._read = read
        self._array: NDArray[Any] | None = None

    def numpy(self) -> NDArray[Any]:
        """Returns its elements."""
        if self._array is None:
            self._array = np.asarray(self._read())
        return self._array

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a constant"


class Group(Term):
    """A tuple of values, built where it is used."""

    __slots__ = ("_fields", "_resolve")

    def __init__(self, source: Any, resolve: Callable[[], Sequence[Term]]) -> None:
        super().__init__(source, None, "")
        self._resolve = resolve
        self._fields: tuple[Term, ...] | None = None

    @property
    def fields(self) -> tuple[Term, ...]:
        """Its values."""
        if self._fields is None:
            self._fields = tuple(self._resolve())
        return self._fields

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a tuple"


class Applied(Term):
    """A call of an operator, or of a function.

    Attributes:
        op: Relay's name of the operator; ``@name`` for a call of a function.
        name: The variable it is bound to, or another name a person finds it by.
        composite: The table entry where it is the call of a composite function.
    """

    __slots__ = ("_args", "_attrs", "_read", "_resolve", "composite", "name", "op")

    def __init__(
        self,
        source: Any,
        shape: Extents,
        dtype: str,
        op: str,
        resolve: Callable[[], Sequence[Term]],
        read: Callable[[], Mapping[str, Any]],
        *,
        name: str = "",
        composite: str = "",
    ) -> None:
        super().__init__(source, shape, dtype)
        self.op, self.name, self.composite = op, name, composite
        self._resolve, self._read = resolve, read
        self._args: tuple[Term, ...] | None = None
        self._attrs: Mapping[str, Any] | None = None

    @property
    def args(self) -> tuple[Term, ...]:
        """Its tensor (and tuple) arguments."""
        if self._args is None:
            self._args = tuple(self._resolve())
        return self._args

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Its attributes by Relay's names; arguments that are no tensors count among them."""
        if self._attrs is None:
            self._attrs = self._read()
        return self._attrs

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return f"composite {self.composite}" if self.composite else self.op


def constant(term: Term) -> NDArray[Any] | None:
    """Returns the elements of a constant; None for another term."""
    return term.numpy() if isinstance(term, FixedTerm) else None


# ---- One pattern algebra for both hosts; immutable, and no TVM is needed to write patterns -------


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


# ---- Runs a pattern in Python: captures where it matches, a sentence where it does not -----------


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found.

    Attributes:
        root: The call that computes the result.
        captures: What each named pattern matched.
        calls: Every call inside, the root first.
    """

    root: Term
    captures: Mapping[str, Term]
    calls: tuple[Applied, ...]

    def call(self, name: str) -> Applied | None:
        """Returns a captured call; None where an optional part is absent."""
        found = self.captures.get(name)
        return found if isinstance(found, Applied) else None

    def __getitem__(self, name: str) -> Term:
        return self.captures[name]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a pattern stopped to match.

    Attributes:
        depth: Calls between the root and the place; the deeper, the nearer was the match.
        reason: One sentence.
    """

    depth: int
    reason: str


def match_byoc_pattern(pattern: Pattern, term: Term) -> Match | Mismatch:
    """Matches ``pattern`` with ``term`` as its result.

    Returns:
        The longest match, or the mismatch that got furthest.
    """
    best: Mismatch | None = None
    for root in roots(pattern):
        run = _Run()
        if run.visit(root, term, 0):
            return Match(term, dict(run.captures), tuple(run.calls))
        if run.worst is not None and (best is None or run.worst.depth > best.depth):
            best = run.worst
    return best or Mismatch(0, f"the pattern {pattern_text(pattern)} has no operator")


@dataclass(slots=True)
class _Run:
    captures: dict[str, Term] = field(default_factory=dict[str, Term])
    calls: list[Applied] = field(default_factory=list[Applied])
    worst: Mismatch | None = None

    def visit(self, pattern: Pattern, term: Term, depth: int) -> bool:
        match pattern:
            case Either(choices=some):
                return any(self._attempt(choice, term, depth) for choice in some)
            case Optional(inner=inner, wrapped=wrapped):
                return self._attempt(wrapped, term, depth) or self._attempt(inner, term, depth)
            case Anything():
                return self._capture(pattern.name, term, depth)
            case ConstantPattern():
                if not isinstance(term, FixedTerm):
                    return self._fail(depth, f"a constant is wanted, {term.label()} is found")
                return self._capture(pattern.name, term, depth)
            case Tuple():
                return self._tuple(pattern, term, depth)
            case CallPattern():
                return self._call(pattern, term, depth)

    def _attempt(self, pattern: Pattern, term: Term, depth: int) -> bool:
        captures, calls = dict(self.captures), len(self.calls)
        if self.visit(pattern, term, depth):
            return True
        # All but `worst` is as before the attempt: how far it got is what a refusal tells.
        self.captures = captures
        del self.calls[calls:]
        return False

    def _capture(self, name: str, term: Term, depth: int) -> bool:
        # Hosts make one term of one expression, so that identity is equality.
        if name and self.captures.setdefault(name, term) is not term:
            return self._fail(depth, f"'{name}' stands for two different values")
        return True

    def _tuple(self, pattern: Tuple, term: Term, depth: int) -> bool:
        if not isinstance(term, Group):
            return self._fail(depth, f"a tuple is wanted, {term.label()} is found")
        fields = pattern.fields
        if not fields and pattern.every is not None:
            fields = (pattern.every,) * len(term.fields)
        if fields:
            wanted, have = len(fields), len(term.fields)
            if wanted != have:
                return self._fail(depth, f"a tuple of {wanted} is wanted, one of {have} is found")
            pairs = zip(fields, term.fields, strict=True)
            if not all(self.visit(part, value, depth) for part, value in pairs):
                return False
        return self._capture(pattern.name, term, depth)

    def _call(self, pattern: CallPattern, term: Term, depth: int) -> bool:
        if not isinstance(term, Applied) or term.op != pattern.op:
            return self._fail(depth, f"{pattern.op} is wanted, {term.label()} is found")
        if len(term.args) < len(pattern.args):
            return self._fail(
                depth, f"{pattern.op} has {len(term.args)} of {len(pattern.args)} arguments"
            )
        for name, wanted in pattern.attrs:
            have = term.attrs.get(name)
            if not _equal(have, wanted):
                return self._fail(depth, f"{name} of {pattern.op} is {have!r}, not {wanted!r}")
        self.calls.append(term)
        pairs = zip(pattern.args, term.args, strict=False)
        if not all(self.visit(part, value, depth + 1) for part, value in pairs):
            return False
        return self._capture(pattern.name, term, depth)

    def _fail(self, depth: int, reason: str) -> bool:
        if self.worst is None or depth > self.worst.depth:
            self.worst = Mismatch(depth, reason)
        return False


def _equal(have: Any, wanted: Any) -> bool:
    both = [list(v) if isinstance(v, tuple | list) else v for v in (have, wanted)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return bool(both[0] == both[1])
