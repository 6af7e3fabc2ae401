"""Loops of products of float32 that go along the columns, as vectors do.

TVM sums one element of the result after the other, and reads a column of the second operand for
each. With the columns innermost rows are read instead, which LLVM makes vectors of. Every element
is the sum of the same terms in the same order.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.s_tir import Schedule


def along_columns(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``matmul`` of float32 matrices as a call of such loops; None for others."""
    types: list[Any] = [operand.ty for operand in call.args]
    attributes: Any = call.attrs
    if any(str(each.dtype) != "float32" or each.ndim < _MATRIX for each in types):
        return None
    if attributes.out_dtype not in (None, "", "float32"):
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
