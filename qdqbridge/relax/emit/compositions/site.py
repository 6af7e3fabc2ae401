"""One ONNX node as a composition sees it: its attributes, its operands, Relax's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.foreign import ForeignAttrs
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.scope import Scope


@dataclass(frozen=True, slots=True)
class Site:
    """A node, and the function that it is emitted into.

    Attributes:
        scope: The function.
        node: The graph's node.
        onnx: Its attributes and constant operands.
    """

    scope: Scope
    node: Node
    onnx: NodeView

    @staticmethod
    def of(scope: Scope, node: Node) -> Site:
        """Returns the site of a carried node."""
        attributes = node.attributes
        assert isinstance(attributes, ForeignAttrs)
        shapes = [value.type.shape for value in node.outputs]
        view = NodeView(attributes.node.proto(), attributes.version, node.inputs, shapes)
        return Site(scope, node, view)

    # ---- operands -----------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """True where an operand is given."""
        return self.onnx.optional(index) is not None

    def arg(self, index: int) -> Expr:
        """Returns the expression of an operand that is given."""
        return self.scope.value(self.onnx.operand(index))

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
        return self.scope.emit(self.scope.function(name)(*args, **attributes))

    def number(self, value: Any, like: Expr | str) -> Expr:
        """Returns a constant in the element type of an expression, or of that name."""
        dtype = like if isinstance(like, str) else self.scope.dtype(like)
        return self.scope.number(np.asarray(value).astype(np.dtype(numpy_dtype(dtype))))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Returns an expression in an element type."""
        return self.scope.cast(expr, dtype)

    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression, as TVM names it."""
        return self.scope.dtype(expr)

    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression: ints and symbols.

        Raises:
            NoRow: Even its rank is open.
        """
        if expr.ty.shape is None:
            raise NoRow("the shape of an operand is known at run time only")
        return self.scope.extents(expr)

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


Composition: TypeAlias = "Callable[[Site], Sequence[Expr]]"
"""Emits a node: an expression for each of its results; raises NoRow for spellings unknown to it."""


def numpy_dtype(name: str) -> Any:
    """Returns NumPy's type of a TVM element type."""
    return next(dtype.numpy for dtype in DType if dtype.label == name)
