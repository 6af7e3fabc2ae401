"""``qnn.broadcast_to``: a tensor brought to extents of which nobody knows yet whether they differ.

TVM's own ``broadcast_to`` decides while it compiles which axes are repeated, and takes a symbolic
extent for one that is not. This one decides when it runs: an axis of extent 1 is repeated.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, relax, te
from tvm.ir import Op, register_op_attr
from tvm.ir import _ffi_api as ir_api

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.relax.dialect.registration import tensor_type

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


def register() -> None:
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
