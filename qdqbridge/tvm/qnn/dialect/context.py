"""One call of a dialect operator, decoded: its attributes, operand types and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.arithmetic import BLOCK, analyzer, tirx

# ---- what the operators need of the IR that holds their calls ------------------------------------


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


Extent = Any
"""A Python int, or a symbolic TIR expression."""


@dataclass(frozen=True, slots=True)
class ResultType:
    """The type of a result: extents (ints, or TIR expressions where symbolic) and element type."""

    shape: tuple[Extent, ...]
    dtype: str

    @classmethod
    def of(cls, shape: Sequence[Extent], dtype: str) -> ResultType:
        """Returns a type; integer arithmetic on symbolic extents is simplified."""
        extents = (e if isinstance(e, int) else analyzer().simplify(e) for e in shape)
        return cls(tuple(extents), dtype)


class CallContext:
    """A call with its operator's argument names; every check raises one kind of error."""

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...],
        args: Sequence[Any],
        types: Sequence[Any],
        attrs: Mapping[str, Any],
        host: DialectHost,
    ) -> None:
        """Keeps a call.

        Args:
            name: ``qnn.<name>``.
            arguments: Names of the arguments.
            args: The host's expressions; empty where only types are known.
            types: The host's types of them.
            attrs: The host's value of every attribute.
            host: The IR that the call is part of.
        """
        self.name, self.arguments, self.host = name, arguments, host
        self.args, self.types, self.attrs = list(args), list(types), attrs

    def fail(self, why: str, fix: str = "") -> NoReturn:
        """Raises the error of this call.

        Raises:
            GraphError: Always.
        """
        raise GraphError(f"a call of {self.name} is not valid", why=why, fix=fix)

    def attr(self, name: str) -> Any:
        """Returns an attribute as a plain Python value; lists come as tuples."""
        return decode(self.attrs[name])

    def tensor(self, index: int) -> tuple[list[Extent], str]:
        """Returns the extents (ints, or expressions where symbolic) and dtype of an argument."""
        return self.tensor_of(self.types[index], self.arguments[index])

    def tensor_of(self, type_: Any, label: str) -> tuple[list[Extent], str]:
        """As :meth:`tensor`, of a type; ``label`` names it in an error."""
        tensor = self.host.tensor(type_)
        if tensor is None:
            self.fail(
                f"{label} has type {type_}",
                "give a tensor of known rank; extents may be symbolic variables",
            )
        return [decode(extent) for extent in tensor[0]], tensor[1]

    def shape(self, index: int) -> list[Extent]:
        """Returns the extents of an argument."""
        return self.tensor(index)[0]

    def dtype(self, index: int) -> str:
        """Returns the element type of an argument."""
        return self.tensor(index)[1]

    def expect_dtype(self, index: int, *allowed: str) -> str:
        """Returns the element type of an argument after checking it."""
        dtype = self.dtype(index)
        if dtype not in allowed:
            self.fail(
                f"{self.arguments[index]} has dtype {dtype}", f"use one of {', '.join(allowed)}"
            )
        return dtype

    def expect_rank(self, index: int, rank: int) -> list[Extent]:
        """Returns the extents of an argument after checking their number."""
        shape = self.shape(index)
        if len(shape) != rank:
            self.fail(f"{self.arguments[index]} has {len(shape)} axes", f"give it {rank}")
        return shape

    def expect_equal(self, a: Extent, b: Extent, what: str) -> None:
        """Fails where two extents are certainly different."""
        if isinstance(a, int) and isinstance(b, int) and a != b:
            self.fail(f"{what}: {a} and {b} differ")

    def expect_params(
        self, scale: int, zero_point: int, channels: Extent = None, *, what: str = "channels"
    ) -> None:
        """Checks a scale (float32) and zero point (int32), per tensor or per channel.

        Args:
            scale: Index of the scale argument.
            zero_point: Index of the zero point argument.
            channels: Extent of the channel axis, or None where only per-tensor is allowed.
            what: What the axis is called in an error.
        """
        self.expect_vector(scale, "float32", channels, what=what)
        self.expect_vector(zero_point, "int32", channels, what=what)

    def expect_vector(
        self, index: int, dtype: str, *channels: Extent, what: str = "channels"
    ) -> None:
        """Checks one parameter: a number, or one entry for each of any of ``channels``."""
        self.expect_dtype(index, dtype)
        shape = self.shape(index)
        if len(shape) > 1:
            self.fail(f"{self.arguments[index]} has {len(shape)} axes", "give it 0 or 1")
        if not shape or shape[0] == 1:
            return
        known = [extent for extent in channels if extent is not None]
        if not known:
            self.fail(f"{self.arguments[index]} has {shape[0]} entries", "give one number")
        if all(isinstance(extent, int) and extent != shape[0] for extent in known):
            self.fail(
                f"{self.arguments[index]} has {shape[0]} entries for {known[-1]} {what}",
                "give one number, or one for each",
            )

    def constant(self, index: int) -> NDArray[Any]:
        """Returns the elements of a constant argument.

        Raises:
            GraphError: The argument is not a constant.
        """
        return self.constant_of(self.args[index], self.arguments[index])

    def constant_of(self, expr: Any, label: str) -> NDArray[Any]:
        """As :meth:`constant`, of an expression; ``label`` names it in an error."""
        array = self.host.array(expr)
        if array is None:
            self.fail(
                f"{label} is not a constant",
                f"bind the parameters first ({self.host.bind_hint}), or keep the call in a "
                "composite function of a backend",
            )
        return np.asarray(array)

    def is_constant(self, index: int) -> bool:
        """True where an argument is a constant."""
        return self.host.array(self.args[index]) is not None

    def vector(self, index: int) -> NDArray[Any]:
        """Returns a constant argument as a rank-1 array (one entry where it is per tensor)."""
        return self.constant(index).reshape(-1)

    def axis(self, rank: int, name: str = "axis") -> int:
        """Returns an attribute that names an axis, made non-negative."""
        return self.normal_axis(self.attr(name), rank, name)

    def normal_axis(self, axis: int, rank: int, label: str = "axis") -> int:
        """Returns ``axis`` counted from the front; a scalar counts as one axis."""
        extent = max(rank, 1)
        if not -extent <= axis < extent:
            self.fail(f"{label} is {axis} for {rank} axes")
        return axis % extent

    def const(self, array: Any, dtype: str) -> Any:
        """Returns a constant expression of at least one axis."""
        return self.host.constant(vector(array, dtype))

    def params(self, *pairs: tuple[int, int]) -> list[Any]:
        """Returns constant scales (float32) and zero points (int32), pair after pair."""
        return [
            self.const(self.vector(index), dtype)
            for pair in pairs
            for index, dtype in zip(pair, ("float32", "int32"), strict=True)
        ]

    def fence(self) -> Any:
        """Returns the zero that ``arithmetic.fenced`` needs, an argument of the kernel."""
        return self.const([0, 0], "int32")

    def call_te(self, name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Returns a call of the kernel that TE makes of ``function``."""
        return self.host.call_te(self, name, function, args, 0, ())

    def reduce_te(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        *,
        inner: int = 0,
        blocks: Sequence[str] = (BLOCK,),
    ) -> Any:
        """As :meth:`call_te`, for a function with reductions; see ``DialectHost.call_te``."""
        return self.host.call_te(self, name, function, args, inner, blocks)

    def nested(
        self,
        name: str,
        arguments: tuple[str, ...],
        args: Sequence[Any],
        types: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> CallContext:
        """Returns the context of another operator's call, for a lowering that is made of others."""
        return CallContext(name, arguments, args, types, attrs, self.host)


def decode(value: Any) -> Any:
    """Returns an attribute or extent as a plain Python value; other expressions as they are."""
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tuple | list):
        return tuple(decode(item) for item in value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):  # TVM's own arrays
        return tuple(decode(value[i]) for i in range(len(value)))
    return value


