"""What each Relay operator becomes: the rows that hosts share, and those of Relay's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qdqbridge.qnn import read
from qdqbridge.qnn.read import images
from qdqbridge.qnn.read.call import Call
from qdqbridge.qnn.read.reading import Reading, Row
from qdqbridge.qnn.read.site import Read, Site
from qdqbridge.relay.read import (
    claims,
    decomposed,
    dynamic,
    elementwise,
    moving,
    reducing,
    simulated,
    stored,
)

_OWN: Mapping[str, Callable[[Site], Read]] = {
    **dynamic.ROWS,
    **elementwise.ROWS,
    **images.ROWS,
    **moving.ROWS,
    **reducing.ROWS,
    simulated.NAME: simulated.simulated_quantize,
}


def _row(row: Callable[[Site], Read]) -> Row:
    def made(reading: Reading, call: Call) -> Read:
        return row(Site(reading, call))

    return made


_PLAIN: Mapping[str, Row] = {**read.ROWS, **{name: _row(row) for name, row in _OWN.items()}}
_FLOAT: Mapping[str, Row] = {
    **_PLAIN,
    "add": decomposed.layer_norm(claims.channels_last_bias(claims.needless_bias(_PLAIN["add"]))),
    "where": decomposed.half_even(_PLAIN["where"]),
    "nn.bias_add": claims.needless_bias(_PLAIN["nn.bias_add"]),
    **{name: claims.channels_last_pool(_PLAIN[name]) for name in ("mean", "qnn.mean", "max")},
}

_STORED: Mapping[str, Row] = {**_FLOAT, **stored.rows(_FLOAT)}

ROWS: Mapping[str, Row] = MappingProxyType(
    {**_STORED, "cast": claims.channels_last_cast(_STORED["cast"])}
)
"""One row per operator, by Relay's name."""
