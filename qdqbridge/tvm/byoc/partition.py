"""``partition(mod, table) -> (mod, Coverage)``, the same call on both hosts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    if not host_of(module).__name__.endswith("relax_host"):
        raise UnsupportedTargetError(
            "only Relax modules are made runnable",
            why="Relay has no build that runs regions without their codegen",
            fix="partition with regions=False and build that",
        )
    from qdqbridge.tvm.byoc.relax_host import runnable as lifted

    return lifted(module)
