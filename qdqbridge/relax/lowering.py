"""Operators that TVM would lower to something else than they mean, lowered here before TVM does.

They stay what they are in the modules that are shown, saved and partitioned; only what is compiled
is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from qdqbridge.relax.integer_power import integer_power
from qdqbridge.relax.nonfinite import NONFINITE
from qdqbridge.relax.tiling import untiled

_ROWS: Mapping[str, Callable[[relax.BlockBuilder, ir.Call], relax.Expr | None]] = {
    "relax.tile": untiled,
    "relax.power": integer_power,
    **NONFINITE,
}


def lowered(module: ir.IRModule) -> ir.IRModule:
    """Returns the module with right lowerings in the place of the calls that need them."""
    lowering = _Lowering(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            changed: Any = lowering.visit_expr(function)
            lowering.builder_.update_func(variable, changed)
    return lowering.builder_.get()


@mutator
class _Lowering(PyExprMutator):
    """Rewrites the calls of one module."""

    def visit_call_(self, op: ir.Call) -> relax.Expr:
        made: Any = self.visit_expr_post_order(op)
        row = _ROWS.get(str(getattr(made.op, "name", "")))
        if row is None:
            return made
        call: Any = self.builder_.normalize(made)
        rewritten = row(self.builder_, call)
        return made if rewritten is None else rewritten
