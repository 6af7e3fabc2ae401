"""What each Relax operator becomes: the rows that hosts share, and those of Relax's own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read import Row, images, resize
from qdqbridge.tvm.relax.read import (
    arithmetic,
    attention,
    creation,
    dynamic,
    reshape_permute,
    standard,
)

_PLAIN: Mapping[str, Row] = {
    **standard.STANDARD,  # an operator that has a row of the table becomes that
    **read.ROWS,
    **images.ROWS,
    **resize.HOST_RESIZE,
    **attention.ROWS,
    **creation.ROWS,
}
_WITH_OWN: Mapping[str, Row] = {
    **_PLAIN,
    **arithmetic.rows(_PLAIN),
    **reshape_permute.rows(_PLAIN),
}

ROWS: Mapping[str, Row] = MappingProxyType({**_WITH_OWN, **dynamic.rows(_WITH_OWN)})
"""One row per operator, by Relay's name where that has it, else by Relax's."""
