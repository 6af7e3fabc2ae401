"""How a record of the QNN dialect becomes a Relax operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.ir import Op, register_op_attr
from tvm.ir import _ffi_api as ir_api

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.op import QnnOp
from qdqbridge.tvm.relax.dialect.host import RelaxHost, context_of, tensor_type

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
