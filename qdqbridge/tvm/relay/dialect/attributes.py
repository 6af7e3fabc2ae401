"""Attributes of calls as ``DictAttrs``, without loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tir


def dict_attrs(attrs: Mapping[str, Any]) -> Any:
    """Returns plain Python values as TVM's ``DictAttrs``; floats keep all their digits."""
    return tvm.ir.make_node("DictAttrs", **{name: _node(value) for name, value in attrs.items()})


def names_of(attrs: Any) -> frozenset[str]:
    """Returns the names of attributes; a call or function may have no record of them at all."""
    return frozenset() if attrs is None else frozenset(str(name) for name in attrs.keys())  # noqa: SIM118


def values_of(attrs: Any) -> dict[str, Any]:
    """Returns TVM's values of attributes by name."""
    return {name: attrs[name] for name in sorted(names_of(attrs))}


def _node(value: Any) -> Any:
    if isinstance(value, bool):
        return tir.IntImm("bool", value)
    if isinstance(value, int):
        return tir.IntImm("int32" if -(1 << 31) <= value < 1 << 31 else "int64", value)
    if isinstance(value, float):
        return tir.FloatImm("float64", value)
    if isinstance(value, tuple | list):
        return tvm.runtime.convert([_node(item) for item in value])
    return value
