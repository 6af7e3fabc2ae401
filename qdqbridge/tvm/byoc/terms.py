"""What patterns are matched against: expressions of either host, seen in one way.

A host (:mod:`relax_host`, :mod:`relay_host`) hands out terms; nothing here imports TVM. Operators
have Relay's names and attributes have Relay's names and plain Python values on both hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# --------------------------------------------------------------------------------------------------
# A value as a composite sees it: shape, element type, parameters, and the data of a constant.

RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
}
"""Smallest and largest value of the integer types."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A value as it is stored.

    Attributes:
        shape: Its extents; symbolic ones by name.
        dtype: Its element type.
        term: Where it comes from.
        scale: float32, rank 0 (per tensor) or 1 (along ``axis``); None for values whose
            parameters the composite does not state: floats, and moved data.
        zero_point: int32, of the scale's shape or rank 0.
        axis: The axis of rank-1 parameters.
    """

    shape: Extents
    dtype: str
    term: Term
    scale: NDArray[np.float32] | None = None
    zero_point: NDArray[np.int32] | None = None
    axis: int | None = None

    def __repr__(self) -> str:
        extents = "?" if self.shape is None else ", ".join(map(str, self.shape))
        parts = [f"{self.dtype}[{extents}]", "constant" if self.is_constant else ""]
        if self.scale is not None and self.zero_point is not None:
            one = self.per_tensor
            parts.append(f"scale={float(self.scale):.9g}" if one else f"{self.scale.size} scales")
            parts.append(f"zero_point={self.zero_point}" if one else f"axis={self.axis}")
        return f"<{' '.join(part for part in parts if part)}>"

    @property
    def data(self) -> NDArray[Any] | None:
        """The elements of a constant, None for what is computed."""
        return constant(self.term)

    @property
    def is_constant(self) -> bool:
        """True for a constant that is embedded in the composite."""
        return constant(self.term) is not None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return 0 if self.shape is None else len(self.shape)

    @property
    def is_float(self) -> bool:
        """True for floating-point elements."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def per_tensor(self) -> bool:
        """True where one scale and one zero point hold for all elements."""
        return all(p is None or p.size == 1 for p in (self.scale, self.zero_point))

    @property
    def symmetric(self) -> bool:
        """True where every zero point is 0."""
        return self.zero_point is None or not self.zero_point.any()

    def same_params(self, other: Tensor) -> bool:
        """True where both map stored integers to the same real numbers, bit for bit."""
        if self.scale is None or other.scale is None or self.dtype != other.dtype:
            return self.scale is other.scale and self.dtype == other.dtype
        assert self.zero_point is not None and other.zero_point is not None
        return np.array_equal(self.scale, other.scale) and np.array_equal(
            self.zero_point, other.zero_point
        )


# --------------------------------------------------------------------------------------------------

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
