"""Tables: the entries that a backend takes, in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc.constraints import Constraints
from qdqbridge.tvm.byoc.pattern import (
    Applied,
    CallPattern,
    Match,
    Mismatch,
    Pattern,
    Term,
    match_byoc_pattern,
    operators,
    roots,
)
from qdqbridge.tvm.byoc.records import Record

Describe = Callable[[Match], Record]
Check = Callable[[Record], "list[str]"]


def _sentences(found: object, entry: Entry) -> list[str]:
    """Returns what a check of somebody else's says, if it is a list of sentences."""
    if isinstance(found, (list, tuple)):
        return [str(each) for each in found]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise QdqBridgeError(
        f"the check of entry '{entry.name}' returned {found!r}",
        why="a check returns the reasons for a refusal, each a sentence",
        fix="return a list of them, an empty one to take the record",
    )


def _takes_all(record: Record) -> list[str]:
    del record
    return []


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table.

    Attributes:
        name: The composite's name without the table's (``conv2d``).
        pattern: What it looks like.
        describe: Returns the record of a match.
        check: Returns why a record is refused; nothing where it is taken.
    """

    name: str
    pattern: Pattern
    describe: Describe
    check: Check = _takes_all

    @property
    def operators(self) -> frozenset[str]:
        """Every operator that can be inside."""
        return operators(self.pattern)

    def checked(self, check: Check) -> Entry:
        """Returns the entry with another check, beside its own."""
        own = self.check
        return replace(self, check=lambda record: [*own(record), *_sentences(check(record), self)])

    def judge(self, term: Term) -> Verdict:
        """Returns what the entry says about a call as the result of a composite."""
        found = match_byoc_pattern(self.pattern, term)
        if isinstance(found, Mismatch):
            return Verdict(self, None, found.depth, (found.reason,))
        record = self.describe(found)
        return Verdict(self, found, len(found.calls), tuple(self.check(record)), record)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an entry says about a call.

    Attributes:
        entry: The entry.
        match: Where it matched; None where it did not.
        depth: How many calls deep it looked.
        reasons: Why it refuses; empty where it takes.
        record: What the match computes.
    """

    entry: Entry
    match: Match | None
    depth: int
    reasons: tuple[str, ...]
    record: Record | None = None

    @property
    def takes(self) -> bool:
        """True where the entry takes the call."""
        return self.match is not None and not self.reasons


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of a backend.

    Attributes:
        name: The backend; composites are called ``<name>.<entry>``.
        entries: In order of preference.
        constraints: What the backend takes, asked by every check; also what
            :func:`qdqbridge.tvm.byoc.prepare` rewrites a graph for.
    """

    name: str
    entries: tuple[Entry, ...]
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        self._check_parts()
        names = [entry.name for entry in self.entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or "." in self.name:
            raise QdqBridgeError(
                f"the table '{self.name}' is not well formed",
                why=f"entries {twice} occur twice" if twice else "its name contains a dot",
                fix="give every entry a name of its own, and the table one without dots",
            )

    def _check_parts(self) -> None:
        name, held, parts = self._given()
        wrong = [part for part in parts if not isinstance(part, Entry)]
        if not isinstance(held, Constraints):
            wrong.append(held)
        if not isinstance(name, str) or not name:
            wrong.append(name)
        if wrong:
            raise QdqBridgeError(
                "a table is made of a name, entries and constraints",
                why=f"{wrong[0]!r} is given in the place of one of them",
                fix="write Table('npu', (Entry(...), ...), Constraints(...))",
            )

    def _given(self) -> tuple[object, object, list[object]]:
        return self.name, self.constraints, list(self.entries)

    def with_constraints(self, constraints: Constraints, name: str = "") -> Table:
        """Returns the table for a backend with these constraints."""
        return Table(name or self.name, self.entries, constraints)

    def only(self, *names: str) -> Table:
        """Returns the table with these entries, in this table's order.

        Raises:
            QdqBridgeError: There is none of a name.
        """
        self._check_known(names)
        return replace(self, entries=tuple(e for e in self.entries if e.name in names))

    def without(self, *names: str) -> Table:
        """Returns the table less these entries.

        Raises:
            QdqBridgeError: There is none of a name.
        """
        self._check_known(names)
        return replace(self, entries=tuple(e for e in self.entries if e.name not in names))

    def judge(self, entry: Entry, term: Term) -> Verdict:
        """Returns what an entry under the table's constraints says about a call."""
        verdict = entry.judge(term)
        if verdict.record is None:
            return verdict
        reasons = (*self.constraints.reasons(verdict.record), *verdict.reasons)
        return replace(verdict, reasons=reasons)

    def verdicts(self, call: Applied) -> Iterator[Verdict]:
        """Yields what the entries that can end with a call's operator say about it."""
        for entry in self.entries:
            for root in roots(entry.pattern):
                if isinstance(root, CallPattern) and root.op == call.op:
                    yield self.judge(replace(entry, pattern=root), call)

    def entry(self, composite: str) -> Entry:
        """Returns the entry of a composite's name (``npu.conv2d`` or ``conv2d``).

        Raises:
            QdqBridgeError: There is none of that name.
        """
        name = composite.removeprefix(f"{self.name}.")
        self._check_known([name])
        return next(entry for entry in self.entries if entry.name == name)

    def _check_known(self, names: Sequence[str]) -> None:
        known = {entry.name for entry in self.entries}
        unknown = [name for name in names if name not in known]
        if unknown:
            like = [name for name in known if unknown[0] and unknown[0] in name]
            near = sorted(like, key=_plain_first)[:3]
            near = near or get_close_matches(unknown[0], sorted(known))
            raise QdqBridgeError(
                f"the table '{self.name}' has no entry {unknown[0]!r}",
                why=f"it has {', '.join(sorted(known)) or 'none at all'}",
                fix=f"did you mean {' or '.join(near)}?"
                if near
                else "give one of these names, with or without the table's name before it",
            )


def table(name: str, *groups: Iterable[Entry]) -> Table:
    """Returns a table of groups of entries."""
    return Table(name, tuple(entry for group in groups for entry in group))


def _plain_first(name: str) -> tuple[int, str]:
    """Orders the entries of two dimensions and without additions first."""
    return ("2d" not in name) + name.count("_"), name
