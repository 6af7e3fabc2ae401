"""How records of the QNN dialect become Relay operators, next to Relay's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import relay
from tvm.ir import Op
from tvm.ir import _ffi_api as ir_api

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect import QNN_OPS
from qdqbridge.tvm.qnn.dialect.context import CallContext, QnnOp
from qdqbridge.tvm.relay.dialect.host import (
    RelayHost,
    dict_attrs,
    is_known,
    names_of,
    register_kernel,
    tensor_type,
    typed,
)
from qdqbridge.tvm.relay.dialect.layouts import register_layouts
from qdqbridge.tvm.relay.dialect.native import NATIVE, Native

CANONICALIZE = "FTVMQnnCanonicalize"
_LEVEL = 11
"""Priority of our attributes; TVM's own are set with 10."""

_HOST = RelayHost()
_NATIVE: dict[str, Native] = {row.name: row for row in NATIVE}
RECORDS: dict[str, QnnOp] = {op.name: op for op in QNN_OPS}
TWINS: dict[str, QnnOp] = {
    name: replace(RECORDS[name], name=name.replace("qnn.", "qnn.qdq_")) for name in _NATIVE
}
"""By Relay's name: the operator that carries what Relay's own refuses (``qnn.qdq_<name>``)."""


def register() -> None:
    """Registers every operator that Relay lacks; doing it again changes nothing."""
    register_kernel()
    known = set(Op.list_op_names())
    new = [op for op in (*RECORDS.values(), *TWINS.values()) if op.name not in known]
    for op in new:
        _register(op)
    register_layouts(new)
    for row in NATIVE:
        if row.widened:
            record = RECORDS[row.name]
            Op.get(row.name).add_type_rel(f"QdqBridge.{row.name}", _relation(record))


def _register(op: QnnOp) -> None:
    ir_api.RegisterOp(op.name, op.doc)
    operator = Op.get(op.name)
    operator.set_num_inputs(len(op.arguments))
    for argument in op.arguments:
        operator.add_argument(argument, "Tensor", argument.replace("_", " "))
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(_LEVEL)
    operator.add_type_rel(f"QdqBridge.{op.name}", _relation(op))
    operator.set_attr("TNonComputational", True, _LEVEL)
    operator.set_attr("TOpPattern", 8, _LEVEL)
    operator.set_attr(CANONICALIZE, canonicalization(op), _LEVEL)


def _relation(op: QnnOp) -> Callable[[Sequence[Any], Any], Any]:
    def relation(types: Sequence[Any], attrs: Any) -> Any:
        if not all(is_known(type_) for type_ in types):
            return None
        result = op.infer(_context(op, (), types, attrs))
        return tensor_type(result.shape, result.dtype)

    return relation


def canonicalization(op: QnnOp) -> Callable[[Any, Sequence[Any], Sequence[Any]], Any]:
    """Returns the function that replaces a call by kernels with the contract's arithmetic."""

    def canonicalize(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
        context = _context(op, args, list(types)[: len(op.arguments)], attrs)
        _check_out_layout(context, attrs)
        return op.lower(context)

    return canonicalize


def _check_out_layout(context: CallContext, attrs: Any) -> None:
    """Relay can state another layout for the result; no record has that."""
    if "out_layout" not in names_of(attrs):
        return
    own = str(attrs["data_layout"] if "data_layout" in context.attrs else attrs["layout"])
    if str(attrs["out_layout"]) not in ("", own):
        context.fail(f"out_layout is {attrs['out_layout']}", f"give {own}, the layout of the data")


def _context(op: QnnOp, args: Sequence[Any], types: Sequence[Any], attrs: Any) -> CallContext:
    row = _NATIVE.get(op.name)
    values = {
        a.name: attrs[a.name] if row is None else row.attribute(attrs, a.name, a.default)
        for a in op.attributes
    }
    return CallContext(op.name, op.arguments, args, types, values, _HOST)


def lookup(name: str) -> QnnOp:
    """Returns the record of an operator.

    Raises:
        GraphError: The dialect has no such operator.
    """
    twins = {twin.name: twin for twin in TWINS.values()}
    record = RECORDS.get(name) or twins.get(name)
    if record is None:
        raise GraphError(
            f"the QNN dialect has no operator {name!r}", fix=f"it has {sorted(RECORDS)}"
        )
    return record


def call(name: str, args: Sequence[Any], attrs: Mapping[str, Any] | None = None) -> relay.Call:
    """Returns a call of a dialect operator, as ``qdqbridge.tvm.relax.dialect.call`` does for Relax.

    Relay's own operator is used where it can carry the call, with Relay's attribute record;
    ``rounding`` and ``compute_dtype`` of a requantize that have the dialect's default stay unset,
    as importers leave them. What Relay's own operator cannot carry (mixed element types, another
    type for the result, 16-bit matrices, ...) becomes ``qnn.qdq_<name>`` of equal arguments.

    Args:
        name: ``qnn.<name>``.
        args: Expressions in the order of ``QnnOp.arguments``; Python tuples become Relay tuples.
            Their types are inferred where they are not known yet.
        attrs: Attributes that differ from their defaults.

    Raises:
        GraphError: Unknown operator, wrong number of arguments, or unknown or missing attributes.
    """
    op = lookup(name)
    op.check_count(len(args))
    values = op.complete(attrs or {})
    exprs = [relay.Tuple(list(arg)) if isinstance(arg, tuple | list) else arg for arg in args]
    row = _NATIVE.get(name)
    if row is None:
        return relay.Call(Op.get(name), exprs, dict_attrs(values))
    if row.takes(values, [typed(expr).checked_type for expr in exprs]):
        return row.make(exprs, values)
    return relay.Call(Op.get(TWINS[name].name), exprs, dict_attrs(values))
