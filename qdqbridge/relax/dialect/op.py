"""The record that defines one operator of the dialect, and how it becomes a Relax operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.ir import Op, register_op_attr
from tvm.ir import _ffi_api as ir_api

from qdqbridge.errors import GraphError
from qdqbridge.relax.dialect.site import Site

REQUIRED = object()
"""Default of an attribute that every call must give."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator.

    Attributes:
        name: Relay's name where Relay has the attribute.
        default: A plain Python value, or ``REQUIRED``. Every call carries every attribute.
        doc: What it means, with its units.
    """

    name: str
    default: Any
    doc: str


Infer = Callable[[Site], "relax.TensorType"]
Lower = Callable[["relax.BlockBuilder", Site], Any]


@dataclass(frozen=True, slots=True)
class QnnOp:
    """One operator of the QNN dialect.

    Attributes:
        name: ``qnn.<name>``.
        arguments: Names of the tensor arguments in call order (Relay's order).
        attributes: Every attribute with its default.
        infer: Checks a call and returns the type of its result.
        lower: Returns plain Relax calls of PrimFuncs that compute the numeric contract exactly.
        doc: The contract in one sentence.
    """

    name: str
    arguments: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    infer: Infer
    lower: Lower
    doc: str

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``attrs`` with every default filled in.

        Raises:
            GraphError: An attribute is unknown or missing.
        """
        names = {attribute.name for attribute in self.attributes}
        unknown = sorted(set(attrs) - names)
        values = {a.name: attrs.get(a.name, a.default) for a in self.attributes}
        missing = sorted(name for name, value in values.items() if value is REQUIRED)
        if unknown or missing:
            raise GraphError(
                f"cannot build a call of {self.name}",
                why=f"unknown attributes {unknown}, missing attributes {missing}",
                fix=f"its attributes are {sorted(names)}",
            )
        return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


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
    return lambda call, builder: op.infer(Site(op.name, op.arguments, call))


def _legalize_hook(op: QnnOp) -> Callable[[relax.BlockBuilder, ir.Call], Any]:
    return lambda builder, call: op.lower(builder, Site(op.name, op.arguments, call))


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
    if len(args) != len(op.arguments):
        raise GraphError(
            f"cannot build a call of {name}",
            why=f"{len(args)} arguments given",
            fix=f"it takes {len(op.arguments)}: {', '.join(op.arguments)}",
        )
    exprs: list[Any] = [relax.Tuple(arg) if isinstance(arg, tuple | list) else arg for arg in args]
    return ir.Call(Op.get(name), exprs, attrs=op.complete(attrs or {}))


def lower_call(builder: relax.BlockBuilder, node: ir.Call) -> Any:
    """Returns the legalization of a call, for a legalization that is made of others."""
    op = lookup(node.op.name)
    return op.lower(builder, Site(op.name, op.arguments, node))
