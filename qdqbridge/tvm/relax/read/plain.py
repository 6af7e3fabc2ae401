"""TVM's values as Python numbers, strings and tuples."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, tirx

Decoded = tuple[str, list[Any], dict[str, Any]]
"""Relay's operator, the tensor arguments, the attributes."""


def plain(value: Any) -> Any:
    """Returns a TVM value as Python numbers, strings and tuples; symbolic extents as they are."""
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, relax.ShapeExpr):
        return tuple(plain(item) for item in value.values)
    if isinstance(value, relax.Tuple):
        return tuple(plain(item) for item in value.fields)
    if isinstance(value, ir.Array | tuple | list):
        return tuple(plain(item) for item in value)
    return value
