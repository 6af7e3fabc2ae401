"""How a record of the QNN dialect becomes a Relax operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, relax, s_tir, sym, te
from tvm.ir import Op, register_op_attr
from tvm.ir import _ffi_api as ir_api
from tvm.relax.utils import gen_call_tir_inputs

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.dialect.context import CallContext, QnnOp

# ---- relax as a host of the QNN dialect: types, constants, and kernels as PrimFuncs --------------

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


_REGISTERED: dict[str, QnnOp] = {}


def register(ops: Iterable[QnnOp]) -> None:
    """Registers operators with TVM; doing it again with the same names changes nothing."""
    for op in ops:
        if op.name in _REGISTERED:
            continue
        _REGISTERED[op.name] = op
        if op.name not in Op.list_op_names():
            ir_api.RegisterOp(op.name, op.doc)
        handle = Op.get(op.name)
        handle.set_num_inputs(len(op.arguments))
        for argument in op.arguments:
            handle.add_argument(argument, "Tensor", argument.replace("_", " "))
        handle.set_attr("FInferType", _infer_hook(op))
        handle.set_attr("FLegalize", _legalize_hook(op))
        register_op_attr(op.name, "FPurity", True)
    tvm_ffi.register_error("GraphError", GraphError)


def _infer_hook(op: QnnOp) -> Callable[[ir.Call, relax.BlockBuilder], relax.TensorType]:
    def infer(call: ir.Call, builder: relax.BlockBuilder) -> relax.TensorType:
        result = op.infer(context_of(op, call, RelaxHost(builder)))
        return tensor_type(result.shape, result.dtype)

    return infer


def _legalize_hook(op: QnnOp) -> Callable[[relax.BlockBuilder, ir.Call], Any]:
    return lambda builder, call: op.lower(context_of(op, call, RelaxHost(builder)))


def lookup(name: str) -> QnnOp:
    """Returns the record of a registered operator.

    Raises:
        GraphError: The dialect has no such operator.
    """
    if name not in _REGISTERED:
        raise GraphError(
            f"the QNN dialect has no operator {name!r}", fix=f"it has {sorted(_REGISTERED)}"
        )
    return _REGISTERED[name]


def call(name: str, args: Sequence[Any], attrs: Mapping[str, Any] | None = None) -> ir.Call:
    """Returns a call of a dialect operator; defaults are filled in, so equal calls are equal.

    Args:
        name: ``qnn.<name>``.
        args: Expressions in the order of ``QnnOp.arguments``; Python tuples become Relax tuples.
        attrs: Attributes that differ from their defaults.

    Raises:
        GraphError: Unknown operator, wrong number of arguments, or unknown or missing attributes.
    """
    op = lookup(name)
    op.check_count(len(args))
    exprs: list[Any] = [relax.Tuple(arg) if isinstance(arg, tuple | list) else arg for arg in args]
    return ir.Call(Op.get(name), exprs, attrs=op.complete(attrs or {}))


def lower_call(builder: relax.BlockBuilder, node: ir.Call) -> Any:
    """Returns the legalization of a call, for a legalization that is made of others."""
    op = lookup(node.op.name)
    return op.lower(context_of(op, node, RelaxHost(builder)))


# ---- broadcast -----------------------------------------------------------------------------------
# ``qnn.broadcast_to``: a tensor brought to extents of which nobody knows yet whether they differ.
#
# TVM's own ``broadcast_to`` decides while it compiles which axes are repeated, and takes a symbolic
# extent for one that is not. This one decides when it runs: an axis of extent 1 is repeated.


NAME = "qnn.broadcast_to"


def broadcast_to(data: Any, shape: list[Any], *, implied: bool) -> ir.Call:
    """Returns a call that repeats ``data`` along the axes on which it has 1 element.

    Args:
        data: A tensor.
        shape: As many extents as it has axes, or more; integers, or symbolic ones.
        implied: True where the operator that reads it broadcasts anyway, so that the call says
            nothing about the model.
    """
    return ir.Call(Op.get(NAME), [data, relax.ShapeExpr(shape)], attrs={"implied": implied})


def _infer_broadcast_to(call: ir.Call, builder: relax.BlockBuilder) -> relax.TensorType:
    del builder
    data, shape = call.args
    if not isinstance(data.ty, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
        raise GraphError(f"a call of {NAME} is not valid", why="it wants a tensor and a shape")
    if data.ty.ndim < 0 or data.ty.ndim > len(shape.values):
        raise GraphError(
            f"a call of {NAME} is not valid",
            why=f"{data.ty.ndim} axes are brought to {len(shape.values)}",
        )
    return tensor_type(list(shape.values), str(data.ty.dtype))


def _legalize(builder: relax.BlockBuilder, call: ir.Call) -> Any:
    shape = list(call.args[1].values)

    def spread(x: te.Tensor) -> te.Tensor:
        first = len(shape) - len(x.shape)

        def element(*i: Any) -> Any:
            return x(*(_index(e, own) for e, own in zip(x.shape, i[first:], strict=True)))

        return stage(shape, element, name="spread")

    return builder.call_te(spread, call.args[0], primfunc_name_hint="broadcast_to")


def _index(extent: Any, index: Any) -> Any:
    """Returns an index along an axis that is repeated where it has one element."""
    zero = tirx.const(0, "int64")
    if isinstance(extent, tirx.IntImm):
        return zero if int(extent) == 1 else index
    return tirx.Select(extent == tirx.const(1, "int64"), zero, index)


def register_broadcast() -> None:
    """Registers the operator with TVM."""
    if NAME not in Op.list_op_names():
        ir_api.RegisterOp(NAME, __doc__ or "")
    handle = Op.get(NAME)
    handle.set_num_inputs(2)
    handle.add_argument("data", "Tensor", "a tensor")
    handle.add_argument("shape", "Shape", "its extents in the result")
    handle.set_attr("FInferType", _infer_broadcast_to)
    handle.set_attr("FLegalize", _legalize)
    register_op_attr(NAME, "FPurity", True)
    tvm_ffi.register_error("GraphError", GraphError)
