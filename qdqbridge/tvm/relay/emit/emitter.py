"""The Relay side of emission: expressions whose types are inferred one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relay

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, Variant, tvm_dtype, unsupported
from qdqbridge.tvm.relay.dialect import call
from qdqbridge.tvm.relay.dialect.host import typed
from qdqbridge.tvm.relay.emit.operators import Operators, dtype_of, shape_of
from qdqbridge.tvm.relay.emit.operators import constant as tensor

Lift = Callable[[Constant, str], "relay.Var | None"]


class RelayEmitter(FunctionEmitter):
    """Emits one Relay function.

    Args:
        variant: The choices between equivalent forms.
        channels_last: The nodes whose data operand and results are channels-last.
        lift: Makes a parameter of a large constant; None embeds every constant.
    """

    op: Any = Operators()
    only_images = True
    only_matrices = True

    def __init__(
        self, variant: Variant, channels_last: frozenset[Node], lift: Lift | None = None
    ) -> None:
        super().__init__(variant, channels_last)
        self._span: tuple[str, Any] = "", None
        self._lift = lift
        self._constants: dict[Constant, Expr] = {}

    def emit(self, expr: Expr, name: str = "") -> Expr:
        """Returns an expression with its type; its new calls get spans that say where from."""
        del name
        if not self.origin:
            return typed(expr)
        if self._span[0] != self.origin:
            self._span = self.origin, ir.Span(ir.SourceName(self.origin), 0, 0, 0, 0)
        return self._from_node(expr, {})

    def _from_node(self, expr: Expr, done: dict[Any, Expr]) -> Expr:
        """Gives the calls that have no span yet the one of the node, operands first."""
        if expr in done:
            return done[expr]
        made = expr
        if isinstance(expr, relay.Call) and expr.span is None:
            args = [self._from_node(arg, done) for arg in expr.args]
            made = relay.Call(expr.op, args, expr.attrs, expr.type_args, self._span[1])
        elif isinstance(expr, relay.Tuple):
            made = relay.Tuple([self._from_node(field, done) for field in expr.fields])
        elif isinstance(expr, relay.TupleGetItem):
            made = relay.TupleGetItem(self._from_node(expr.tuple_value, done), expr.index)
        done[expr] = typed(made)
        return done[expr]

    def qnn(
        self, name: str, args: Sequence[Any], attrs: dict[str, Any] | None = None, hint: str = ""
    ) -> Expr:
        """Emits a call of the QNN dialect."""
        del hint
        known = [[typed(a) for a in arg] if isinstance(arg, list) else typed(arg) for arg in args]
        return self.emit(call(f"qnn.{name}", known, attrs))

    def number(self, array: NDArray[Any]) -> Expr:
        """Returns a small constant (a scale, a zero point, indices)."""
        return tensor(np.ascontiguousarray(array).reshape(array.shape))

    def constant(self, constant: Constant, name: str) -> Expr:
        """Returns a constant expression; one per Constant object, copied into TVM once."""
        if constant not in self._constants:
            lifted = None if self._lift is None else self._lift(constant, name)
            self._constants[constant] = tensor(held(constant)) if lifted is None else typed(lifted)
        return self._constants[constant]

    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression."""
        return shape_of(expr)

    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression."""
        return dtype_of(expr)

    def item(self, expr: Expr, index: int) -> Expr:
        """Returns a field of a tuple."""
        return typed(relay.TupleGetItem(typed(expr), index))

    def run_time_extent(self, expr: Expr, axis: int, dtype: str) -> Expr:
        """Returns the length of an axis as a scalar."""
        return self.number(np.asarray(shape_of(expr)[axis], dtype))

    def run_time_shape(self, node: Node, expr: Expr) -> Expr:
        """Refuses shapes that are computed at run time.

        Raises:
            UnsupportedTargetError: Always.
        """
        del expr
        raise unsupported(node, "its shape is computed at run time")

    def shape_vector(self, expr: Expr) -> Expr:
        """Returns the extents of an expression as an int64 vector."""
        return self.number(np.asarray(shape_of(expr), np.int64))


def held(constant: Constant) -> NDArray[Any]:
    """Returns the elements as TVM holds them, contiguous."""
    array = constant.numpy().astype(tvm_dtype(constant.dtype), copy=False)
    return np.ascontiguousarray(array).reshape(array.shape)
