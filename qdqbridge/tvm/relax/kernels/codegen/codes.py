"""How float and integer vectors become codes of 8 or 16 bits, with parameters as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import Dim, QuantParams, Shape
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    floats,
    fused,
    load,
    narrowed,
    nearest,
    splat,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.kernel import any_open
from qdqbridge.tvm.relax.kernels.kernel import extents as open_extents

BYTES = {DType.UINT8: "uint8", DType.INT8: "int8"}
CODES = {**BYTES, DType.UINT16: "uint16", DType.INT16: "int16"}
REACH = 2.0**20
"""Quotients beyond it saturate in any type of up to 16 bits."""
_USUAL = 1e-30, 1e30


def bytes_of(value: Value) -> QuantParams | None:
    """Returns the parameters of a value of 8-bit codes that has one scale; None for others."""
    params = words_of(value)
    return None if params is None or params.storage_dtype not in BYTES else params


def words_of(value: Value) -> QuantParams | None:
    """Returns the parameters of a value of 8- or 16-bit codes of one scale; None for others."""
    quant = value.quant
    if quant is None or not quant.params.per_tensor or quant.params.storage_dtype not in CODES:
        return None
    usual = _USUAL[0] < float(quant.params.scale) < _USUAL[1]
    return quant.params if usual else None


def storage(params: QuantParams) -> str:
    """Returns TVM's name of the element type of codes."""
    return CODES[params.storage_dtype]


def extents(shape: Shape) -> tuple[int | None, ...] | None:
    """Returns a shape of any rank, as :func:`~.operands.extents` returns others."""
    return () if shape == () else open_extents(shape)


def operand_extents(value: Value) -> tuple[int | None, ...] | None:
    """Returns the shape of an operand; a constant of no axes is handed over with one."""
    return (1,) if value.is_constant and value.rank == 0 else any_open(value.type.shape)


def one_batch(*values: Value | None) -> bool:
    """True where the open extents of values are all the same."""
    shapes = [value.type.shape for value in values if value is not None]
    names = {extent for shape in shapes if shape for extent in shape if isinstance(extent, str)}
    return len(names) <= 1


def alike(*values: Value) -> bool:
    """True where values certainly have one shape, whichever extents of it are open."""
    shapes = {value.type.shape for value in values}
    return len(shapes) == 1 and None not in shapes


def broadcasts(operands: Sequence[Value | None], result: Value) -> bool:
    """True where every extent of every operand is certainly that of the result, or 1."""
    shape = result.type.shape
    return shape is not None and all(
        v is None or (v.type.shape is not None and _broadcasts_to(v.type.shape, shape))
        for v in operands
    )


def _broadcasts_to(shape: tuple[Dim, ...], result: tuple[Dim, ...]) -> bool:
    own = result[len(result) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, own, strict=True))


@dataclass(frozen=True, slots=True)
class SourceCodes:
    """Codes that a kernel reads; one scale for all of them.

    Attributes:
        scale: The scale, a scalar expression.
        zero_point: The zero point, int32.
    """

    scale: Prim
    zero_point: Prim

    def real(self, code: Prim, lanes: int) -> Prim:
        """Returns the float32 value of codes, fenced."""
        centred = wide(code, lanes) - splat(self.zero_point, lanes)
        return fence(floats(centred, lanes) * splat(self.scale, lanes))


@dataclass(frozen=True, slots=True)
class CodesForm:
    """What shapes the code that makes codes of a result.

    Attributes:
        dtype: Their element type.
        multiplies: True where two multiplications divide by the scale; see :func:`multiplies`.
        shifted: True where the zero point is not 0.
        clamped: True where the range is narrower than the type's.
    """

    cpu: Cpu
    dtype: str
    multiplies: bool
    shifted: bool
    clamped: bool

    @property
    def lanes(self) -> int:
        """Codes that are made at once."""
        return 4 * self.cpu.lanes


def form_of(params: QuantParams, cpu: Cpu) -> CodesForm:
    """Returns the form of the codes of a result."""
    shifted = bool(params.zero_point.any())
    return CodesForm(cpu, storage(params), multiplies(params, cpu), shifted, not params.full_range)


