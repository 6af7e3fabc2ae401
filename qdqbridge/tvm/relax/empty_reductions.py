"""Reductions and products over open axes and empty ones, whose loops may have no step.

TVM's loops set a result at their first step, so that a reduction of no elements is what the memory
held. Here results are set before the loops: a sum of nothing is 0, as ONNX says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.s_tir import Schedule

from qdqbridge.tvm.relax.dialect.registration import DATA_PARALLEL

Legalize = Callable[[relax.BlockBuilder, ir.Call], "relax.Expr"]
"""Returns the call of a function of loops that it adds to the builder."""


def set_first(
    builder: relax.BlockBuilder, call: ir.Call, legalize: Legalize | None = None
) -> relax.Expr | None:
    """Returns a reduction as a call of such loops; None where all its axes have elements.

    Args:
        builder: Gets the function.
        call: A reduction of one tensor, with the attribute ``axis``; a ``matmul``, an ``einsum`` or
            a convolution.
        legalize: Makes the loops; TVM's own by default.
    """
    summed = _summed_extents(call)
    if summed is None or all(isinstance(e, tirx.IntImm) and int(e) for e in summed):
        return None
    if str(call.op.name) == "relax.mean" and any(map(_is_zero, summed)):
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


def product_of_nothing(call: ir.Call) -> relax.Expr | None:
    """Returns the zeros that a product is one of whose operands has no element; None for others."""
    if any(is_empty(tensor.ty) for tensor in _tensors(call)):
        return relax.op.zeros(call.ty.shape, call.ty.dtype)
    return None


def is_empty(type_: Any) -> bool:
    """True of a tensor that is known to have no element; TVM has no loops that make one."""
    shape = getattr(type_, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(map(_is_zero, shape.values))


def _tensors(call: ir.Call) -> list[Any]:
    first: Any = call.args[0]
    return [*first.fields] if isinstance(first, relax.Tuple) else [*call.args]


def _summed_extents(call: ir.Call) -> list[Any] | None:
    """Returns the extents that a sum may go along; None where a shape is unknown."""
    shapes: list[Any] = [getattr(tensor.ty, "shape", None) for tensor in _tensors(call)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return None
    name, attrs = str(call.op.name), call.attrs
    first = list(shapes[0].values)
    if name == "relax.matmul":
        return first[-1:]
    if name == "relax.einsum":
        return [extent for shape in shapes for extent in shape.values]
    if name.startswith("relax.nn.conv"):
        return list(shapes[1].values)  # all of the weight but the channels of the result
    axes: Any = getattr(attrs, "axis", None)
    return first if axes is None else [first[int(axis)] for axis in axes]
