"""``partition(mod, table) -> (mod, Coverage)``, the same call on both hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.symbols import terms, with_numbers
from qdqbridge.errors import GraphError, InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.tvm.byoc.coverage import Composite, Coverage, PartitionHost, coverage, reasons_of
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Table


def host_of(module: Any) -> PartitionHost:
    """Returns the host of a module or function.

    Args:
        module: An ``IRModule``, or a function of one.

    Raises:
        UnsupportedTargetError: It is neither Relax nor Relay.
    """
    functions: Any = getattr(module, "functions", None)
    some = [module] if functions is None else list(functions.values())
    for function in some:
        origin = type(function).__module__
        for name in ("relax", "relay"):
            if origin.startswith(f"tvm.{name}."):
                host: Any = import_module(f"qdqbridge.tvm.byoc.{name}_host")
                return host
    raise UnsupportedTargetError(
        f"{type(module).__name__} cannot be partitioned",
        why="it holds no function of Relax or Relay",
        fix="give the IRModule of to_relax, or one of relay.emit",
    )


def partition(module: Any, table: Table, *, regions: bool = True) -> tuple[Any, Coverage]:
    """Moves what ``table`` takes into composite functions.

    Args:
        module: A Relax or Relay module; only ``main`` is looked at.
        table: Which operators to take.
        regions: Group neighbouring composites into regions, one call of the codegen each. False
            leaves bare composites, which any TVM build runs by the operators' own computations.

    Returns:
        The module and what was taken and left.

    Raises:
        UnsupportedTargetError: The module is neither Relax nor Relay.
        InputDataError: ``table`` is not a table.
    """
    host = host_of(module)
    if not isinstance(table, Table):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputDataError(
            "partition needs a table",
            why=f"it is given {type(table).__name__}",
            fix="give byoc.canonical(), or a Table of your own",
        )
    divided = host.partition(module, table, regions=regions)
    return divided, coverage(table.name, host.contents(divided), reasons_of(table))


def describe(function: Any, table: Table) -> Record:
    """Returns what a composite computes.

    Args:
        function: A composite function (or a :class:`Composite`, taken apart already).
        table: The table that made it.

    Raises:
        GraphError: It is not a composite of the table.
    """
    composite: Composite = (
        function if isinstance(function, Composite) else host_of(function).composite(function)
    )
    try:
        verdict = table.entry(composite.name).judge(composite.result)
    except QdqBridgeError as error:
        raise _undescribed(composite, table, str(error.what)) from error
    if verdict.record is None:
        raise _undescribed(composite, table, "; ".join(verdict.reasons))
    return verdict.record


def _undescribed(composite: Composite, table: Table, why: str) -> GraphError:
    return GraphError(
        f"the composite '{composite.name}' cannot be described",
        why=why,
        fix=f"give the table that partitioned the module; this one is '{table.name}'",
    )


def composites(module: Any) -> tuple[Composite, ...]:
    """Returns the composites of a partitioned module, in order of execution."""
    return host_of(module).contents(module).composites


def runnable(module: Any) -> Any:
    """Returns a partitioned Relax module that any build runs, bit for bit, without a codegen.

    Args:
        module: A result of :func:`partition`; with ``regions=False`` it runs as it is.

    Raises:
        UnsupportedTargetError: It is no Relax module.
    """
    _need_relax(
        module, "only Relax modules are made runnable",
        "Relay has no build that runs regions without their codegen",
    )  # fmt: skip
    from qdqbridge.tvm.byoc.relax_host import runnable as lifted

    return lifted(module)


def _need_relax(module: Any, what: str, why: str) -> None:
    """Raises an UnsupportedTargetError for a module of Relay."""
    if not host_of(module).__name__.endswith("relax_host"):
        raise UnsupportedTargetError(
            what, why=why, fix="partition with regions=False and build that"
        )


_WORD = 32
"""Bits of sums; what has more counts places."""


@dataclass(frozen=True, slots=True)
class RegionDifference:
    """How a backend's code for one region differs from what the region means.

    Attributes:
        symbol: The region's symbol, which its code is called by.
        composites: The names of the composites in it, in order of execution.
        values: The elements of its results.
        different: How many of them differ.
        largest: The largest difference: integers, or real numbers of a float result.
    """

    symbol: str
    composites: tuple[str, ...]
    values: int
    different: int
    largest: float

    def __str__(self) -> str:
        inside = ", ".join(self.composites)
        if not self.different:
            return f"{inside}: equal"
        said = f"{self.different} of {self.values} values differ, by {self.largest:g} at most"
        return f"{inside}: {said} ({self.symbol})"


def compare_regions(
    module: Any, *, extents: Mapping[str, int] | None = None, seed: int = 0
) -> list[RegionDifference]:
    """Runs each region by its backend's code alone, and compares it with the interpreter.

    Each is given random operands of its own, so that no region is blamed for another one's error:
    integers of 8 and 16 bits of the whole range, 0 or 1 of 64 (places), and floats around 0.

    Args:
        module: A Relax module that :func:`partition` made, whose code generator is registered.
        extents: Numbers for symbolic extents, by name; 2 by default.
        seed: Of the random operands.

    Returns:
        A row for each region, in no order.

    Raises:
        UnsupportedTargetError: It is no Relax module, or a code generator is missing or fails.
    """
    _need_relax(module, "regions are compared on Relax", "Relay builds no region alone")
    from qdqbridge.core.graph.interpreter import evaluate
    from qdqbridge.tvm.byoc.relax_host import regions_alone
    from qdqbridge.tvm.relax.executable import compile_divided
    from qdqbridge.tvm.relax.read import from_relax

    inside: dict[str, list[str]] = {}
    for composite in composites(module):
        inside.setdefault(composite.region, []).append(composite.name)
    rng, found = np.random.default_rng(seed), list[RegionDifference]()
    for symbol, alone in regions_alone(module).items():
        graph = from_relax(alone)
        given = {value.name: _random(value, extents or {}, rng) for value in graph.inputs}
        wanted = evaluate(graph, given)[0]
        got = compile_divided(alone).run(given)
        values = different = 0
        largest = 0.0
        for name in wanted:
            a, b = (each[name].astype(np.float64) for each in (got, wanted))
            other = (a != b) & ~(np.isnan(a) & np.isnan(b))
            values, different = values + a.size, different + int(np.count_nonzero(other))
            largest = max(largest, float(np.abs(a - b)[other].max(initial=0)))
        names = tuple(inside.get(symbol, ()))
        found.append(RegionDifference(symbol, names, values, different, largest))
    return found


def _random(value: Value, extents: Mapping[str, int], rng: np.random.Generator) -> NDArray[Any]:
    dims = value.type.shape or ()
    symbols = {name for d in dims if isinstance(d, str) for term, _ in terms(d) for name in term}
    numbers = {name: extents.get(name, 2) for name in symbols}
    shape = [int(with_numbers(dim, numbers)) for dim in dims]
    dtype = value.type.dtype.numpy
    if value.type.dtype.is_float:
        return rng.normal(size=shape).astype(dtype)
    low, high, own = 0, 1, value.type.dtype
    if own.is_integer and own.bits < _WORD:
        low, high = own.qmin, own.qmax
    elif own.bits == _WORD:  # a sum
        high = 1 << 16
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)
