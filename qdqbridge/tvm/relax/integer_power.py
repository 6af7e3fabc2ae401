"""Integers raised to integers exactly; TVM raises floats only."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from qdqbridge.tvm.qnn.dialect.broadcast import broadcast_indices
from qdqbridge.tvm.qnn.dialect.kernel import stage

Prim = Any


def integer_power(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns what stands for ``power`` of two integers of one type; floats stay TVM's."""
    kind = str(call.ty.dtype)
    if "int" not in kind or any(arg.ty.shape is None for arg in call.args):
        return None
    shape = list(call.ty.shape.values)

    def power(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        bits = np.iinfo(kind).bits - 1  # without the sign
        bit: Any = te.reduce_axis((0, bits), name="bit")

        def raised(*i: Prim) -> Prim:
            base, exponent = (t(*broadcast_indices(i, t.shape)) for t in (a, b))
            one, place = tirx.const(1, kind), (bits - 1 - bit).astype(kind)
            return _HORNER(tirx.Select((exponent >> place) & one == one, base, one), axis=bit)

        def element(*i: Prim) -> Prim:
            base, exponent = (t(*broadcast_indices(i, t.shape)) for t in (a, b))
            return tirx.Select(exponent < 0, _cut(base, exponent, kind), whole(*i))

        whole = stage(shape, raised, "raised")
        return stage(shape, element, "integer_power")

    return builder.call_te(power, *call.args, primfunc_name_hint="integer_power")


_HORNER = te.comm_reducer(
    lambda raised, factor: raised * raised * factor, lambda kind: tirx.const(1, kind), "horner"
)
"""Squares and multiplies from the highest bit of the exponent on; the order is the loop's."""


def _cut(base: Prim, exponent: Prim, kind: str) -> Prim:
    """Returns a power of a negative exponent, as the row of Pow has it."""
    zero, one = tirx.const(0, kind), tirx.const(1, kind)
    unit = tirx.Select(exponent & one == zero, one, base)
    return tirx.Select(tirx.any(base == one, base == -one), unit, zero)
