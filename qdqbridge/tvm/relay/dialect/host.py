"""Relay as a host of the QNN dialect."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray
from tvm import ir, relay, runtime, tir

from qdqbridge.tvm.qnn.dialect.context import CallContext
from qdqbridge.tvm.relay.dialect.kernels import call_kernel


class RelayHost:
    """See ``qdqbridge.tvm.qnn.dialect.context.DialectHost``."""

    bind_hint = "relay.build_module.bind_params_by_name, then FoldConstant"

    def tensor(self, type_: Any) -> tuple[Sequence[Any], str] | None:
        """Returns extents and element type of a tensor type."""
        if not isinstance(type_, ir.TensorType):
            return None
        return list(type_.shape), str(type_.dtype)

    def field_types(self, type_: Any) -> list[Any] | None:
        """Returns the member types of a tuple type."""
        return list(type_.fields) if isinstance(type_, ir.TupleType) else None

    def fields(self, expr: Any) -> list[Any] | None:
        """Returns the members of an expression that is a tuple, or has a tuple type."""
        if isinstance(expr, relay.Tuple):
            return list(expr.fields)
        types = self.field_types(typed(expr).checked_type)
        if types is None:
            return None
        return [relay.TupleGetItem(expr, i) for i in range(len(types))]

    def array(self, expr: Any) -> NDArray[Any] | None:
        """Returns the elements of a constant."""
        return expr.data.numpy() if isinstance(expr, relay.Constant) else None

    def constant(self, array: NDArray[Any]) -> relay.Constant:
        """Returns a constant expression."""
        return relay.Constant(runtime.ndarray.array(array))

    def bind(self, expr: Any) -> Any:
        """Returns the expression itself, with its type known."""
        return typed(expr)

    def call_te(
        self,
        context: CallContext,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        inner: int,
        blocks: Sequence[str],
    ) -> Any:
        """Returns a call of one opaque operator that computes ``function``."""
        operands = [typed(arg) for arg in args]
        return call_kernel(_key(context, name, operands), name, function, operands, inner, blocks)


def typed(expr: Any) -> Any:
    """Returns an expression after inferring its type, from the types of what it is made of."""
    try:
        expr.checked_type  # noqa: B018
    except ValueError:
        relay.transform.InferTypeLocal(expr)
    return expr


def _key(context: CallContext, name: str, operands: Sequence[Any]) -> str:
    """Returns a digest of all that a TE function of ``context`` can depend on.

    That is its attributes, the types of its operands, and the constants that it is not given as
    operands.
    """
    parts = [context.name, name, *(str(operand.checked_type) for operand in operands)]
    parts += [f"{key}={context.attr(key)!r}" for key in context.attrs]
    digest = hashlib.sha256("\n".join(parts).encode())
    for arg, type_ in zip(context.args, context.types, strict=True):
        digest.update(str(type_).encode())
        members = arg.fields if isinstance(arg, relay.Tuple) else [arg]
        for member in members:
            given = any(member.same_as(operand) for operand in operands)
            if isinstance(member, relay.Constant) and not given:
                digest.update(member.data.numpy().tobytes())
    return digest.hexdigest()


def is_known(type_: Any) -> bool:
    """True for a type without parts that inference has still to find."""
    if isinstance(type_, ir.TupleType):
        return all(is_known(field) for field in type_.fields)
    return isinstance(type_, ir.TensorType)


def tensor_type(shape: Sequence[Any], dtype: str) -> ir.TensorType:
    """Returns a Relay tensor type; an extent that is not a number is ``relay.Any()``."""
    extents = [e if isinstance(e, int | tir.IntImm) else relay.Any() for e in shape]
    return relay.TensorType(extents, dtype)
