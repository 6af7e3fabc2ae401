"""A whole graph as an IRModule with one function ``main``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.errors import GraphError, UnsupportedTargetError
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.relax.dialect.site import tensor_type
from qdqbridge.relax.emit.accumulate import quantized_accumulation
from qdqbridge.relax.emit.conversions import CONVERSIONS
from qdqbridge.relax.emit.floating import FLOATING
from qdqbridge.relax.emit.foreign import emit_foreign
from qdqbridge.relax.emit.movers import MOVERS
from qdqbridge.relax.emit.resize import emit_resize
from qdqbridge.relax.emit.rounded import quantized_result
from qdqbridge.relax.emit.scope import Expr, Scope, reason, tvm_dtype, unsupported
from qdqbridge.relax.emit.transposition import fill

LARGE = 1 << 16
"""Bytes from which a constant becomes a parameter when parameters are kept apart."""
_LISTED = 8


def emit(graph: Graph, *, keep_params: bool = False) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
    """Returns ``graph`` as a Relax module in the QNN dialect.

    Args:
        graph: A canonical graph (a raw one works too, as the float operators it is made of).
        keep_params: Make large constants parameters of ``main`` after the graph's inputs.

    Returns:
        The module and the parameters by name (empty unless ``keep_params``). ``main`` takes the
        graph's inputs in their order and returns one tensor, or a tuple of several; its attributes
        ``input_names`` and ``output_names`` hold the model's own names.

    Raises:
        UnsupportedTargetError: A node or an element type that TVM cannot run; lists every one.
    """
    return _Module(graph, keep_params=keep_params).emit()


class _Module:
    def __init__(self, graph: Graph, *, keep_params: bool) -> None:
        self.graph = graph
        self.builder = relax.BlockBuilder()
        self.extents: dict[str, tirx.Var] = {}
        self.names: set[str] = set()
        self.lifted: dict[str, tuple[relax.Var, Constant]] = {}
        self.scope = Scope(self.builder, self.extents, self._lift if keep_params else None)

    def emit(self) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
        self._check()
        inputs = [self._input(value) for value in self.graph.inputs]
        attrs: Any = {
            "num_input": len(inputs),
            "input_names": [value.name for value in self.graph.inputs],
            "output_names": list(self.graph.output_names),
        }
        with self.builder.function("main", attrs=attrs):
            # An error that left these scopes early would leave blocks open in TVM.
            with self.builder.dataflow():
                problems = self._nodes()
                outputs = [] if problems else [self.scope.value(v) for v in self.graph.outputs]
                result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
                result = self.builder.emit_output(result)
            params = [variable for variable, _ in self.lifted.values()]
            self.builder.emit_func_output(result, [*inputs, *params])
        if problems:
            raise _joined(problems) from problems[0].__cause__
        module = self.builder.finalize()
        arrays = {name: _array(constant) for name, (_, constant) in self.lifted.items()}
        return module, arrays

    def _check(self) -> None:
        known = MOVERS.keys() | FLOATING.keys() | CONVERSIONS.keys() | {"Resize", "Composition"}
        bad = [
            n for n in self.graph.nodes if n.op.flow is not Flow.FLOAT and n.op.name not in known
        ]
        if bad:
            listed = "; ".join(f"{n.op.name} '{n.name}'" for n in bad[:_LISTED])
            raise UnsupportedTargetError(
                f"{len(bad)} node(s) have no counterpart in TVM",
                why=listed,
                fix="run the model with onnxruntime, or export it without them",
            )

    def _input(self, value: Value) -> relax.Var:
        type_ = relax.TensorType(self.scope.shape(value.type.shape), tvm_dtype(value.type.dtype))
        variable = relax.Var(self._name(value.name or "input"), type_)
        self.scope.exprs[value] = variable
        return variable

    def _name(self, name: str) -> str:
        base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "v"
        base = base if not base[0].isdigit() else f"v{base}"
        unique, count = base, 1
        while unique in self.names:
            count += 1
            unique = f"{base}_{count}"
        self.names.add(unique)
        return unique

    def _lift(self, constant: Constant, name: str) -> relax.Var | None:
        if constant.nbytes < LARGE:
            return None
        unique = self._name(name or "param")
        variable = relax.Var(unique, tensor_type(constant.shape, tvm_dtype(constant.dtype)))
        self.lifted[unique] = (variable, constant)
        return variable

    # ---- nodes --------------------------------------------------------------------------------

    def _nodes(self) -> list[UnsupportedTargetError]:
        """Emits every node whose operands are known; returns what could not be emitted."""
        problems: list[UnsupportedTargetError] = []
        exprs = self.scope.exprs
        for node in self.graph.nodes:
            if any(v.constant is None and v not in exprs for v in node.inputs if v is not None):
                continue  # it reads what could not be emitted
            try:
                self._node(node)
            except UnsupportedTargetError as error:
                error.where = error.where or f"node '{node.name}'"
                problems.append(error)
            except (GraphError, RuntimeError, TypeError, ValueError) as error:
                refused = unsupported(node, f"TVM refuses it: {reason(error)}")
                refused.__cause__ = error
                problems.append(refused)
        return problems

    def _node(self, node: Node) -> None:
        results = self._emitted(node)
        for value, expr in zip(node.outputs, results, strict=False):
            bound = expr if isinstance(expr, relax.Var) else self.scope.emit(expr)
            self.scope.exprs[value] = self._with_extents(value, bound)

    def _with_extents(self, value: Value, bound: relax.Var) -> relax.Var:
        """Gives names to extents that an imported operator computes at run time."""
        known = isinstance(bound.ty, relax.TensorType) and bound.ty.shape is not None
        if known or value.type.shape is None:
            return bound
        type_ = relax.TensorType(self.scope.shape(value.type.shape), tvm_dtype(value.type.dtype))
        return self.builder.match_cast(bound, type_)

    def _emitted(self, node: Node) -> Sequence[Expr]:
        scope, name = self.scope, node.op.name
        if node.op.flow is Flow.FLOAT and name not in FLOATING:
            return emit_foreign(scope, node)
        if name in CONVERSIONS:
            return [CONVERSIONS[name](scope, node)]
        if name == "Resize":
            return [emit_resize(scope, node)]
        if name in MOVERS:
            moved = MOVERS[name](scope, node, scope.value(node.operand(0)))
            return moved if isinstance(moved, list) else [moved]
        quantized = None
        if node.op.flow is Flow.ACCUMULATE:
            quantized = quantized_accumulation(scope, node)
        elif node.output.quant is not None:
            quantized = quantized_result(scope, node)
        return [self._float(node) if quantized is None else quantized]

    def _float(self, node: Node) -> Expr:
        if node.op.name not in FLOATING:
            raise unsupported(node, "there is no Relax counterpart")
        scope = self.scope
        args = [
            scope.real(value) if node.op.is_data(index) else scope.value(value)
            for index, value in enumerate(node.inputs)
            if value is not None
        ]
        result = FLOATING[node.op.name](scope, node, args)
        if node.output.quant is None:
            return result
        return scope.quantize(scope.emit(result), node.output.quant.params)


def _joined(problems: list[UnsupportedTargetError]) -> UnsupportedTargetError:
    if len(problems) == 1:
        return problems[0]
    listed = "; ".join(f"{e.what}, {e.where}: {e.why}" for e in problems[:_LISTED])
    more = f" (and {len(problems) - _LISTED} more)" if len(problems) > _LISTED else ""
    return UnsupportedTargetError(
        f"{len(problems)} nodes cannot be emitted for TVM", why=listed + more, fix=problems[0].fix
    )


def _array(constant: Constant) -> NDArray[Any]:
    source = constant.numpy()
    if source.flags.c_contiguous:
        return source
    target = np.empty(source.shape, source.dtype)
    fill(target, source)
    return target
