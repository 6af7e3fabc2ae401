"""The elementary steps of the numeric contract as TIR expressions.

Three habits of TVM and LLVM must be kept away from them (TVM 0.16 and 0.27,
LLVM 17 and 22):

* LLVM contracts ``a * b + c`` into a fused multiply-add on every CPU that has one. A product that
  is followed by an addition or subtraction goes through :func:`fenced`.
* TVM rewrites ``x / constant`` into ``x * (1 / constant)``. Scales are tensor arguments.
* ``te.round`` and ``T.nearbyint`` round half to even (a test checks it); half away from zero and
  half up are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te

from qdqbridge.tvm.qnn.ranges import limits

# ---- stages of a TE compute ----------------------------------------------------------------------

BLOCK = "accumulate"
"""Name of the stage that a host takes for the reduction by default."""


def stage(shape: Any, element: Callable[..., Any], name: str) -> te.Tensor:
    """Returns the TE tensor of ``shape`` whose element at ``i…`` is ``element(*i)``."""
    tensor: Any = te.compute(shape, element, name=name)
    return tensor


# ---- the names of TVM that moved between 0.16 (``tvm.tir``) and 0.27 (``tvm.tirx``) --------------

_tvm: Any = tvm
tirx: Any = _tvm.tirx if hasattr(_tvm, "tirx") else _tvm.tir
"""TIR expressions."""


def analyzer() -> Any:
    """Returns a new arithmetic analyzer of symbolic extents."""
    return _tvm.sym.Analyzer() if hasattr(_tvm, "sym") else _tvm.arith.Analyzer()


Prim = Any
"""A TIR expression."""

ROUNDINGS = ("TONEAREST_EVEN", "TONEAREST", "UPWARD")


def kind_of(value: Prim) -> str:
    """Returns the element type of a TIR expression."""
    type_ = getattr(value, "ty", None)
    return str(value.dtype if type_ is None else type_.dtype)


def fenced(value: Prim, zero: te.Tensor) -> Prim:
    """Returns a float32 or float64 value that LLVM cannot fuse with what follows.

    The bits go through an exclusive-or with a zero that only the caller of the PrimFunc knows;
    unlike ``llvm.arithmetic.fence`` this keeps loops vectorizable.
    """
    kind = kind_of(value)
    bits = "int64" if kind == "float64" else "int32"
    nothing = zero[0] if bits == "int32" else zero[0].astype(bits)
    return tirx.reinterpret(kind, tirx.bitwise_xor(tirx.reinterpret(bits, value), nothing))


def real(code: Prim, zero_point: Prim, scale: Prim) -> Prim:
    """Returns ``f32(code - zero_point) * scale``; a float operand is itself."""
    if kind_of(code).startswith("float"):
        return code.astype("float32")
    wide = "int64" if kind_of(code) in ("int32", "int64", "uint32") else "int32"
    return (code.astype(wide) - zero_point.astype(wide)).astype("float32") * scale


def rounded(value: Prim, rounding: str, zero: te.Tensor | None = None) -> Prim:
    """Returns ``value`` rounded to an integer, still as a float.

    Args:
        value: float32 or float64.
        rounding: ``TONEAREST_EVEN``, ``TONEAREST`` (half away from zero) or ``UPWARD``.
        zero: The fence argument, needed by the last two.
    """
    if rounding == "TONEAREST_EVEN":
        return tirx.nearbyint(value)
    assert zero is not None
    exact = fenced(value, zero)
    half, one = tirx.const(0.5, kind_of(value)), tirx.const(1.0, kind_of(value))
    if rounding == "UPWARD":
        low = tirx.floor(exact)
        return tirx.Select(exact - low >= half, low + one, low)
    near = tirx.trunc(exact)
    away = tirx.Select(exact < 0, near - one, near + one)
    return tirx.Select(tirx.abs(exact - near) >= half, away, near)


def saturated(value: Prim, zero_point: Prim, dtype: str, *, nan: bool = True) -> Prim:
    """Returns ``clip(value + zero_point)`` in an integer type, for a rounded float value.

    Args:
        value: A rounded float.
        zero_point: int32.
        dtype: The integer type of the result.
        nan: Whether the value can be NaN, which becomes the smallest stored value.
    """
    kind = kind_of(value)
    shifted = value + zero_point.astype(kind)
    low, high = limits(dtype)
    if nan:
        shifted = tirx.Select(tirx.isnan(shifted), tirx.const(low, kind), shifted)
    if dtype in ("int32", "int64"):
        bound = tirx.const(float(1 << 62), kind)
        wide = tirx.max(tirx.min(shifted, bound), -bound).astype("int64")
        return clipped(wide, low, high).astype(dtype)
    return clipped(shifted, low, high).astype("int32").astype(dtype)


def clipped(value: Prim, low: int, high: int) -> Prim:
    """Returns ``min(max(value, low), high)``."""
    kind = kind_of(value)
    return tirx.min(tirx.max(value, tirx.const(low, kind)), tirx.const(high, kind))


def quantized(value: Prim, scale: Prim, zero_point: Prim, dtype: str, *, nan: bool = True) -> Prim:
    """Returns ``sat(rint(value / scale) + zero_point)``."""
    return saturated(tirx.nearbyint(value / scale), zero_point, dtype, nan=nan)


def entry(vector: te.Tensor, indices: Any, axis: int) -> Prim:
    """Returns the entry of a per-tensor or per-channel vector that belongs to an element."""
    extent = vector.shape[0]
    return vector[0] if int(getattr(extent, "value", extent)) == 1 else vector[indices[axis]]
