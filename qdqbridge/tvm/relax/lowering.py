"""What is changed in a module before TVM compiles it, and is not in modules that users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from qdqbridge.tvm.relax.builder_turn import BUILDING
from qdqbridge.tvm.relax.clipped_indices import clipped
from qdqbridge.tvm.relax.empty_reductions import is_empty
from qdqbridge.tvm.relax.half_floats import HALF_FLOATS
from qdqbridge.tvm.relax.integer_power import integer_power
from qdqbridge.tvm.relax.nonfinite import NONFINITE
from qdqbridge.tvm.relax.slicing import computed_slice
from qdqbridge.tvm.relax.splitting import with_empty_parts
from qdqbridge.tvm.relax.tiling import untiled

_LOWERINGS: Mapping[str, Callable[[relax.BlockBuilder, ir.Call], relax.Expr | None]] = {
    "relax.take": clipped,
    "relax.tile": untiled,
    "relax.power": integer_power,
    "relax.split": with_empty_parts,
    "relax.dynamic_strided_slice": computed_slice,
    **HALF_FLOATS,
    **NONFINITE,
}
"""Operators that TVM would lower to something else than they mean, or to slow loops. They stay
what they are in the modules that are shown, saved and partitioned; only what is compiled is
rewritten."""
_AS_IT_IS = "vm.builtin.copy"
"""A function of TVM's runtime that returns what it is given."""


def lowered(module: ir.IRModule) -> ir.IRModule:
    """Returns the module with right lowerings in the place of the calls that need them."""
    with BUILDING:
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
        if is_empty(op.ty) and not isinstance(op.op, ir.GlobalVar):  # which looks at its operands
            return relax.op.zeros(op.ty.shape, op.ty.dtype)
        made: Any = self.visit_expr_post_order(op)
        row = _LOWERINGS.get(str(getattr(made.op, "name", "")))
        if row is None:
            return made
        call: Any = self.builder_.normalize(made)
        rewritten = row(self.builder_, call)
        return made if rewritten is None else rewritten

    def visit_generic_const_(self, op: Any) -> Any:
        """Returns an empty constant as a call: TVM 0.27 writes one that it cannot read again."""
        return relax.op.zeros(op.ty.shape, op.ty.dtype) if is_empty(op.ty) else op

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Hides from TVM how an extent is computed that has a name from here on.

        TVM 0.27 takes such a name for the expression itself, writes it out in every later shape,
        those of extents computed from it too, and simplifies them at every call: minutes for a
        decoder's masks. The runtime hands the shape on.
        """
        matched: Any = binding.ty
        if not isinstance(matched, relax.ShapeType) or matched.values is None:
            super().visit_match_cast_(binding)
            return
        unknown = relax.ShapeType(ndim=len(matched.values))
        value = self.visit_expr(binding.value)
        handed = self.builder_.emit(relax.op.call_pure_packed(_AS_IT_IS, value, ty_args=unknown))
        self.set_var_remap(binding.var, self.builder_.match_cast(handed, matched))
