"""The functions of one module in another: what a node stands for, and what that calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator


def added(builder: relax.BlockBuilder, module: ir.IRModule, name: str) -> ir.GlobalVar:
    """Adds ``main`` of a module, and whatever that calls, under new names."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    main: Any = functions["main"].without_attr("global_symbol")
    for attribute in ("num_input", "input_names", "input_types", "output_names"):
        main = main.without_attr(attribute)
    return builder.add_func(_Moved(builder, functions, {}).visit_expr(main), name)  # type: ignore[arg-type]


@mutator
class _Moved(PyExprMutator):
    """Adds the functions that are called to another module, and calls them there."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        functions: Mapping[str, Any],
        names: dict[str, ir.GlobalVar],
    ) -> None:
        super().__init__()
        self.target, self.functions, self.names = builder, functions, names

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        name = op.name_hint
        if name not in self.names:
            function = self.functions[name].without_attr("global_symbol")
            if isinstance(function, relax.Function):
                inner: Any = _Moved(self.target, self.functions, self.names)
                function = inner.visit_expr(function)
            self.names[name] = self.target.add_func(function, name)
        return self.names[name]
