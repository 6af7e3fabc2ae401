"""Whether a module has images whose channels come last."""

from __future__ import annotations

from typing import Any

from tvm import ir

from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.read.visiting import calls_of

_LAST = ("NWC", "NHWC", "NDHWC")
_NAMES = ("data_layout", "layout")


@explained_errors(ReaderPlace("the module"))
def channels_last(module: ir.IRModule) -> bool:
    """Returns whether an operator of a module works on channels-last images.

    Such operators are read as channels-first ones between transposes, which then have to be
    carried to where they undo each other.
    """
    given = (call.attrs for call in calls_of(module) if call.attrs is not None)
    return any(str(_attribute(attrs, name)) in _LAST for attrs in given for name in _NAMES)


def _attribute(attrs: Any, name: str) -> Any:
    if isinstance(attrs, ir.DictAttrs):
        return attrs[name] if name in attrs.keys() else ""  # noqa: SIM118 (no mapping)
    return getattr(attrs, name, "")
