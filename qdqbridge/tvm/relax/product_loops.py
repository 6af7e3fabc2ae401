"""Loops of products, summed in float32, that go along the columns, as vectors do.

TVM sums one element of the result after the other, and reads a column of the second operand for
each. With the columns innermost rows are read instead, which LLVM makes vectors of. Every element
is the sum of the same terms in the same order.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.s_tir import Schedule


def along_columns(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``matmul`` of matrices that gives float32 as a call of such loops, else None."""
    types: list[Any] = [operand.ty for operand in call.args]
    kinds = {str(each.dtype) for each in types}
    if len(kinds) != 1 or not kinds <= _FLOATS or any(each.ndim < _MATRIX for each in types):
        return None
    if str(call.ty.dtype) != "float32":
        return None
    own = relax.BlockBuilder()
    made: Any = ir.Op.get("relax.matmul").get_attr("FLegalize")(own, call)
    schedule: Any = Schedule(own.get()[made.args[0]])
    block = schedule.get_sblock("matmul")
    *_, column, term = schedule.get_loops(block)
    schedule.reorder(term, column)
    schedule.decompose_reduction(block, term)
    function = builder.add_func(schedule.mod["main"], "matmul")  # one for all that are alike
    return relax.Call(made.op, [function, *made.args[1:]], made.attrs, made.ty_args)


_MATRIX = 2
_FLOATS = {"float32", "float16", "bfloat16"}
