"""What the operators need of the IR that holds their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from qdqbridge.tvm.qnn.dialect.context import CallContext


class DialectHost(Protocol):
    """An IR with tensors, tuples, constants and calls of TE functions: Relax or Relay."""

    bind_hint: str
    """How a user makes parameters constants, for an error."""

    def tensor(self, type_: Any) -> tuple[Sequence[Any], str] | None:
        """Returns extents and element type of a tensor type; None for any other type."""
        ...

    def field_types(self, type_: Any) -> list[Any] | None:
        """Returns the member types of a tuple type; None for any other type."""
        ...

    def fields(self, expr: Any) -> list[Any] | None:
        """Returns the members of a tuple expression; None for any other expression."""
        ...

    def array(self, expr: Any) -> NDArray[Any] | None:
        """Returns the elements of a constant; None for any other expression."""
        ...

    def constant(self, array: NDArray[Any]) -> Any:
        """Returns a constant expression."""
        ...

    def bind(self, expr: Any) -> Any:
        """Returns an expression that several others may take, with its type known."""
        ...

    def call_te(
        self,
        context: CallContext,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        inner: int,
        blocks: Sequence[str],
    ) -> Any:
        """Returns a call of ``function``.

        Args:
            context: The call that is lowered.
            name: Hint for the name of the kernel.
            function: Makes a TE tensor of as many TE tensors as there are ``args``.
            args: Expressions.
            inner: How many of the last data loops are fused and run inside the loops of a
                reduction; with 0 the reduction is innermost.
            blocks: Names of the stages that reduce; their loops may be reordered.
        """
        ...


def vector(array: Any, dtype: str) -> NDArray[Any]:
    """Returns an array of at least one axis, for a constant.

    Rank 0 is avoided because fusion could turn a scalar constant into an immediate, which TVM's
    simplifier then rewrites (``x / c`` into ``x * (1 / c)``).
    """
    return np.ascontiguousarray(np.atleast_1d(np.asarray(array, dtype=dtype)))
