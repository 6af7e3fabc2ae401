"""What each Relax operator becomes: the rows that hosts share, and those of Relax's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qdqbridge.graph.graph import Value
from qdqbridge.qnn import read
from qdqbridge.qnn.read import Call, Reading, Row, images
from qdqbridge.qnn.read.site import Site
from qdqbridge.relax.read import (
    arithmetic,
    attention,
    decomposed,
    dynamic,
    filling,
    rearranging,
    standard,
)


def _row(row: Callable[[Site], Value]) -> Row:
    def made(reading: Reading, call: Call) -> Value:
        return row(Site(reading, call))

    return made


_PLAIN: Mapping[str, Row] = {
    **read.ROWS,
    **{name: _row(row) for name, row in images.ROWS.items()},
    **standard.STANDARD,
    **attention.ROWS,
    **filling.ROWS,
}
_WITH_OWN: Mapping[str, Row] = {
    **_PLAIN,
    **arithmetic.rows(_PLAIN),
    **rearranging.rows(_PLAIN),
}

ROWS: Mapping[str, Row] = MappingProxyType(
    {**_WITH_OWN, **decomposed.rows(_WITH_OWN), **dynamic.rows(_WITH_OWN)}
)
"""One row per operator, by Relay's name where that has it, else by Relax's."""
