"""Splits with parts of no element, which TVM's loops refuse: it wants every part to begin later."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from tvm import ir, relax, tirx

from qdqbridge.tvm.relax.empty_reductions import is_empty


def with_empty_parts(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``split`` as slices, and zeros where they are empty; None where TVM splits it."""
    attrs: Any = call.attrs
    cuts: Any = attrs.indices_or_sections
    if isinstance(cuts, int | tirx.IntImm):
        return None
    begins = [0, *(int(cut) for cut in cuts)]
    if all(begin < end for begin, end in pairwise(begins)):
        return None
    x: Any = call.args[0]
    axis, slices = int(attrs.axis), cast("Any", relax.op.strided_slice)
    ends = [*begins[1:], int(x.ty.shape.values[axis])]
    parts: list[Any] = []
    for type_, begin, end in zip(call.ty.fields, begins, ends, strict=True):
        if is_empty(type_):
            part: Any = relax.op.zeros(type_.shape, type_.dtype)
        else:
            part = slices(x, axes=[axis], begin=[begin], end=[end])
        parts.append(builder.emit(part))
    return relax.Tuple(parts)
