"""Reductions over open axes and empty ones, whose loops may have no step.

TVM's loops set a result at their first step, so that a reduction of no elements is what the memory
held. Here results are set before the loops: a sum of nothing is 0, as ONNX says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.s_tir import Schedule

from qdqbridge.relax.dialect.host import DATA_PARALLEL

Legalize = Callable[[relax.BlockBuilder, ir.Call], "relax.Expr"]
"""Returns the call of a function of loops that it adds to the builder."""


def set_first(
    builder: relax.BlockBuilder, call: ir.Call, legalize: Legalize | None = None
) -> relax.Expr | None:
    """Returns a reduction as a call of such loops; None where all its axes have elements.

    Args:
        builder: Gets the function.
        call: A reduction of one tensor, with the attribute ``axis``.
        legalize: Makes the loops; TVM's own by default.
    """
    shape: Any = getattr(call.args[0].ty, "shape", None)
    attrs: Any = call.attrs
    if not isinstance(shape, relax.ShapeExpr):
        return None
    axes = range(len(shape.values)) if attrs.axis is None else [int(axis) for axis in attrs.axis]
    if all(isinstance(e, tirx.IntImm) and int(e) for e in (shape.values[axis] for axis in axes)):
        return None
    if str(call.op.name) == "relax.mean" and any(_is_zero(shape.values[axis]) for axis in axes):
        kind = str(call.ty.dtype)  # TVM divides by the number of elements when it compiles
        number = np.array(np.nan if "float" in kind else 0, kind)
        return relax.op.broadcast_to(relax.const(number, kind), call.ty.shape)
    own = relax.BlockBuilder()
    made: Any = (legalize or ir.Op.get(str(call.op.name)).get_attr("FLegalize"))(own, call)
    schedule: Any = Schedule(own.get()[made.args[0]])
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if schedule.get(block).init is not None:
            kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
            first = schedule.get_loops(block)[kinds.count(DATA_PARALLEL)]
            schedule.decompose_reduction(block, first)
    name = str(call.op.name).removeprefix("relax.")
    function = builder.add_func(schedule.mod["main"].without_attr("global_symbol"), name)
    return relax.Call(made.op, [function, *made.args[1:]], made.attrs, made.ty_args)


def _is_zero(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and not int(extent)
