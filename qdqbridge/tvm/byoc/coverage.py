"""What a table took of a module, what it left, and why: every operator left has a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from qdqbridge.tvm.byoc.pattern import (
    Applied,
    CallPattern,
    ConstantPattern,
    Either,
    Free,
    Group,
    Pattern,
    Term,
    parts,
    roots,
)
from qdqbridge.tvm.byoc.table import Table, Verdict

# ---- What a host of Relay's operators must offer: Relax today, Relay in TVM up to 0.19 -----------


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite function of a partitioned module.

    Attributes:
        name: ``<table>.<entry>``.
        function: The host's function.
        symbol: The name of the function, or of the region that holds it.
        region: The ``global_symbol`` of the region for a codegen; empty where regions are not made.
        calls: The operators inside, in order of execution.
        result: The result; a call, the root of the entry's pattern.
    """

    name: str
    function: Any
    symbol: str
    region: str
    calls: tuple[Applied, ...]
    result: Term


@dataclass(frozen=True, slots=True)
class Contents:
    """A partitioned module, taken apart.

    Attributes:
        left: The operators of ``main`` and calls of foreign functions, in order of execution.
        composites: Every composite function that is called, in order of execution.
        regions: The symbols of the regions, in order of execution.
        quantizing: The foreign functions with operators on quantized values, which are not looked
            into (the bodies of If, Loop and Scan, say), as ``@name``.
    """

    left: tuple[Applied, ...]
    composites: tuple[Composite, ...]
    regions: tuple[str, ...]
    quantizing: frozenset[str] = frozenset()


class PartitionHost(Protocol):
    """Compiles patterns and takes modules apart."""

    def partition(self, module: Any, table: Table, *, regions: bool) -> Any:
        """Returns the module with what the table takes in composite functions."""
        ...

    def contents(self, module: Any) -> Contents:
        """Returns what a module holds."""
        ...

    def composite(self, function: Any) -> Composite:
        """Returns one composite function, taken apart."""
        ...


def kept(check: Callable[[Any], bool], failures: list[Exception]) -> Callable[[Any], bool]:
    """Returns a check that refuses where it fails, and keeps why.

    TVM calls checks from C++, which makes a ``RuntimeError`` of whatever they raise.
    """

    def safe(found: Any) -> bool:
        try:
            return check(found)
        except Exception as error:  # a vendor's check may raise anything
            failures.append(error)
            return False

    return safe


def needed(pattern: Pattern) -> frozenset[str]:
    """Returns the operators without which a pattern cannot match."""
    if isinstance(pattern, Either):
        sets = [needed(choice) for choice in pattern.choices]
        return frozenset.intersection(*sets) if sets else frozenset()
    found: frozenset[str] = frozenset()
    if isinstance(pattern, CallPattern):
        found = frozenset((pattern.op,))
        return found.union(*(needed(arg) for arg in pattern.args))
    # Of an optional part only what it is around, which is the last, has to be there.
    inner = parts(pattern)[-1:] if not isinstance(pattern, ConstantPattern) else ()
    return found.union(*(needed(part) for part in inner))


def variants(table: Table, present: Sequence[str]) -> list[tuple[str, Table, Pattern]]:
    """Returns what can match at all: (entry name, table of that entry alone, root variant).

    A pattern with a choice at its root is taken apart, the longest first: TVM's matchers meet the
    shorter match earlier and would keep it.
    """
    have, found = frozenset(present), []
    for entry in table.entries:
        for root in roots(entry.pattern):
            if needed(root) <= have:
                found.append((entry.name, table.only(entry.name), root))
    return found


# ---- What a table took of a module, what it left, and why: every operator left has a reason ------


