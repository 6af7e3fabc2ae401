"""One ONNX node as a composition sees it: its attributes, its operands, Relax's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import te

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import AnyAttributes, Attributes, Operator, Row
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.qnn.emit.floating import by_steps
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter


@dataclass(frozen=True, slots=True)
class CompositionContext:
    """A node, and the function that it is emitted into.

    Attributes:
        emitter: The function.
        node: The graph's node.
        onnx: Its attributes and constant operands.
    """

    emitter: RelaxEmitter
    node: Node
    onnx: NodeView

    @staticmethod
    def of(emitter: RelaxEmitter, node: Node) -> CompositionContext:
        """Returns the context of a node; of a row its record holds the attributes."""
        attributes = node.attributes
        if isinstance(attributes, OpaqueAttrs):
            view = NodeView(attributes.node.proto(), attributes.version, node.inputs)
        else:
            view = NodeView.of_operands(node.op.name, node.inputs)
        return CompositionContext(emitter, node, view)

    # ---- operands -----------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """True where an operand is given."""
        return self.onnx.optional(index) is not None

    def arg(self, index: int) -> Expr:
        """Returns the expression of an operand that is given."""
        return self.emitter.value(self.onnx.operand(index))

    def result_dtype(self, index: int = 0) -> DType:
        """Returns the element type of a result."""
        return self.node.outputs[index].type.dtype

    def asks(self, index: int) -> bool:
        """True where the node names a result."""
        names = self.onnx.proto.output
        return index < len(names) and bool(names[index])

    # ---- Relax --------------------------------------------------------------------------------

    def __call__(self, name: str, *args: Any, **attributes: Any) -> Expr:
        """Emits a call of one of Relax's operators, by its dotted name."""
        if name == "reshape" and 0 in (target := tuple(args[1])):  # Relax's copies an extent there
            name, args = "zeros", (target, self.dtype(args[0]))
        return self.emitter.emit(self.emitter.function(name)(*args, **attributes))

    def steps(self, row: Operator, attributes: Attributes, args: list[Expr]) -> Expr:
        """Emits an operator of the table by those that it stands for."""
        return self.emitter.emit(by_steps(self.emitter, row, attributes, args))

    def number(self, value: Any, like: Expr | str) -> Expr:
        """Returns a constant in the element type of an expression, or of that name."""
        dtype = like if isinstance(like, str) else self.emitter.dtype(like)
        return self.emitter.number(np.asarray(value).astype(np.dtype(numpy_dtype(dtype))))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Returns an expression in an element type."""
        return self.emitter.cast(expr, dtype)

    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression, as TVM names it."""
        return self.emitter.dtype(expr)

    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression: ints and symbols.

        Raises:
            NoRow: Even its rank is open.
        """
        if expr.ty.shape is None:
            raise NoRow("the shape of an operand is known at run time only")
        return self.emitter.extents(expr)

    def static(self, expr: Expr) -> tuple[int, ...]:
        """Returns the shape of an expression as numbers.

        Raises:
            NoRow: An extent is open.
        """
        extents = self.extents(expr)
        if not all(isinstance(extent, int) for extent in extents):
            raise NoRow("an extent is known at run time only")
        return tuple(extents)

    def rank(self, expr: Expr) -> int:
        """Returns the number of axes of an expression."""
        return len(self.extents(expr))

    # ---- shapes of run time -------------------------------------------------------------------

    def constant_ints(self, index: int) -> tuple[int, ...] | None:
        """Returns a constant operand that lists integers; None where only the run knows it."""
        try:
            return self.onnx.constant_ints(index) or ()
        except NoRow:
            return None

    def integers(self, index: int) -> Expr:
        """Returns an operand that lists integers as an int64 vector of known length.

        Raises:
            NoRow: Its length is open.
        """
        vector = self.cast(self.arg(index), "int64")
        self.static(vector)
        return self("reshape", vector, (-1,)) if self.rank(vector) != 1 else vector

    def element(self, vector: Expr, index: int) -> Expr:
        """Returns an element of a vector as a scalar."""
        one = self("strided_slice", vector, axes=[0], begin=[index], end=[index + 1])
        return self("reshape", one, ())

    def shape_vector(self, expr: Expr) -> Expr:
        """Returns the extents of an expression as an int64 vector."""
        extents = self.extents(expr)
        if all(isinstance(extent, int) for extent in extents):
            return self.number(np.asarray(extents, np.int64), "int64")
        return self.emitter.shape_vector(expr)

    def bound(self, vector: Expr, label: str = "n") -> list[Any]:
        """Returns the elements of an int64 vector as extents: variables of the function."""
        (count,) = self.static(vector)
        return self.emitter.bound_vector(vector, count, label)

    def counted(self, extent: Any, dtype: str = "int64") -> Expr:
        """Returns ``0, 1, 2 …`` up to an extent."""
        if isinstance(extent, int):
            return self.number(np.arange(extent), dtype)
        return self("arange", 0, extent, 1, dtype=dtype)

    def along(self, vector: Expr, axis: int, rank: int) -> Expr:
        """Returns a vector that broadcasts along an axis of a tensor of ``rank`` axes."""
        others = [place for place in range(rank) if place != axis]
        return self("expand_dims", vector, others) if others else vector


Composition: TypeAlias = "Callable[[CompositionContext], Sequence[Expr]]"
"""Emits a node: an expression for each of its results; raises NoRow for variants unknown to it."""


def of_row(
    row: Row[AnyAttributes], compose: Callable[[CompositionContext, AnyAttributes], Sequence[Expr]]
) -> tuple[str, Composition]:
    """Returns the entry of a row whose function takes the attributes that the row has."""
    return row.name, lambda context: compose(context, context.node.record(row.attributes))


def numpy_dtype(name: str) -> Any:
    """Returns NumPy's type of a TVM element type."""
    return next(dtype.numpy for dtype in DType if dtype.label == name)


def loops(
    context: CompositionContext, name: str, compute: Callable[..., te.Tensor], *args: Expr
) -> Expr:
    """Emits a call of a function of loops."""
    return context.emitter.emit(
        context.emitter.builder.call_te(compute, *args, primfunc_name_hint=name)
    )


def wide(context: CompositionContext, x: Expr) -> Expr:
    """Returns half floats in float32, in which hosts add."""
    return context.cast(x, "float32") if context.dtype(x) in ("float16", "bfloat16") else x
