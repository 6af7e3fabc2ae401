"""Nodes as functions of their own: those without a row by TVM's own ONNX converters."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.onnx import from_onnx

from qdqbridge.graph.graph import Node, Value
from qdqbridge.ops.attributes import LinearAttrs
from qdqbridge.qnn.emit.dtypes import tvm_dtype
from qdqbridge.qnn.emit.scope import Expr, unsupported
from qdqbridge.relax.emit.importer_gaps import gap, respelled
from qdqbridge.relax.emit.run_time_parameters import arguments, linear_module
from qdqbridge.relax.emit.scope import Scope


def emit_foreign(scope: Scope, node: Node) -> Sequence[Expr]:
    """Emits a carried-through node as a call of a function that TVM imports from it.

    Raises:
        UnsupportedTargetError: TVM has no converter for it, or the converter refuses or is wrong.
    """
    if isinstance(node.attributes, LinearAttrs):
        callee = _added(scope.builder, linear_module(node, node.attributes), node.op.name.lower())
        return [scope.emit(relax.Call(callee, arguments(scope, node)))]
    one_node = getattr(node.attributes, "model", None)
    if one_node is None:
        raise unsupported(node, "it carries no ONNX node")
    wrong = gap(node)
    if wrong is not None:
        raise unsupported(node, f"TVM's ONNX importer would compute it wrongly: {wrong}")
    alone = respelled(one_node(node))
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # TVM prints before it raises
            module = from_onnx(alone, keep_params_in_input=False)
    except Exception as error:  # TVM's converters raise whatever they meet
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise unsupported(node, f"TVM's ONNX importer refuses it: {reason[0]}") from error
    name = f"onnx_{node.op.name.rpartition('::')[2].lower()}"
    callee = _added(scope.builder, module, name)
    args = [scope.value(v) for v in node.inputs if v is not None and v.constant is None]
    called = scope.emit(relax.Call(callee, args))
    results = _results(node, called)[: len(node.outputs)]
    return [_typed(scope, node, r, v) for r, v in zip(results, node.outputs, strict=True)]


def _results(node: Node, called: Expr) -> list[Expr]:
    """Returns one expression per result.

    Raises:
        UnsupportedTargetError: TVM returns fewer.
    """
    several = isinstance(called.ty, relax.TupleType)
    given = len(called.ty.fields) if several else 1
    if given < len(node.outputs):
        raise unsupported(
            node, f"TVM's ONNX importer gives {given} of its {len(node.outputs)} results"
        )
    return [relax.TupleGetItem(called, i) for i in range(given)] if several else [called]


def _typed(scope: Scope, node: Node, result: Expr, value: Value) -> Expr:
    """Returns a result in the graph's element type.

    Raises:
        UnsupportedTargetError: It has another shape than the graph's: TVM makes some results up.
    """
    type_: Any = scope.builder.normalize(result).ty
    meant, shape = tvm_dtype(value.type.dtype), value.type.shape
    extents = [] if type_.shape is None else list(type_.shape.values)
    fixed = [
        (int(have), extent)
        for have, extent in zip(extents, shape or (), strict=False)
        if isinstance(have, tirx.IntImm) and isinstance(extent, int)
    ]
    other_rank = shape is not None and type_.ndim not in (-1, len(shape))
    if other_rank or any(have != extent for have, extent in fixed):
        made = f"rank {type_.ndim}" if other_rank else f"{[have for have, _ in fixed]}"
        raise unsupported(
            node, f"TVM's ONNX importer gives {made} for the result '{value.name}' of {shape}"
        )
    return result if str(type_.dtype) == meant else scope.op.astype(scope.emit(result), meant)


def _added(builder: relax.BlockBuilder, module: ir.IRModule, name: str) -> ir.GlobalVar:
    """Adds ``main`` of an imported module, and the functions that it calls, under new names."""
    renamed: dict[str, ir.GlobalVar] = {}
    for variable, function in module.functions.items():
        if variable.name_hint != "main":
            private = function.without_attr("global_symbol")
            renamed[variable.name_hint] = builder.add_func(private, variable.name_hint)
    main: Any = module["main"].without_attr("global_symbol")
    if renamed:
        main = _Renamed(renamed).visit_expr(main)
    function: Any = main
    return builder.add_func(function, name)


@mutator
class _Renamed(PyExprMutator):
    """Calls functions by their new names."""

    def __init__(self, names: Mapping[str, ir.GlobalVar]) -> None:
        super().__init__()
        self.names = names

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        return self.names.get(op.name_hint, op)
