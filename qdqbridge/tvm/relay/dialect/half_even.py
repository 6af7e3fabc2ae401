"""A switch: Relay's own ``qnn`` operators with the contract's arithmetic, or with Relay's.

Relay rounds halves away from zero (or up), requantizes each operand of an addition by itself, and
truncates averages. While :func:`half_even` is on, its operators are canonicalized by the same
lowerings as the dialect's, so that a build computes what the interpreter computes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relay as _relay
from tvm.ir import Op

from qdqbridge.tvm.relay.dialect.host import typed
from qdqbridge.tvm.relay.dialect.registration import CANONICALIZE, NATIVE, RECORDS, canonicalization

# Rounding half to even in Relay's own operators; ``relay.round`` rounds halves away from zero.

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


LEGALIZE = "FTVMQnnLegalize"
_ATTRIBUTES = (CANONICALIZE, LEGALIZE)
_LEVEL = 10
Functions = dict[tuple[str, str], Any]
"""By operator and attribute; None where an operator has no such attribute."""


@contextmanager
def half_even(enabled: bool = True) -> Generator[None, None, None]:
    """Rounds halves to even in every build within, or (False) as Relay does.

    What was set before is back afterwards; contexts nest. ``qdqbridge.tvm.relay.build`` is always
    within one. Modules do not change, only what TVM's canonicalization makes of them. (Relay's own
    canonicalization of ``qnn.requantize`` writes its defaults into the attributes of the module
    that it is given: a module that was built without this context keeps them.)

    Args:
        enabled: False brings Relay's own arithmetic back within an outer context.
    """
    before = _current()
    _install(_OURS if enabled else _RELAYS)
    try:
        yield
    finally:
        _install(before)


def _current() -> Functions:
    return {
        (row.name, key): Op.get(row.name).get_attr(key) for row in NATIVE for key in _ATTRIBUTES
    }


def _install(functions: Functions) -> None:
    for (name, key), function in functions.items():
        operator = Op.get(name)
        operator.reset_attr(key)
        if function is not None:
            operator.set_attr(key, function, _LEVEL)


_RELAYS = _current()
"""Relay's own functions, taken when this module is imported."""

_OURS: Functions = {
    (row.name, key): canonicalization(RECORDS[row.name]) if key == CANONICALIZE else None
    for row in NATIVE
    for key in _ATTRIBUTES
}
"""Legalizations are left out: Relay's make tables and shifted types of what we compute."""
