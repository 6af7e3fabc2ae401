"""What a host of Relay's operators must offer: Relax today, Relay in TVM up to 0.19."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qdqbridge.tvm.byoc.pattern import CallPattern, ConstantPattern, Either, Pattern, parts, roots
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.byoc.terms import Applied, Term


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
