"""What patterns are matched against: expressions of either host, seen in one way.

A host (:mod:`relax_host`, :mod:`relay_host`) hands out terms; nothing here imports TVM. Operators
have Relay's names and attributes have Relay's names and plain Python values on both hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Extents: TypeAlias = "tuple[int | str, ...] | None"
"""Lengths of axes; symbolic ones by name. None for tuples and unknown ranks."""


class Term:
    """One value.

    Attributes:
        shape: Its extents; None for a tuple.
        dtype: Its element type; empty for a tuple.
        source: The host's expression, for a backend that needs more.
    """

    __slots__ = ("dtype", "shape", "source")

    def __init__(self, source: Any, shape: Extents, dtype: str) -> None:
        self.source, self.shape, self.dtype = source, shape, dtype

    def __repr__(self) -> str:
        extents = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.label()}: {self.dtype}[{extents}]"

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a value"


class Free(Term):
    """A value from outside: a parameter, or a variable that nothing is known about.

    Attributes:
        name: The variable's name.
    """

    __slots__ = ("name",)

    def __init__(self, source: Any, shape: Extents, dtype: str, name: str) -> None:
        super().__init__(source, shape, dtype)
        self.name = name

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return f"variable {self.name}"


class FixedTerm(Term):
    """A constant; read when asked for."""

    __slots__ = ("_array", "_read")

    def __init__(
        self, source: Any, shape: Extents, dtype: str, read: Callable[[], NDArray[Any]]
    ) -> None:
        super().__init__(source, shape, dtype)
        self._read = read
        self._array: NDArray[Any] | None = None

    def numpy(self) -> NDArray[Any]:
        """Returns its elements."""
        if self._array is None:
            self._array = np.asarray(self._read())
        return self._array

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a constant"


class Group(Term):
    """A tuple of values, built where it is used."""

    __slots__ = ("_fields", "_resolve")

    def __init__(self, source: Any, resolve: Callable[[], Sequence[Term]]) -> None:
        super().__init__(source, None, "")
        self._resolve = resolve
        self._fields: tuple[Term, ...] | None = None

    @property
    def fields(self) -> tuple[Term, ...]:
        """Its values."""
        if self._fields is None:
            self._fields = tuple(self._resolve())
        return self._fields

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return "a tuple"


class Applied(Term):
    """A call of an operator, or of a function.

    Attributes:
        op: Relay's name of the operator; ``@name`` for a call of a function.
        name: The variable it is bound to, or another name a person finds it by.
        composite: The table entry where it is the call of a composite function.
    """

    __slots__ = ("_args", "_attrs", "_read", "_resolve", "composite", "name", "op")

    def __init__(
        self,
        source: Any,
        shape: Extents,
        dtype: str,
        op: str,
        resolve: Callable[[], Sequence[Term]],
        read: Callable[[], Mapping[str, Any]],
        *,
        name: str = "",
        composite: str = "",
    ) -> None:
        super().__init__(source, shape, dtype)
        self.op, self.name, self.composite = op, name, composite
        self._resolve, self._read = resolve, read
        self._args: tuple[Term, ...] | None = None
        self._attrs: Mapping[str, Any] | None = None

    @property
    def args(self) -> tuple[Term, ...]:
        """Its tensor (and tuple) arguments."""
        if self._args is None:
            self._args = tuple(self._resolve())
        return self._args

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Its attributes by Relay's names; arguments that are no tensors count among them."""
        if self._attrs is None:
            self._attrs = self._read()
        return self._attrs

    def label(self) -> str:
        """Returns what it is, in a word or two."""
        return f"composite {self.composite}" if self.composite else self.op


def constant(term: Term) -> NDArray[Any] | None:
    """Returns the elements of a constant; None for another term."""
    return term.numpy() if isinstance(term, FixedTerm) else None
