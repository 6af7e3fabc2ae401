"""A model through a table: rewritten if asked, emitted in the dialect, partitioned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any, Literal, TypeAlias

from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tvm.byoc.constraints import Constraints
from qdqbridge.tvm.byoc.coverage import Coverage
from qdqbridge.tvm.byoc.limits import Limits
from qdqbridge.tvm.byoc.partition import partition
from qdqbridge.tvm.byoc.rewrites import Rewrite, named, prepare
from qdqbridge.tvm.byoc.shipped import ShippedTable, partition_shipped
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.byoc.tables import canonical

Dialect: TypeAlias = Literal["relax", "relay"]

_INT8 = Constraints(
    Limits(activations=("int8",), weights=("int8",), symmetric_weights=True),
    {"softmax": Limits(output_scale=1 / 256, output_zero_point=-128)},
)

TABLES: Mapping[str, Callable[[], Table]] = {
    "canonical": canonical,
    "int8": lambda: canonical("int8", constraints=_INT8),
    "per-tensor": lambda: canonical("per-tensor", constraints=Constraints(Limits(per_tensor=True))),
}
"""Our own tables: everything, a typical int8 backend, and one with a scale for each tensor."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A model after :func:`partition_model`.

    Attributes:
        module: The partitioned module of the dialect.
        coverage: What was taken, what was left, and why.
        rewrites: What was changed in the graph before.
    """

    module: Any
    coverage: Coverage
    rewrites: tuple[Rewrite, ...]


def partition_model(
    graph: Graph,
    table: str | Table = "canonical",
    *,
    dialect: Dialect = "relax",
    rewrite: bool = False,
    extents: Mapping[str, int] | None = None,
) -> Partitioned:
    """Emits a graph and partitions it.

    Args:
        graph: A canonical graph.
        table: A table, or the name of one: of ``TABLES``, on Relay also of the shipped ones; or
            ``FILE.py:NAME``, a variable of a Python file, which is run.
        dialect: ``relax``, or ``relay`` in an environment with TVM up to 0.19.
        rewrite: Make the graph eligible first, by legal rewrites.
        extents: Numbers for symbolic extents, by name; shipped tables want ``{"batch": 1}``.

    Raises:
        InputDataError: ``extents`` are no positive numbers of the graph's inputs; or the file of
            a table cannot be run, or has none of that name.
        UnsupportedTargetError: There is no such table or dialect here, or TVM cannot express
            the graph.
    """
    graph = with_numbers(graph, extents or {})
    shipped = None
    if isinstance(table, str):
        table, shipped = _find_pattern_table(table, dialect)
    done: list[Rewrite] = []
    if rewrite:
        wanted = table if shipped is None else named(shipped.rewrites)
        graph, done = prepare(graph, wanted)
    module = _emitted(graph, dialect, shipped)
    if shipped is None:
        divided, coverage = partition(module, table)
    else:
        divided, coverage = partition_shipped(module, shipped)
    return Partitioned(divided, coverage, tuple(done))


def _find_pattern_table(name: str, dialect: Dialect) -> tuple[Table, ShippedTable | None]:
    if name in TABLES:
        return TABLES[name](), None
    file, separator, variable = name.rpartition(":")
    if separator and file.endswith(".py"):
        return _table_of_file(Path(file), variable), None
    shipped: Mapping[str, ShippedTable] = _shipped() if dialect == "relay" else {}
    if name not in shipped:
        known = [*TABLES, *shipped]
        raise UnsupportedTargetError(
            f"there is no table '{name}' for {dialect.capitalize()}",
            why=f"there are {', '.join(known)}",
            fix="use one of these"
            if shipped
            else "use one of these; tables that TVM ships, such as ethos-u, need the dialect relay",
        )
    return Table(name, ()), shipped[name]


def _table_of_file(file: Path, variable: str) -> Table:
    """Runs a Python file of the user's and returns the table that it calls ``variable``."""
    try:
        found = run_path(str(file)).get(variable)
        table = found() if callable(found) else found
    except Exception as error:  # the user's code may raise anything
        raise InputDataError(
            f"the file of the table '{variable}' cannot be run",
            where=str(file),
            why=f"{type(error).__name__}: {error}",
            fix="run it with Python alone first",
        ) from error
    if not isinstance(table, Table):
        raise InputDataError(
            f"'{variable}' is no pattern table",
            where=str(file),
            why=f"it is {'not defined' if found is None else type(table).__name__}",
            fix="give a qdqbridge.tvm.byoc.Table, or a function without arguments that makes one",
        )
    return table


def _need(dialect: Dialect) -> None:
    if find_spec("tvm") is None or find_spec(f"tvm.{dialect}") is None:
        fixes = {
            "relax": "pip install 'qdqbridge[relax]'",
            "relay": "make an environment with it by scripts/relay_env",
        }
        have = "TVM is not installed" if find_spec("tvm") is None else "this TVM is without it"
        raise UnsupportedTargetError(
            f"{dialect.capitalize()} is not here", why=have, fix=fixes[dialect]
        )


def _shipped() -> Mapping[str, ShippedTable]:
    _need("relay")
    if find_spec("qdqbridge.tvm.relay.tables") is None:
        return {}
    tables: Any = import_module("qdqbridge.tvm.relay.tables")
    return tables.TABLES


def _emitted(graph: Graph, dialect: Dialect, shipped: ShippedTable | None) -> Any:
    _need(dialect)
    if dialect == "relax":
        from qdqbridge.tvm.relax.emit import emit

        return emit(graph)[0]
    from qdqbridge.tvm.relay.emit import emit as emit_relay

    variant = "canonical" if shipped is None else shipped.variant
    return emit_relay(graph, variant)[0]
