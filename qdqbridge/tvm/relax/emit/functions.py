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
        moving: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.target, self.functions, self.names, self.moving = builder, functions, names, moving

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        name = op.name_hint
        if name not in self.names:
            function = self.functions[name].without_attr("global_symbol")
            if name in self.moving:  # it calls itself, so others find it before it is moved
                function = self._declared(function)
            elif isinstance(function, relax.Function):
                moving = self.moving | {name}
                inner: Any = _Moved(self.target, self.functions, self.names, moving)
                function = inner.visit_expr(function)
            if name in self.names:
                self.target.update_func(self.names[name], function)
            else:
                self.names[name] = self.target.add_func(function, name)
        return self.names[name]

    def _declared(self, function: relax.Function) -> relax.Function:
        """Returns a function without its body, unlike all others: equal ones become one."""
        number: Any = {"declared": len(self.target.get().functions)}
        attrs: Any = ir.make_node("ir.DictAttrs", **number)
        return relax.Function.create_empty(list(function.params), function.ret_ty, True, attrs)
