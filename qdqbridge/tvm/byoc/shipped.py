"""Tables that ship with TVM or a vendor, on Relay: the small interface that an adapter implements.

An adapter (``qdqbridge.tvm.relay.tables``) says how the table wants a model written and hands out
its own patterns and checks; partitioning and words for what is left are here, the same for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from qdqbridge.tvm.byoc.coverage import Coverage, coverage, reasons_of


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
    from qdqbridge.tvm.byoc.relay_patterns import explaining

    with table.shims(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TVM's tables of TVM's own functions
        module = relay.transform.InferType()(table.prepared(module))
        patterns = table.patterns()
        divided = relay_host.divided(module, patterns, table.name, regions=regions)
        explain = reasons_of(explaining(table.name, [*patterns, *table.others()], table.why))
        return divided, coverage(table.name, relay_host.contents(divided), explain)
