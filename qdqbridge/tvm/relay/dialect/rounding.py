"""Rounding half to even in Relay's own operators; ``relay.round`` rounds halves away from zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay as _relay

from qdqbridge.tvm.relay.dialect.host import typed

relay: Any = _relay


def rint(x: Any) -> Any:
    """Returns floats rounded to whole numbers, halves to even ones."""
    low = typed(relay.floor(x))
    rest = typed(relay.subtract(x, low))
    even = relay.multiply(relay.floor(relay.multiply(low, _like(x, 0.5))), _like(x, 2))
    tie = relay.logical_and(relay.equal(rest, _like(x, 0.5)), relay.not_equal(low, even))
    up = relay.logical_or(relay.greater(rest, _like(x, 0.5)), tie)
    return relay.where(up, relay.add(low, _like(x, 1)), low)


def _like(x: Any, value: float) -> Any:
    dtype = str(typed(x).checked_type.dtype)
    return relay.Constant(tvm.nd.array(np.asarray(value, dtype)))
