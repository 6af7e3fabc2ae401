"""What each Relax operator becomes: the rows that hosts share, and those of Relax's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qdqbridge.graph.graph import Value
from qdqbridge.qnn import read
from qdqbridge.qnn.read import Call, Reading, Row, images
from qdqbridge.qnn.read.site import ReadSite
from qdqbridge.relax.read import (
    arithmetic,
    attention,
    creation,
    decomposed,
    dynamic,
    reshape_permute,
    standard,
)


def _row(row: Callable[[ReadSite], Value]) -> Row:
    def made(reading: Reading, call: Call) -> Value:
        return row(ReadSite(reading, call))

    return made


_PLAIN: Mapping[str, Row] = {
    **standard.STANDARD,  # an operator that has a row of the table becomes that
    **read.ROWS,
    **{name: _row(row) for name, row in images.ROWS.items()},
    **attention.ROWS,
    **creation.ROWS,
}
_WITH_OWN: Mapping[str, Row] = {
    **_PLAIN,
    **arithmetic.rows(_PLAIN),
    **reshape_permute.rows(_PLAIN),
}

ROWS: Mapping[str, Row] = MappingProxyType(
    {**_WITH_OWN, **decomposed.rows(_WITH_OWN), **dynamic.rows(_WITH_OWN)}
)
"""One row per operator, by Relay's name where that has it, else by Relax's."""