Kind: TypeAlias = Literal["refused", "no pattern", "read elsewhere", "float", "plain integers"]
_CODES = frozenset(("int8", "uint8", "int16", "uint16"))
_NAMED = 3
_FLOAT = "it works on float values"
_BODIES = "operators on quantized values are inside of it, and only main is looked into"
_PLAIN = "it works on plain integers (indices, shapes or conditions), not on quantized values"
SUMS = frozenset(
    (
        *(f"qnn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")),
        "qnn.dense", "qnn.batch_matmul",
    )
)  # fmt: skip
"""Operators whose int32 result is part of a larger one."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One composite.

    Attributes:
        entry: The table's entry.
        operators: The operators inside, in order of execution.
        region: The region that holds it, the ``global_symbol`` that a codegen compiles.
        shape: The result's extents and element type, in words.
    """

    entry: str
    operators: tuple[str, ...]
    region: str
    shape: str


@dataclass(frozen=True, slots=True)
class Left:
    """One operator outside of all composites.

    Attributes:
        operator: Its name.
        name: Its result's name in the model; where it has none, that of a value near it
            (``behind 'x'``, ``before 'y'``), else the operator's.
        kind: ``refused`` by a check, ``no pattern`` for what it is or stands in, ``read
            elsewhere`` than in a composite that would hold it, ``float``, or an operator on
            ``plain integers`` (indices, shapes).
        reasons: Why, in sentences; never empty.
        shape: The result's extents and element type, in words.
    """

    operator: str
    name: str
    kind: Kind
    reasons: tuple[str, ...]
    shape: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """The result of a partition.

    Attributes:
        table: The table's name.
        taken: Every composite, in order of execution.
        left: Every operator outside, in order of execution.
        regions: The symbols of the regions.
    """

    table: str
    taken: tuple[Taken, ...]
    left: tuple[Left, ...]
    regions: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True where every operator on quantized values is taken."""
        return all(item.kind in ("float", "plain integers") for item in self.left)

    @property
    def operators(self) -> int:
        """Number of operators, taken and left."""
        return sum(len(item.operators) for item in self.taken) + len(self.left)

    def counts(self) -> dict[str, int]:
        """Returns the number of composites of each entry, the most frequent first."""
        return dict(Counter(item.entry for item in self.taken).most_common())

    def summary(self) -> str:
        """Returns one line."""
        inside = self.operators - len(self.left)
        return (
            f"{self.table}: {len(self.taken)} composites in {len(self.regions)} region(s) hold "
            f"{inside} of {self.operators} operators, {len(self.left)} left"
        )

    def text(self) -> str:
        """Returns a page for people: equal reasons are told once."""
        lines = [self.summary()]
        forms = Counter((item.entry, " ".join(item.operators)) for item in self.taken)
        width = max((len(entry) for entry, _ in forms), default=0)
        lines += [f"  {n:4}  {entry:<{width}}  {ops}" for (entry, ops), n in forms.most_common()]
        grouped: dict[tuple[str, str, tuple[str, ...]], list[Left]] = {}
        for item in self.left:
            grouped.setdefault((item.operator, item.kind, item.reasons), []).append(item)
        if grouped:
            lines.append("left outside")
        for (operator, kind, reasons), items in grouped.items():
            names = ", ".join(item.name for item in items[:_NAMED])
            more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
            lines.append(f"  {len(items):4}  {operator} ({names}{more}): {kind}")
            lines += [f"        {reason}" for reason in reasons]
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """Returns plain data for programs."""
        return {
            "table": self.table,
            "complete": self.complete,
            "operators": self.operators,
            "composites": len(self.taken),
            "regions": list(self.regions),
            "entries": self.counts(),
            "taken": [
                {"entry": t.entry, "operators": list(t.operators), "region": t.region,
                 "result": t.shape}
                for t in self.taken
            ],
            "left": [
                {"operator": item.operator, "name": item.name, "kind": item.kind,
                 "reasons": list(item.reasons), "result": item.shape}
                for item in self.left
            ],
        }  # fmt: skip


_SHAPES = frozenset(("shape_of", "shape_to_tensor", "tensor_to_shape"))
Explain: TypeAlias = "Callable[[Contents], Sequence[Left]]"
"""Says why operators were left."""


def coverage(table: str, contents: Contents, explain: Explain) -> Coverage:
    """Returns the coverage of a partitioned module.

    Args:
        table: The table's name.
        contents: The module, taken apart by its host.
        explain: Why operators were left; :func:`reasons_of` for our own tables.
    """
    taken = tuple(_taken(each, table) for each in contents.composites)
    return Coverage(table, taken, tuple(explain(contents)), contents.regions)


def _taken(composite: Composite, table: str) -> Taken:
    operators = tuple(call.op for call in composite.calls)
    entry = composite.name.removeprefix(f"{table}.")
    return Taken(entry, operators, composite.region, shape_of(composite.result))


def shape_of(term: Term) -> str:
    """Returns extents and element type in words: ``int8[1, 16, 8, 8]``."""
    if term.shape is None:
        return term.dtype or "a tuple"
    return f"{term.dtype}[{', '.join(map(str, term.shape))}]"


def reasons_of(table: Table) -> Explain:
    """Returns what explains the operators that one of our tables left."""
    return lambda contents: _Explainer(table, contents).explain()


def untouched(call: Applied) -> Kind | None:
    """Returns the kind of an operator that has nothing to do with quantized values, else None."""
    if call.op in _SHAPES:
        return "plain integers"
    dtypes = {term.dtype for term in (call, *_flat(call.args)) if term.dtype}
    if dtypes & _CODES or call.op.startswith("qnn.") or any(map(_widened, call.args)):
        return None
    return "float" if any(d.startswith(("float", "bfloat")) for d in dtypes) else "plain integers"


_GENERATED = re.compile(r"(lv|gv|%)\d*")
"""Names that a host counts out, which say nothing about the model."""


def _seen_from(call: Applied, other: Applied) -> str:
    """Returns another operator in words, with its name in the model where that is another one.

    The calls that one node became have one name. Equal reasons are then equal texts.
    """
    tells = other.name != call.name and _tells(other.name)
    return f"{other.op} {other.name}" if tells else other.op


def _tells(name: str) -> bool:
    """True for a name that is not one which a host counts out."""
    return bool(name) and _GENERATED.fullmatch(name) is None


def _widened(term: Term) -> bool:
    """Returns whether a value is codes in a wider type, as sums and averages want them."""
    cast = isinstance(term, Applied) and term.op == "cast"
    return cast and any(arg.dtype in _CODES for arg in term.args)


def _flat(terms: Sequence[Term]) -> list[Term]:
    found: list[Term] = []
    for term in terms:
        found += _flat(term.fields) if isinstance(term, Group) else [term]
    return found


class _Explainer:
    def __init__(self, table: Table, contents: Contents) -> None:
        self.table, self.calls, self.quantizing = table, contents.left, contents.quantizing
        calls = self.calls
        self.readers: dict[Applied, list[Applied]] = {}
        for call in calls:
            for term in _flat(call.args):
                if isinstance(term, Applied):
                    self.readers.setdefault(term, []).append(call)
        self.verdicts = {call: list(table.verdicts(call)) for call in calls}
        self.inside: dict[Applied, list[tuple[Applied, Verdict]]] = {}
        for root, verdicts in self.verdicts.items():
            for verdict in verdicts:
                for call in () if verdict.match is None else verdict.match.calls:
                    if call is not root:
                        self.inside.setdefault(call, []).append((root, verdict))

    def explain(self) -> list[Left]:
        return [self._left(call) for call in self.calls]

    def _left(self, call: Applied) -> Left:
        kind, reasons = self._reasons(call)
        unique = tuple(dict.fromkeys(reasons))
        return Left(call.op, self._known_as(call), kind, unique, shape_of(call))

    def _known_as(self, call: Applied) -> str:
        """Returns a name that a person finds in the model: a call's own, or of one near it."""
        if _tells(call.name):
            return call.name
        for word, near in (("behind", self._operands), ("before", self._reading)):
            level, seen = [call], {call}
            while level:
                level = [other for each in level for other in near(each) if other not in seen]
                seen |= set(level)
                named = next((other.name for other in level if _tells(other.name)), None)
                if named is not None:
                    return f"{word} '{named}'"
        return call.op

    def _operands(self, call: Applied | Free) -> list[Applied | Free]:
        args = call.args if isinstance(call, Applied) else ()
        return [term for term in _flat(args) if isinstance(term, Applied | Free)]

    def _reading(self, call: Applied | Free) -> list[Applied | Free]:
        return [*self.readers.get(call, ())] if isinstance(call, Applied) else []

    def _reasons(self, call: Applied) -> tuple[Kind, list[str]]:
        own = [(call, v) for v in self.verdicts[call] if v.match is not None]
        longest = max((v.depth for _, v in own), default=0)
        matched = [each for each in own if each[1].depth == longest]
        whole = matched + self.inside.get(call, [])
        refused = [self._refusal(call, *each) for each in whole if each[1].reasons]
        leaks = [self._leak(call, v) for _, v in whole if not v.reasons]
        if call.op in self.quantizing:
            return "no pattern", [_BODIES]
        plain = untouched(call)
        if plain == "float":
            return plain, [_FLOAT]
        if plain is not None and not self.inside.get(call) and not self._completes(call):
            return plain, [_PLAIN]
        if refused or leaks:
            return ("refused" if refused else "read elsewhere"), [*refused, *leaks]
        sums = self._completes(call)
        if sums and not self.verdicts[call]:
            return "no pattern", [f"it belongs to {_seen_from(call, sums[0])}, which is left"]
        return "no pattern", [self._unmatched(call)]

    def _completes(self, call: Applied) -> list[Applied]:
        """Returns the sums to which a call adds a bias, say."""
        return [t for t in call.args if isinstance(t, Applied) and t.op in SUMS]

    def _refusal(self, call: Applied, root: Applied, verdict: Verdict) -> str:
        part = "" if call is root else f" (it ends with {_seen_from(call, root)})"
        name = verdict.entry.name.partition("#")[0]  # shipped tables have entries of one name
        return f"{name}{part} refuses: {'; '.join(verdict.reasons)}"

    def _leak(self, at: Applied, verdict: Verdict) -> str:
        """A match that TVM did not take: something outside reads a value inside."""
        assert verdict.match is not None
        calls = set(verdict.match.calls)
        gone = [call for call in verdict.match.calls if call not in self.verdicts]
        if gone:
            return f"{verdict.entry.name}: {gone[0].op} is in another composite already"
        for call in verdict.match.calls[1:]:
            outside = [reader for reader in self.readers.get(call, ()) if reader not in calls]
            where = _seen_from(at, outside[0]) if outside else "the result of main"
            if outside or not self.readers.get(call, ()):
                inner = _seen_from(at, call)
                return f"{verdict.entry.name}: {inner} is read by {where} as well"
        return f"{verdict.entry.name}: a value inside is read outside of it as well"

    def _unmatched(self, call: Applied) -> str:
        verdicts = sorted(self.verdicts[call], key=lambda v: -v.depth)
        if verdicts:
            return f"{verdicts[0].entry.name} does not match: {verdicts[0].reasons[0]}"
        having = [e.name for e in self.table.entries if call.op in e.operators]
        if not having:
            return f"no entry of the table has {call.op}"
        readers = [_seen_from(call, reader) for reader in self.readers.get(call, ())]
        return (
            f"{', '.join(having[:_NAMED])} would hold it, and does not end with what reads it: "
            f"{', '.join(readers[:_NAMED]) or 'a composite, or the result of main'}"
        )