@dataclass(frozen=True, slots=True)
class TargetCodes:
    """Codes that a kernel writes; see :func:`numbers`.

    Attributes:
        form: What shapes the code.
        floats: Buffer of float32 numbers.
        integers: Buffer of int32 numbers.
        first: Index of the scale of the result.
        zero: Index of its zero point.
    """

    form: CodesForm
    floats: Buffer
    integers: Buffer
    first: int
    zero: int

    def source(self, index: int = 0) -> SourceCodes:
        """Returns the codes of operand ``index``, whose numbers stand before the result's."""
        return SourceCodes(load(self.floats, index, 1), load(self.integers, index, 1))

    def quantized(self, value: Prim, lanes: int, *, bounded: bool = False) -> Prim:
        """Returns the codes of float32 values: a division, rounded half to even, saturated.

        Args:
            value: The values; a NaN becomes the smallest code.
            lanes: Their number.
            bounded: True where no value is beyond the reach of the scale, or NaN.
        """
        if not bounded:
            reach = self._float(3, lanes)
            value = bound(tirx.min(tirx.max(value, -reach), reach))
        if self.form.multiplies:
            rest = value * self._float(2, lanes)
            return self.rounded(fused(value, self._float(1, lanes), rest), lanes)
        return self.rounded(value / self._float(0, lanes), lanes)

    def _float(self, index: int, lanes: int) -> Prim:
        return splat(load(self.floats, self.first + index, 1), lanes)

    def rounded(self, value: Prim, lanes: int) -> Prim:
        """Returns the codes of float32 quotients that lie within int32."""
        form, whole = self.form, bound(nearest(value, lanes))
        packing = form.cpu.packing
        zero_point = load(self.integers, self.zero, 1)
        if packing is None or lanes != form.lanes or form.dtype not in packing.codes:
            whole = whole + splat(zero_point, lanes) if form.shifted else whole
            codes = narrowed(whole, form.dtype, lanes)
        else:
            step = lanes // 4
            four = [
                tirx.Shuffle([whole], list(range(first, first + step)))
                for first in range(0, lanes, step)
            ]
            codes = packing.packed(four, zero_point if form.shifted else None, form.dtype)
        if not form.clamped:
            return codes
        low, high = (
            splat(load(self.integers, self.zero + i, 1).astype(form.dtype), lanes) for i in (1, 2)
        )
        return tirx.max(tirx.min(codes, high), low)


_FLOATS, _INTEGERS = 4, 3
"""How many numbers of a result there are; see :func:`numbers`."""


def arguments(
    form: CodesForm, scales: int = 1, zero_points: int = 1, result: int = _FLOATS
) -> TargetCodes:
    """Declares the arguments ``floats`` and ``integers`` of a kernel, which are :func:`numbers`.

    Args:
        form: What shapes the code of the result.
        scales: How many operands have a scale there.
        zero_points: How many have a zero point.
        result: How many floats follow; others than those of :func:`numbers` are the kernel's own.
    """
    reals = T.arg("floats", T.buffer((scales + result,), "float32"))
    integers = T.arg("integers", T.buffer((zero_points + _INTEGERS,), "int32"))
    return TargetCodes(form, reals, integers, scales, zero_points)


def numbers(result: QuantParams, *sources: QuantParams | None) -> list[NDArray[Any]]:
    """Returns the last two constants of a kernel: what is reported of its codes, by type.

    The floats are the scales of the operands (1 of floats), then that of the result, its reciprocal
    in two parts, and from where on every code saturates; the integers are the zero points, then
    that of the result, its smallest and its largest code.
    """
    scale = np.float32(result.scale)
    scales = [np.float32(1 if p is None else p.scale) for p in sources]
    zeros = [0 if p is None else int(p.zero_point) for p in sources]
    reals = [*scales, scale, *_reciprocal(scale), np.float32(REACH) * scale]
    integers = [*zeros, int(result.zero_point), result.qmin, result.qmax]
    return [np.asarray(reals, np.float32), np.asarray(integers, np.int32)]


def _reciprocal(scale: np.float32) -> tuple[np.float32, np.float32]:
    first = np.float32(1) / scale
    rest = (1.0 - np.float64(first) * np.float64(scale)) / np.float64(scale)
    return first, np.float32(rest)


def multiplies(params: QuantParams, cpu: Cpu) -> bool:
    """True where ``fma(x, first, x * second)`` rounds as ``x / scale``, in every 8-bit code.

    The two parts of the reciprocal are Brisebarre's and Muller's (2004). Both sides grow with x,
    so they agree on all numbers if they agree on the few around every midpoint between codes.
    """
    small = params.storage_dtype in BYTES
    return small and cpu.fuses and _multiplies(np.float32(params.scale).tobytes())


@lru_cache(maxsize=1024)
def _multiplies(bits: bytes) -> bool:
    scale = np.frombuffer(bits, np.float32)[0]
    first, second = _reciprocal(scale)
    x = ((np.arange(-256, 257) + 0.5) * np.float64(scale)).astype(np.float32)
    near = [x]
    for side in (np.float32(np.inf), np.float32(-np.inf)):
        moved = x
        for _ in range(_NEIGHBOURS):
            moved = np.nextafter(moved, side)
            near.append(moved)
    x = np.concatenate(near)
    exact = np.float64(first) * x.astype(np.float64) + (x * second).astype(np.float64)
    rounded = exact.astype(np.float32)
    # float64 may have rounded the sum to a midpoint of float32, where it decides the rest.
    beyond = np.nextafter(rounded, np.where(exact > rounded, np.inf, -np.inf).astype(np.float32))
    middle = (exact != rounded) & (exact - rounded == beyond - exact)
    return not middle.any() and np.array_equal(np.rint(rounded), np.rint(x / scale))


_NEIGHBOURS = 4
"""Both quotients are within 2 ulp of the exact one."""
