"""Composites that state their symbolic extents themselves.

TVM's outlining makes a parameter of a target shape that holds a symbolic extent: the shape is then
no longer stated inside, the result's type is lost, and the operator cannot be legalized. Here such
parameters are replaced by the shape that their type states.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator


def with_stated_extents(module: ir.IRModule) -> ir.IRModule:
    """Returns a module whose composites take no shapes as parameters."""
    stated: dict[str, Any] = {}
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function) and "Composite" in (function.attrs or {}):
            shapes: Any = _shapes(function)
            if shapes:
                stated[variable.name_hint] = function.bind_params(shapes)
    if not stated:
        return module
    visitor = _Callers(module, stated)
    main: Any = visitor.visit_expr(module["main"])
    visitor.builder_.update_func(module.get_global_var("main"), main)
    changed = visitor.builder_.finalize()
    for name in stated:
        del changed[module.get_global_var(name)]
    return changed


def _shapes(function: relax.Function) -> dict[relax.Var, relax.ShapeExpr]:
    found: dict[relax.Var, relax.ShapeExpr] = {}
    for parameter in function.params:
        values = getattr(parameter.ty, "values", None)
        if isinstance(parameter.ty, relax.ShapeType) and values is not None:
            found[parameter] = relax.ShapeExpr(list(values))
    return found


@mutator
class _Callers(PyExprMutator):
    """Calls the functions that state their shapes."""

    def __init__(self, module: ir.IRModule, stated: dict[str, Any]) -> None:
        super().__init__(module)
        self._added = {
            name: self.builder_.add_func(function, name) for name, function in stated.items()
        }

    def visit_call_(self, op: Any) -> Any:
        call: Any = self.visit_expr_post_order(op)
        callee = self._added.get(getattr(call.op, "name_hint", ""))
        if callee is None:
            return call
        kept = [arg for arg in call.args if not isinstance(arg.ty, relax.ShapeType)]
        return relax.Call(callee, kept)
