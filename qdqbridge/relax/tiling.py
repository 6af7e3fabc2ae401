"""Tiles as tables of indices, because LLVM computes their remainders wrongly.

TVM tiles by ``x[i % extent]``. The loop vectorizer of LLVM 22 (TVM 0.27) takes such an index for
a consecutive one where the extent is a power of two below the vector's length, so that with AVX2
or AVX-512 wrong elements are read, some of them behind the tensor's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator


def without_remainders(module: ir.IRModule) -> ir.IRModule:
    """Returns the module with ``take`` of constant indices in the place of ``tile``.

    Axes whose extent is no number keep their ``tile``: LLVM does not see a power of two there.
    """
    tiled = _Untiled(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            changed: Any = tiled.visit_expr(function)
            tiled.builder_.update_func(variable, changed)
    return tiled.builder_.get()


@mutator
class _Untiled(PyExprMutator):
    """Rewrites the calls of ``relax.tile`` in one module."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        made: Any = self.visit_expr_post_order(op)
        if str(getattr(made.op, "name", "")) != "relax.tile":
            return made
        x: Any = made.args[0]
        repeats = [int(count) for count in made.attrs.repeats]
        if len(repeats) != len(x.ty.shape):
            return made
        for axis, extent in enumerate(x.ty.shape):
            if repeats[axis] > 1 and isinstance(extent, tirx.IntImm):
                index = relax.const(np.arange(int(extent) * repeats[axis]) % int(extent), "int64")
                x = self.builder_.emit(relax.op.take(x, index, axis, mode="clip"))
                repeats[axis] = 1
        return relax.op.tile(x, repeats) if any(count != 1 for count in repeats) else x
