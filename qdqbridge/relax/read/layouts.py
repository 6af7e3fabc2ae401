"""Whether a module has images whose channels come last."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from qdqbridge.relax.read.module_errors import ReaderPlace, explained_errors

_LAST = ("NWC", "NHWC", "NDHWC")
_NAMES = ("data_layout", "layout")


@explained_errors(ReaderPlace("the module"))
def channels_last(module: ir.IRModule) -> bool:
    """Returns whether an operator of a module works on channels-last images.

    Such operators are read as channels-first ones between transposes, which then have to be
    carried to where they undo each other.
    """
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.Call) and expr.attrs is not None:
            found.extend(str(_attribute(expr.attrs, name)) for name in _NAMES)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return any(layout in _LAST for layout in found)


def _attribute(attrs: Any, name: str) -> Any:
    if isinstance(attrs, ir.DictAttrs):
        return attrs[name] if name in attrs.keys() else ""  # noqa: SIM118 (no mapping)
    return getattr(attrs, name, "")
