"""What each Relay operator becomes: the rows that hosts share, and those of Relay's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read import images, resize
from qdqbridge.tvm.qnn.read.reader import CallReader, Read, rows_of
from qdqbridge.tvm.qnn.read.reading import Row
from qdqbridge.tvm.relay.read import (
    data_movement,
    dynamic,
    elementwise,
    provenance,
    reductions,
    simulated,
    stored,
)

_OWN: Mapping[str, Callable[[CallReader], Read]] = {
    **dynamic.ROWS,
    **elementwise.ROWS,
    **data_movement.ROWS,
    **reductions.ROWS,
    simulated.NAME: simulated.simulated_quantize,
}
_PLAIN: Mapping[str, Row] = {**read.ROWS, **images.ROWS, **resize.HOST_RESIZE, **rows_of(_OWN)}
_FLOAT: Mapping[str, Row] = {
    **_PLAIN,
    "add": provenance.channels_last_bias(provenance.needless_bias(_PLAIN["add"])),
    "nn.bias_add": provenance.needless_bias(_PLAIN["nn.bias_add"]),
    **{name: provenance.channels_last_pool(_PLAIN[name]) for name in ("mean", "qnn.mean", "max")},
}

_STORED: Mapping[str, Row] = {**_FLOAT, **stored.rows(_FLOAT)}

ROWS: Mapping[str, Row] = MappingProxyType(
    {**_STORED, "cast": provenance.channels_last_cast(_STORED["cast"])}
)
"""One row per operator, by Relay's name."""
