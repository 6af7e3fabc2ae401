"""Runs a pattern in Python: captures where it matches, a sentence where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqbridge.tvm.byoc.pattern import (
    Anything,
    CallPattern,
    ConstantPattern,
    Either,
    Optional,
    Pattern,
    Tuple,
    pattern_text,
    roots,
)
from qdqbridge.tvm.byoc.terms import Applied, FixedTerm, Group, Term


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
        self.captures = captures
        del self.calls[calls:]
        return False

    def _capture(self, name: str, term: Term, depth: int) -> bool:
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
