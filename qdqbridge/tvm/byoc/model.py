"""A model through a table: rewritten if asked, emitted in the dialect, partitioned."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from traceback import extract_tb
from typing import Any, Literal, Protocol, TypeAlias

from qdqbridge.core.arguments import RELAY_INSTALL
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.tvm.byoc.constraints import Constraints, Limits
from qdqbridge.tvm.byoc.coverage import Coverage, coverage, reasons_of
from qdqbridge.tvm.byoc.partition import partition
from qdqbridge.tvm.byoc.rewrites import Rewrite, named, prepare
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.byoc.tables import canonical

# Tables that ship with TVM or a vendor, on Relay: the small interface that an adapter implements.
#
# An adapter (``qdqbridge.tvm.relay.tables``) says how the table wants a model written and hands
# out its own patterns and checks; partitioning and words for what is left are here, the same for
# all.


class ShippedTable(Protocol):
    """What ``qdqbridge.tvm.relay.tables.TABLES[name]`` must offer."""

    @property
    def name(self) -> str:
        """The codegen's name, the prefix of its composites: ``cmsis-nn``."""
        ...

    @property
    def variant(self) -> str:
        """The variant of ``relay.emit`` that it matches: ``tflite``, ``dnnl``, ``fq2i``."""
        ...

    @property
    def rewrites(self) -> tuple[str, ...]:
        """What :func:`qdqbridge.tvm.byoc.prepare` may do for it, by name."""
        ...

    def shims(self) -> AbstractContextManager[object]:
        """Returns a context in which its Python module imports and its checks run."""
        ...

    def patterns(self) -> Sequence[Any]:
        """Returns (name, pattern) or (name, pattern, check), as ``MergeComposite`` takes them."""
        ...

    def others(self) -> Sequence[Any]:
        """Returns entries of the same form for what is taken by other means; for words only."""
        ...

    def prepared(self, module: Any) -> Any:
        """Returns the module after the table's own passes that need no codegen."""
        ...

    def why(self, entry: str, expr: Any) -> list[str]:
        """Returns why the check of ``entry`` refuses an expression; nothing where unknown."""
        ...


def partition_shipped(
    module: Any, table: ShippedTable, *, regions: bool = True
) -> tuple[Any, Coverage]:
    """As :func:`qdqbridge.tvm.byoc.partition`, by a shipped table's own patterns and checks.

    Args:
        module: A Relay module in the table's variant.
        table: The adapter.
        regions: Group neighbouring composites into regions.
    """
    from tvm import relay

    from qdqbridge.tvm.byoc import relay_host
    from qdqbridge.tvm.byoc.relay_host import explaining

    with table.shims(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TVM's tables of TVM's own functions
        module = relay.transform.InferType()(table.prepared(module))
        patterns = table.patterns()
        divided = relay_host.divided(module, patterns, table.name, regions=regions)
        explain = reasons_of(explaining(table.name, [*patterns, *table.others()], table.why))
        return divided, coverage(table.name, relay_host.contents(divided), explain)


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
    shipped, file = None, None
    if isinstance(table, str):
        file = table.rpartition(":")[0]
        table, shipped = _find_pattern_table(table, dialect)
    done: list[Rewrite] = []
    if rewrite:
        wanted = table if shipped is None else named(shipped.rewrites)
        graph, done = prepare(graph, wanted)
    module = _emitted(graph, dialect, shipped)
    if shipped is None:
        with _of_user(file):
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
            fix=f"write {name}:TABLE, with the name that the table has in the file"
            if name.endswith(".py")
            else "use one of these"
            if shipped
            else "use one of these; tables that TVM ships, such as ethos-u, need the dialect relay",
        )
    return Table(name, ()), shipped[name]


@contextmanager
def _of_user(file: str | None) -> Generator[None]:
    """Says that an error comes from a user's file, if one of its functions raises it."""
    try:
        yield
    except QdqBridgeError:
        raise
    except Exception as error:  # a user's check may raise anything
        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == file]
        if not lines:
            raise
        raise InputDataError(
            "a check or description of the table fails",
            where=f"{file}, line {lines[-1]}",
            why=f"{type(error).__name__}: {error}",
            fix="let it return sentences for every record that it is given",
        ) from error


def _table_of_file(file: Path, variable: str) -> Table:
    """Runs a Python file of the user's and returns the table that it calls ``variable``."""
    sys.path.insert(0, str(file.parent))  # as Python alone does
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
    finally:
        sys.path.remove(str(file.parent))
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
            "relay": RELAY_INSTALL,
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
