"""Building with TVM: the kernels of a module in parts, several at once.

LLVM takes most of the time that compiling takes, and works on one module with one processor.
Kernels call nothing of the module that calls them, so they may be libraries of their own, which it
finds by name. TVM lets other threads of Python run meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from qdqbridge.tvm.relax.kernels.codegen.passes import pipeline
from qdqbridge.tvm.relax.kernels.emit import WORK
from qdqbridge.tvm.relax.threads import BUILDING, cores

_LEAST = 8
"""Kernels of a part: of fewer, what every library takes is more than what is won."""
_MOST = 4
"""Parts: more have to wait for the largest kernel, and each takes memory of its own."""
_LIBRARIES = "external_mods"
"""TVM's attribute of a module: what is linked to it."""


def built(module: ir.IRModule, target: Any, *, runs_here: bool) -> Any:
    """Returns a module as TVM compiles it.

    Args:
        module: What is compiled, see :func:`~.lowering.lowered`.
        target: A TVM target.
        runs_here: True where it is for this machine: its code is made ready to run, too.
    """
    kernels = {
        variable: function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and WORK in (function.attrs or {})
    }
    count = min(len(cores()), len(kernels) // _LEAST, _MOST)
    if count < 2:
        return compiled(module, target)
    del kernels[next(iter(kernels))]  # a module without any would be C, which has to be compiled
    named = [(_symbol(variable), function) for variable, function in kernels.items()]
    context = tvm.transform.PassContext.current()

    def part(number: int) -> Any:
        with context:  # every thread has its own
            return _library(named[number::count], target, runs_here=runs_here)

    with ThreadPoolExecutor(count) as pool:
        libraries = list(pool.map(part, range(count)))
    calling = _CallingByName(module, kernels).module()
    before = list((module.attrs or {}).get(_LIBRARIES, []))
    return compiled(calling.with_attr(_LIBRARIES, [*before, *libraries]), target)


def compiled(module: ir.IRModule, target: Any) -> Any:
    """Returns what TVM makes of a module, whatever other threads do."""
    with BUILDING:
        return tvm.compile(module, target, tir_pipeline=pipeline())


def _library(named: Sequence[tuple[str, Any]], target: Any, *, runs_here: bool) -> Any:
    """Returns a library of some kernels."""
    functions = {name: kernel.with_attr("global_symbol", name) for name, kernel in named}
    library: Any = tvm.tirx.build(tvm.IRModule(functions), target, pipeline())
    if runs_here:
        library.get_function(named[0][0])  # makes the code of all
    return library


def _symbol(kernel: Any) -> str:
    """Returns a kernel's name in its library, which no function has that TVM adds to the rest.

    TVM looks a name up in all of them: what it makes of an operator may be called as a kernel is.
    """
    return f"{kernel.name_hint}_of_part"


@mutator
class _CallingByName(PyExprMutator):
    """Replaces calls of kernels by calls of what another library has under their names."""

    def __init__(self, module: ir.IRModule, kernels: Mapping[Any, Any]) -> None:
        super().__init__(module)
        self._whole, self._kernels = module, kernels

    def module(self) -> ir.IRModule:
        """Returns the module without the kernels."""
        for variable, function in self._whole.functions.items():
            if isinstance(function, relax.Function):
                changed: Any = self.visit_expr(function)
                self.builder_.update_func(variable, changed)
        made = self.builder_.get()
        rest = {v: f for v, f in made.functions.items() if v not in self._kernels}
        return ir.IRModule(rest, attrs=made.attrs)

    def visit_call_(self, op: ir.Call) -> relax.Expr:
        if op.op != _CALL_TIR or op.args[0] not in self._kernels:
            return op
        kernel, operands = op.args
        return relax.op.call_dps_packed(_symbol(kernel), operands, _kernel_result_types(op))


def _kernel_result_types(call: ir.Call) -> list[Any]:
    """Returns the types of the tensors that a kernel writes; of several it has one, a tuple's."""
    (own,) = call.ty_args
    return list(own.fields) if isinstance(own, ir.TupleType) else [own]


_CALL_TIR = ir.Op.get("relax.call_tir")
