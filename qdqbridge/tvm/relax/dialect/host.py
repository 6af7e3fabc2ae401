"""Relax as a host of the QNN dialect: types, constants, and kernels as PrimFuncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray
from tvm import ir, relax, s_tir, sym
from tvm.relax.utils import gen_call_tir_inputs

from qdqbridge.tvm.qnn.dialect.context import CallContext
from qdqbridge.tvm.qnn.dialect.op import QnnOp

DATA_PARALLEL = 0
"""``IterVar.kDataPar`` of TVM."""


class RelaxHost:
    """The module that a block builder builds, for ``tvm.qnn.dialect.host``."""

    bind_hint = "relax.transform.BindParams"

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def tensor(self, type_: Any) -> tuple[Sequence[Any], str] | None:
        """Returns extents and element type of a tensor type of known rank."""
        shape = getattr(type_, "shape", None)
        if not isinstance(type_, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
            return None
        return shape.values, str(type_.dtype)

    def field_types(self, type_: Any) -> list[Any] | None:
        """Returns the member types of a tuple type."""
        return list(type_.fields) if isinstance(type_, ir.TupleType) else None

    def fields(self, expr: Any) -> list[Any] | None:
        """Returns the members of a tuple expression."""
        return list(expr.fields) if isinstance(expr, relax.Tuple) else None

    def array(self, expr: Any) -> NDArray[Any] | None:
        """Returns the elements of a constant."""
        return expr.value.numpy() if isinstance(expr, ir.GenericConst) else None

    def constant(self, array: NDArray[Any]) -> ir.GenericConst:
        """Returns a constant expression."""
        return relax.const(array, str(array.dtype))

    def bind(self, expr: Any) -> Any:
        """Returns a variable that holds the expression."""
        return self._builder.emit(expr)

    def call_te(
        self,
        context: CallContext,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        inner: int,
        blocks: Sequence[str],
    ) -> Any:
        """Returns a call of the PrimFunc that TE makes of ``function``.

        The initialization of reductions is taken out of their loops, so that LLVM can vectorize
        the innermost one.
        """
        del context
        if not blocks:
            return self._builder.call_te(function, *args, primfunc_name_hint=name)
        func, call_args, type_ = gen_call_tir_inputs(function, *args)
        schedule = s_tir.Schedule(func)
        for block in blocks:
            _reorder(schedule, block, inner)
        result = schedule.mod["main"].without_attr("global_symbol")
        return relax.call_tir(self._builder.add_func(result, name), call_args, type_)


def _reorder(schedule: Any, name: str, inner: int) -> None:
    block = schedule.get_sblock(name)
    loops = list(schedule.get_loops(block))
    axes = schedule.get(block).iter_vars
    data = sum(int(axis.iter_type) == DATA_PARALLEL for axis in axes)
    outer, reduction = loops[:data], loops[data:]
    if inner:
        fused = schedule.fuse(*outer[-inner:]) if inner > 1 else outer[-1]
        schedule.reorder(*outer[:-inner], *reduction, fused)
    schedule.decompose_reduction(block, reduction[0])


def context_of(op: QnnOp, call: ir.Call, host: RelaxHost) -> CallContext:
    """Returns a call of ``op`` as its functions take it."""
    attrs: Any = call.attrs
    types = [getattr(arg, "ty", None) for arg in call.args]
    values = {attribute.name: attrs[attribute.name] for attribute in op.attributes}
    return CallContext(op.name, op.arguments, call.args, types, values, host)


def tensor_type(shape: Any, dtype: str) -> relax.TensorType:
    """Returns a Relax tensor type; integer arithmetic on symbolic extents is simplified."""
    extents: list[Any] = [e if isinstance(e, int) else sym.Analyzer().simplify(e) for e in shape]
    return relax.TensorType(extents, dtype)
