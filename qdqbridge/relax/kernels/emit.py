"""A plan as a Relax module: calls of PrimFuncs, and the plain legalization where there are none."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.types import Shape
from qdqbridge.qnn.emit.dtypes import tvm_dtype
from qdqbridge.qnn.emit.nodes import Foreign
from qdqbridge.qnn.emit.scope import EmissionScope, Expr
from qdqbridge.relax.emit.module import ModuleEmitter
from qdqbridge.relax.emit.qdq import in_codes
from qdqbridge.relax.kernels.kernel import Array, Kernel
from qdqbridge.relax.kernels.plan import KernelPlan
from qdqbridge.relax.tensors import to_tensor

WORK = "qdqbridge.work"
"""Attribute of a PrimFunc: operations of one call, an open extent counting as 1; 0 where they are
not counted."""


def emit_plan(plan: KernelPlan) -> ir.IRModule:
    """Returns the module of a plan; equal descriptions of kernels are one PrimFunc in it.

    Raises:
        UnsupportedTargetError: A node or an element type that TVM cannot run; lists every one.
    """
    return _PlanEmitter(plan).emit(plan.graph)[0]


class _PlanEmitter(ModuleEmitter):
    def __init__(self, plan: KernelPlan) -> None:
        super().__init__()
        self._plan = plan
        self._functions: dict[tuple[type, Hashable], relax.GlobalVar] = {}
        self.scope.channels_last = plan.converted.channels_last
        self.form = self._form

    def _form(self, scope: EmissionScope, node: Node, foreign: Foreign) -> Sequence[Expr]:
        if node not in self._plan.needed:
            return [None] * len(node.outputs)
        kernel = self._plan.kernels.get(node)
        return in_codes(scope, node, foreign) if kernel is None else self._call(kernel)

    def _bound(self, value: Value, expr: Expr | None) -> Expr:
        return None if expr is None else super()._bound(value, expr)

    def _call(self, kernel: Kernel) -> list[Expr]:
        operands = [self.scope.value(value) for value in kernel.inputs]
        constants = [_constant(array) for array in kernel.constants]
        types = [_type(value, operands) for value in kernel.outputs]
        args: Any = [*operands, *constants]
        called = self.builder.emit(
            relax.call_tir(self._function(kernel), args, types if len(types) > 1 else types[0])
        )
        if len(types) == 1:
            return [called]
        return [self.builder.emit(relax.TupleGetItem(called, i)) for i in range(len(types))]

    def _function(self, kernel: Kernel) -> relax.GlobalVar:
        key = type(kernel.description), kernel.description
        if key not in self._functions:
            made = kernel.build(kernel.description).with_attr(WORK, kernel.work)
            self._functions[key] = self.builder.add_func(made, kernel.name)
        return self._functions[key]


def _type(value: Value, operands: Sequence[Expr]) -> relax.TensorType:
    return relax.TensorType(_extents(value.type.shape, operands), tvm_dtype(value.type.dtype))


def _extents(shape: Shape, operands: Sequence[Expr]) -> list[Any]:
    """Returns extents; an open one, always the first, is that of the operands."""
    assert shape is not None
    firsts = [expr.ty.shape.values[0] for expr in operands if len(expr.ty.shape.values)]
    opened = [extent for extent in firsts if not isinstance(extent, tirx.IntImm)]
    return [extent if isinstance(extent, int) else opened[0] for extent in shape]


def _constant(array: Array) -> Any:
    """Returns a constant; one that lies as TVM wants it is not copied."""
    return relax.const(to_tensor(np.ascontiguousarray(array), tvm.cpu()))
