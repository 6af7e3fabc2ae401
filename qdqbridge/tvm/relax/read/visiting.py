"""The calls of a module, found in time that grows with their number alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import ir, relax


def calls_of(module: ir.IRModule) -> Iterator[Any]:
    """Yields the calls of a module's Relax functions, those inside of branches too.

    TVM's visitors enter the type of a variable wherever it is read: a tuple of many fields takes
    them time in the square of its length.
    """
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            yield from _inside(function.body)


def _inside(body: Any) -> Iterator[Any]:
    seen: set[Any] = set()
    stack = [body]
    while stack:
        expr = stack.pop()
        if isinstance(expr, relax.Var | ir.GenericConst) or expr in seen:
            continue
        seen.add(expr)
        if isinstance(expr, ir.Call):
            yield expr
        stack += reversed(_relax_subexprs(expr))


def _relax_subexprs(expr: Any) -> list[Any]:
    if isinstance(expr, relax.SeqExpr):
        bindings = [binding for block in expr.blocks for binding in block.bindings]
        return [*(binding.value for binding in bindings), expr.body]
    if isinstance(expr, ir.Call):
        return [expr.op, *expr.args]
    if isinstance(expr, relax.If):
        return [expr.cond, expr.true_branch, expr.false_branch]
    if isinstance(expr, relax.Function):
        return [expr.body]
    if isinstance(expr, relax.Tuple):
        return list(expr.fields)
    return [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []
