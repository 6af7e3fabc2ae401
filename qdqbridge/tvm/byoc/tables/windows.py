"""Pools, reductions and resizing."""

from __future__ import annotations

from collections.abc import Iterable

from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import Anything, CallPattern
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Entry
from qdqbridge.tvm.byoc.tables.accumulations import FOUR
from qdqbridge.tvm.byoc.tables.elementwise import one
from qdqbridge.tvm.byoc.terms import Tensor

_INTEGERS = frozenset(("int8", "uint8", "int16", "uint16"))


def integers_only(values: Iterable[Tensor]) -> list[str]:
    """Returns why values are refused that are no codes."""
    wrong = sorted({value.dtype for value in values} - _INTEGERS)
    return [f"it works on {', '.join(wrong)}, 8- or 16-bit integers are taken"] if wrong else []


def on_codes(record: Record) -> list[str]:
    """Returns why a record that states no parameters is refused: its data are no codes."""
    return integers_only((*record.inputs, record.output))


POOLS = (
    *(
        one(
            f"avg_pool{rank}d", f"qnn.avg_pool{rank}d", descriptions.average_pool, Anything(), *FOUR
        )
        for rank in (2, 1, 3)
    ),
    *(
        one(f"max_pool{rank}d", f"nn.max_pool{rank}d", descriptions.max_pool, Anything()).checked(
            on_codes
        )
        for rank in (2, 1, 3)
    ),
)
REDUCTIONS = (
    one("mean", "qnn.mean", descriptions.reduction, Anything(), *FOUR),
    one("sum", "qnn.sum", descriptions.reduction, Anything(), *FOUR),
    Entry("max", CallPattern("max", Anything()).named("op"), descriptions.extremum, on_codes),
    Entry("min", CallPattern("min", Anything()).named("op"), descriptions.extremum, on_codes),
)
RESIZES = tuple(
    one(name, f"qnn.{name}", descriptions.resize, Anything(), *FOUR)
    for name in ("resize2d", "resize1d", "resize3d", "resize")
)