# ---- The record that defines one operator of the dialect, for every host -------------------------


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


Infer = Callable[[CallContext], ResultType]
Lower = Callable[[CallContext], Any]


@dataclass(frozen=True, slots=True)
class QnnOp:
    """One operator of the QNN dialect.

    Attributes:
        name: ``qnn.<name>``.
        arguments: Names of the tensor arguments in call order (Relay's order).
        attributes: Every attribute with its default.
        infer: Checks a call and returns the type of its result.
        lower: Returns calls of TE functions that compute the numeric contract exactly.
        doc: The contract in one sentence.
    """

    name: str
    arguments: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    infer: Infer
    lower: Lower
    doc: str

    def check_count(self, count: int) -> None:
        """Checks the number of arguments.

        Raises:
            GraphError: It is not the number that the operator takes.
        """
        if count != len(self.arguments):
            raise GraphError(
                f"cannot build a call of {self.name}",
                why=f"{count} arguments given",
                fix=f"it takes {len(self.arguments)}: {', '.join(self.arguments)}",
            )

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
        return {name: _tuples_to_lists(value) for name, value in values.items()}


def _tuples_to_lists(value: Any) -> Any:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, tuple | list) else value


# ---- Layouts: which axis of a tensor in memory is which axis of its channels-first form ----------
# The operators are written channels-first (``NCHW``, ``OIHW``); a layout turns their shapes and
# indices into those of a tensor that is stored otherwise.


SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Letters of the spatial axes, by their number."""


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """Where the axes of the channels-first form lie.

    Attributes:
        axes: For every channels-first axis, the axis in memory.
    """

    axes: tuple[int, ...]

    @property
    def straight(self) -> bool:
        """True where memory is channels-first itself."""
        return self.axes == tuple(range(len(self.axes)))

    def logical(self, stored: Sequence[Any]) -> list[Any]:
        """Returns extents or indices in channels-first order."""
        return [stored[axis] for axis in self.axes]

    def stored(self, logical: Sequence[Any]) -> list[Any]:
        """Returns extents or indices in the order of memory."""
        return [logical[self.axes.index(axis)] for axis in range(len(self.axes))]


def straight(rank: int) -> AxisLayout:
    """Returns the layout of a channels-first tensor with ``rank`` axes."""
    return AxisLayout(tuple(range(rank)))


def data_layout(context: CallContext, name: str, spatial: int) -> AxisLayout:
    """Returns the layout that attribute ``name`` states for data, ``NCHW`` or ``NHWC``."""
    letters = SPATIAL[spatial]
    return _layout(context, name, "NC" + letters, ("NC" + letters, "N" + letters + "C"))


def kernel_layout(context: CallContext, spatial: int, *, transposed: bool) -> AxisLayout:
    """Returns the layout of a weight; its channels-first form is ``OIHW``, transposed ``IOHW``.

    Every order in which the spatial axes stay together and in order is supported.
    """
    letters = SPATIAL[spatial]
    outer = "IO" if transposed else "OI"
    orders = [
        first + letters + last
        for pair in ("OI", "IO")
        for first, last in ((pair, ""), ("", pair), (pair[0], pair[1]))
    ]
    return _layout(context, "kernel_layout", outer + letters, orders)


def _layout(context: CallContext, name: str, canonical: str, allowed: Sequence[str]) -> AxisLayout:
    stated = context.attr(name)
    if stated not in allowed:
        context.fail(f"{name} is {stated}", f"use one of {', '.join(allowed)}")
    return AxisLayout(tuple(stated.index(letter) for letter in canonical))
