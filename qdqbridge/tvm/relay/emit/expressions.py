"""Types of expressions, and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.tvm.relay.dialect.host import typed

relay: Any = _relay
Expr = Any


def shape_of(x: Expr) -> list[int]:
    """Returns the extents of an expression."""
    return [int(extent) for extent in typed(x).checked_type.shape]


def dtype_of(x: Expr) -> str:
    """Returns the element type of an expression."""
    return str(typed(x).checked_type.dtype)


def constant(array: NDArray[Any]) -> Expr:
    """Returns a constant of the array's element type (``relay.const`` makes 64 bits 32)."""
    return typed(relay.Constant(tvm.nd.array(array)))


def like(x: Expr, value: float) -> Expr:
    """Returns a number of the element type of ``x``."""
    return constant(np.asarray(value, dtype_of(x)))
