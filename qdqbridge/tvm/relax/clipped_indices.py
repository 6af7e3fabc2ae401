"""Indices of ``take`` kept within their axis, whatever they are.

TVM's ``take`` reads where an index points, and warns of that at every compilation. What an index
beyond the axis means is said before (:mod:`qdqbridge.tvm.relax.emit.index_bounds`); this is so that
no memory of others is read meanwhile.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

_UNCHECKED = "fast"


def clipped(_: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``take`` that clips its indices; nothing where one has a mode of its own."""
    attrs: Any = call.attrs
    if attrs.mode != _UNCHECKED:
        return None
    return relax.op.take(call.args[0], call.args[1], attrs.axis, mode="clip")
