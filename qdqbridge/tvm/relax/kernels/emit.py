"""A plan as a Relax module: calls of PrimFuncs, and the plain legalization where there are none."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.onnx_io.control_flow.conditional import is_conditional
from qdqbridge.onnx_io.control_flow.unrolling import is_repeated
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.graph import agreed
from qdqbridge.tvm.qnn.emit.nodes import EmitOpaque
from qdqbridge.tvm.relax.emit.module import ModuleEmitter, emit_part
from qdqbridge.tvm.relax.emit.opaque import emit_conditional, emit_opaque, emit_repeated
from qdqbridge.tvm.relax.emit.qdq import in_codes
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel
from qdqbridge.tvm.relax.kernels.plan import KernelPlan, plan
from qdqbridge.tvm.relax.kernels.recurrent.layers import KINDS
from qdqbridge.tvm.relax.tensors import to_tensor

WORK = "qdqbridge.work"
"""Attribute of a PrimFunc: operations of one call, an open extent counting as 1; 0 where they are
not counted."""


def emit_plan(made: KernelPlan) -> ir.IRModule:
    """Returns the module of a plan; equal descriptions of kernels are one PrimFunc in it.

    Raises:
        UnsupportedTargetError: A node or an element type that TVM cannot run; lists every one.
    """
    return _PlanEmitter(made).module(made.graph)


class _PlanEmitter(ModuleEmitter):
    def __init__(self, made: KernelPlan) -> None:
        super().__init__(checked=True)
        self._plan = made
        self._functions: dict[tuple[type, Hashable], relax.GlobalVar] = {}
        self.emitter.channels_last = made.converted.channels_last
        self.form = self._form

    def _form(
        self, emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque
    ) -> Sequence[Expr]:
        if node not in self._plan.needed:
            return [None] * len(node.outputs)
        kernel = self._plan.kernels.get(node)
        return in_codes(emitter, node, emit_opaque) if kernel is None else self._call(kernel)

    def _opaque(self, node: Node) -> Sequence[Expr]:
        if is_conditional(node):
            return emit_conditional(self.emitter, node, self._inside)
        if is_repeated(node):
            return emit_repeated(self.emitter, node, self._inside)
        if node.op.name in KINDS:  # their weights are transposed once, not at every run
            return emit_opaque(self.emitter, node, emit_part, shown=False)
        return super()._opaque(node)

    def _inside(self, graph: Graph) -> ir.IRModule:
        return emit_plan(plan(agreed(graph), self._plan.cpu, self._plan.threads))

    def _bound(self, value: Value, expr: Expr | None) -> Expr:
        return None if expr is None else super()._bound(value, expr)

    def _call(self, kernel: Kernel) -> list[Expr]:
        operands = [self.emitter.value(value) for value in kernel.inputs]
        constants = [_relax_const(array) for array in kernel.constants]
        extents = _open_extents(kernel.inputs, operands)
        types = [self._type(value, extents) for value in kernel.outputs]
        args: Any = [*operands, *constants]
        call = relax.call_tir(self._function(kernel), args, types if len(types) > 1 else types[0])
        called = self.emitter.emit(call)
        if len(types) == 1:
            return [called]
        return [self.builder.emit(relax.TupleGetItem(called, i)) for i in range(len(types))]

    def _type(self, value: Value, known: Mapping[str, Any]) -> relax.TensorType:
        assert value.type.shape is not None
        other = next(iter(known.values()), None)  # what has a name of its own is the operand's too
        shape: list[Any] = []
        for extent in value.type.shape:
            if isinstance(extent, str) and other is None:
                shape.append(self.emitter.extent(extent))  # the plan has none but those of inputs
            else:
                shape.append(extent if isinstance(extent, int) else known.get(extent, other))
        return relax.TensorType(shape, tvm_dtype(value.type.dtype))

    def _function(self, kernel: Kernel) -> relax.GlobalVar:
        key = type(kernel.description), kernel.description
        if key not in self._functions:
            made = kernel.build(kernel.description).with_attr(WORK, kernel.work)
            self._functions[key] = self.builder.add_func(made, kernel.name)
        return self._functions[key]


def _open_extents(values: Sequence[Value], operands: Sequence[Expr]) -> Mapping[str, Any]:
    """Returns the open extents of operands by name, those of the first axes first."""
    found: dict[str, Any] = {}
    shapes = [
        (v.type.shape or (), e.ty.shape.values) for v, e in zip(values, operands, strict=True)
    ]
    for axis in range(max((len(shape) for shape, _ in shapes), default=0)):
        for shape, own in shapes:
            if axis < len(shape) and isinstance(name := shape[axis], str):
                found.setdefault(name, own[axis])
    return found


def _relax_const(array: Array) -> Any:
    """Returns a constant; one that lies as TVM wants it is not copied."""
    return relax.const(to_tensor(np.ascontiguousarray(array), tvm.cpu()))
