"""One call of a dialect operator, decoded: its attributes, operand types and constants."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, sym, tirx

from qdqbridge.errors import GraphError

Extent = Any
"""A Python int, or a symbolic TIR expression."""

_INTEGERS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}


def limits(dtype: str) -> tuple[int, int]:
    """Returns the smallest and largest value of an integer type."""
    return _INTEGERS[dtype]


def is_integer(dtype: str) -> bool:
    """True for the integer types that the dialect stores."""
    return dtype in _INTEGERS


def is_code(dtype: str) -> bool:
    """True for 8- and 16-bit integers, the types of quantized activations."""
    return dtype in ("int8", "uint8", "int16", "uint16")


class Site:
    """A call with its operator's argument names; every check raises one kind of error."""

    def __init__(self, name: str, arguments: tuple[str, ...], call: ir.Call) -> None:
        self.name, self.arguments, self.call = name, arguments, call
        self.args = list(call.args)

    def fail(self, why: str, fix: str = "") -> NoReturn:
        """Raises the error of this call.

        Raises:
            GraphError: Always.
        """
        raise GraphError(f"a call of {self.name} is not valid", why=why, fix=fix)

    def attr(self, name: str) -> Any:
        """Returns an attribute as a plain Python value; lists come as tuples."""
        attrs: Any = self.call.attrs
        return _decode(attrs[name])

    def tensor(self, index: int) -> tuple[list[Extent], str]:
        """Returns the extents (ints, or expressions where symbolic) and dtype of an argument."""
        return self.tensor_of(self.args[index].ty, self.arguments[index])

    def tensor_of(self, type_: Any, label: str) -> tuple[list[Extent], str]:
        """As :meth:`tensor`, of a type; ``label`` names it in an error."""
        shape = getattr(type_, "shape", None)
        if not isinstance(type_, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
            self.fail(
                f"{label} has type {type_}",
                "give a tensor of known rank; extents may be symbolic variables",
            )
        return [_decode(extent) for extent in shape.values], str(type_.dtype)

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
        if not isinstance(expr, ir.GenericConst):
            self.fail(
                f"{label} is not a constant",
                "bind the parameters first (relax.transform.BindParams), or keep the call in a "
                "composite function of a backend",
            )
        return np.asarray(expr.value.numpy())

    def is_constant(self, index: int) -> bool:
        """True where an argument is a constant."""
        return isinstance(self.args[index], ir.GenericConst)

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


def _decode(value: Any) -> Any:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, ir.Array | tuple | list):
        return tuple(_decode(item) for item in value)
    return value


def tensor_type(shape: Any, dtype: str) -> relax.TensorType:
    """Returns a Relax tensor type; integer arithmetic on symbolic extents is simplified."""
    extents: list[Any] = [e if isinstance(e, int) else sym.Analyzer().simplify(e) for e in shape]
    return relax.TensorType(extents, dtype)


def const(array: Any, dtype: str) -> ir.GenericConst:
    """Returns a Relax constant of at least one axis.

    Rank 0 is avoided because fusion could turn a scalar constant into an immediate, which TVM's
    simplifier then rewrites (``x / c`` into ``x * (1 / c)``).
    """
    data = np.atleast_1d(np.asarray(array, dtype=dtype))
    return relax.const(np.ascontiguousarray(data), dtype)
