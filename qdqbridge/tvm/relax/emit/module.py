"""A whole graph as an IRModule with one function ``main``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.core.graph.constant import Constant, fill
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.symbols import name_in_files
from qdqbridge.core.graph.types import NestedType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.emitter import Expr, as_bytes, tvm_dtype
from qdqbridge.tvm.qnn.emit.graph import (
    check_known,
    emit_nodes,
    expanded,
    merge_errors,
    unique_identifier,
)
from qdqbridge.tvm.qnn.emit.nodes import Form
from qdqbridge.tvm.qnn.origin import type_text
from qdqbridge.tvm.relax.dialect import tensor_type
from qdqbridge.tvm.relax.emit.broadcasting import equal
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter
from qdqbridge.tvm.relax.emit.opaque import EmitNode, emit_opaque
from qdqbridge.tvm.relax.emit.qdq import QdqEmitter, between_conversions, in_codes
from qdqbridge.tvm.relax.threads import BUILDING

LARGE = 1 << 16
"""Bytes from which a constant becomes a parameter when parameters are kept apart."""
VARIANTS: dict[str, tuple[type[RelaxEmitter], Form]] = {
    "qnn": (RelaxEmitter, in_codes),
    "qdq": (QdqEmitter, between_conversions),
}


def emit(
    graph: Graph, *, keep_params: bool = False, variant: str = "qnn"
) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
    """Returns ``graph`` as a Relax module.

    Args:
        graph: A canonical graph (a raw one works too, as the float operators it is made of).
        keep_params: Make large constants parameters of ``main`` after the graph's inputs.
        variant: ``qnn``, the QNN dialect, or ``qdq``, float operators between ``R.quantize`` and
            ``R.dequantize``.

    Returns:
        The module and the parameters by name (empty unless ``keep_params``). ``main`` takes the
        graph's inputs in their order and returns one tensor, or a tuple of several; its attributes
        ``input_names`` and ``output_names`` hold the model's own names.

    Raises:
        UnsupportedTargetError: A node or an element type that TVM cannot run; lists every one.
            Or there is no such variant.
    """
    if variant not in VARIANTS:
        known = ", ".join(VARIANTS)
        raise UnsupportedTargetError(
            f"Relax modules have no variant {variant!r}", fix=f"use one of {known}"
        )
    return ModuleEmitter(keep_params=keep_params, variant=variant).emit(graph)


class ModuleEmitter:
    """Emits one graph; who wants other results of ``main`` overrides :meth:`results`.

    Args:
        keep_params: As for :func:`emit`.
        variant: As for :func:`emit`.
        emit_opaque: Emits a node of an operator without a row.
        checked: The module is run, and ends where an index is beyond what it is an index of.
    """

    def __init__(
        self,
        *,
        keep_params: bool = False,
        variant: str = "qnn",
        emit_opaque: EmitNode | None = None,
        checked: bool = False,
    ) -> None:
        self.emit_node = emit_opaque
        self.builder = relax.BlockBuilder()
        self.extents: dict[str, tirx.Var] = {}
        self.names: set[str] = set()
        self.lifted: dict[str, tuple[relax.Var, Constant]] = {}
        emitter, self.form = VARIANTS[variant]
        self.emitter = emitter(self.builder, self.extents, self._lift if keep_params else None)
        self.emitter.checked = checked

    def results(self, outputs: Sequence[Value]) -> list[Expr]:
        """Returns what ``main`` returns; called where bindings can still be added."""
        return [self.emitter.value(value) for value in outputs]

    def emit(self, graph: Graph) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
        """See :func:`emit`."""
        module = self.module(graph)
        return module, {name: _array(constant) for name, (_, constant) in self.lifted.items()}

    def module(self, graph: Graph) -> ir.IRModule:
        """Returns the module without looking at its parameters."""
        with BUILDING:
            return self._module(graph)

    def _module(self, graph: Graph) -> ir.IRModule:
        graph = expanded(graph)
        check_known(graph)
        inputs = [self._input(value) for value in graph.inputs]
        attrs: Any = {
            "num_input": len(inputs),
            "input_names": [value.name for value in graph.inputs],
            "input_types": [type_text(value.type) for value in graph.inputs],
            "output_names": list(graph.output_names),
        }
        with self.builder.function("main", attrs=attrs):
            # An error that left these scopes early would leave blocks open in TVM.
            with self.builder.dataflow():
                problems = emit_nodes(
                    self.emitter, graph, self._bound, self._opaque, form=self.form
                )
                outputs = [] if problems else self.results(graph.outputs)
                result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
                result = self.builder.emit_output(result)
            params = [variable for variable, _ in self.lifted.values()]
            self.builder.emit_func_output(result, [*inputs, *params])
        if problems:
            raise merge_errors(problems) from problems[0].__cause__
        return self.builder.finalize()

    def _input(self, value: Value) -> relax.Var:
        if isinstance(value.type, NestedType):
            raise UnsupportedTargetError(
                f"the graph input '{value.name}' cannot be handed on",
                why=f"it is {value.type}, and compiled programs take tensors here",
                fix="run the model with the interpreter or onnxruntime",
            )
        type_ = relax.TensorType(self.emitter.shape(value.type.shape), tvm_dtype(value.type.dtype))
        variable = relax.Var(self._name(value.name or "input"), type_)
        self.emitter.exprs[value] = variable
        return variable

    def _name(self, name: str) -> str:
        return unique_identifier(name, self.names)

    def _lift(self, constant: Constant, name: str) -> relax.Var | None:
        if constant.nbytes < LARGE:
            return None
        unique = self._name(name or "param")
        variable = relax.Var(unique, tensor_type(constant.shape, tvm_dtype(constant.dtype)))
        self.lifted[unique] = (variable, constant)
        return variable

    def _opaque(self, node: Node) -> Sequence[Expr]:
        if self.emit_node is not None:
            return self.emit_node(self.emitter, node)
        return emit_opaque(self.emitter, node, emit_part)

    def _bound(self, value: Value, expr: Expr) -> relax.Var:
        return self._with_extents(value, self.emitter.emit(expr))

    def _with_extents(self, value: Value, bound: relax.Var) -> relax.Var:
        """Gives extents that are known to the model, or new names, to what TVM does not know."""
        if not isinstance(bound.ty, relax.TensorType):
            return bound
        found = None if value.producer is None else self.emitter.arithmetic.shape(value.producer)
        if bound.ty.shape is not None:
            own = self.emitter.extents(bound)
            # TVM never ends where a variable is matched with an expression of it (need_same)
            fresh = all(isinstance(extent, int | tirx.Var) for extent in own)
            if found is None or not fresh or all(map(equal, own, found)):
                return bound
        elif found is None:
            found = self._named(value, bound)
        if found is None:
            return bound
        return self.builder.match_cast(bound, relax.TensorType(found, tvm_dtype(value.type.dtype)))

    def _named(self, value: Value, bound: relax.Var) -> list[Any] | None:
        """Returns the extents of a result that are known at run time only, by the graph's names.

        Where nothing tells the rank they are those that the file declares: the run checks them.
        Those that it does not name, or whose number only TVM knows, get names here.
        """
        shape, base = value.type.shape, f"{value.name or 'extent'}_{len(self.extents)}"
        if shape is None and value.declared is not None:
            shape = tuple(
                f"{base}_{axis}" if name_in_files(dim) is None else dim
                for axis, dim in enumerate(value.declared)
            )
        if shape is None and bound.ty.ndim >= 0:
            shape = tuple(f"{base}_{axis}" for axis in range(bound.ty.ndim))
        return None if shape is None else self.emitter.shape(shape)


def emit_part(graph: Graph, emit_opaque: EmitNode | None) -> ir.IRModule:
    """Returns the module of what a node without a row stands for."""
    return ModuleEmitter(emit_opaque=emit_opaque).emit(graph)[0]


def _array(constant: Constant) -> NDArray[Any]:
    source = as_bytes(constant.numpy())
    if source.flags.c_contiguous:
        return source
    target = np.empty(source.shape, source.dtype)
    fill(target, source)
    if source.dtype == constant.dtype.numpy:
        constant.move(target)
    return target
