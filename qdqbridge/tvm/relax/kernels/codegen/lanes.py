"""Vectors of TIR: loads and stores, splats, and the float steps that every kernel shares.

LLVM splits a vector of any length into the registers that the target has, so one expression of 64
lanes serves every CPU. Three intrinsics of LLVM itself are used, on all targets: ``llvm.lrint``
(one instruction that rounds half to even into int32), ``llvm.fma`` (only where the CPU has one)
and ``llvm.arithmetic.fence`` (keeps a product from being contracted with what follows; it costs
nothing, but would keep LLVM from vectorizing a loop, so it is for explicit vectors only).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import kind_of, tirx
from qdqbridge.tvm.qnn.ranges import limits
from qdqbridge.tvm.relax.kernels.codegen.script import T

Prim = Any
"""A TIR expression."""
Buffer = Any
"""A TIR buffer of one axis."""


def load(buffer: Buffer, start: Prim, lanes: int) -> Prim:
    """Returns ``lanes`` consecutive elements as a vector; one element as a scalar."""
    return tirx.BufferLoad(buffer, [start if lanes == 1 else tirx.Ramp(start, 1, lanes)])


def store(buffer: Buffer, start: Prim, value: Prim, lanes: int) -> None:
    """Writes a vector to consecutive elements."""
    T.buffer_store(buffer, value, [start if lanes == 1 else tirx.Ramp(start, 1, lanes)])


def splat(value: Prim, lanes: int) -> Prim:
    """Returns a scalar in every lane."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def number(value: float, dtype: str, lanes: int) -> Prim:
    """Returns a number in every lane."""
    return splat(tirx.const(value, dtype), lanes)


def typed(dtype: str, lanes: int) -> str:
    """Returns the name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def flat(buffer: Buffer, dtype: str = "") -> Buffer:
    """Returns a view of a buffer with one axis; ``uint8`` has the bytes of two-byte elements."""
    count: Any = 2 if dtype else 1
    for extent in buffer.shape:
        count = extent * count
    return T.decl_buffer((count,), dtype or str(buffer.dtype), data=buffer.data)


def bound(value: Prim) -> Prim:
    """Returns a variable for a value that is used several times."""
    return T.bind(value)


def opaque(value: Prim) -> Prim:
    """Returns a variable of int64 that TVM does not replace by its value wherever it is used.

    Of a long expression its passes would simplify every index made of it, for seconds. To be used
    in a loop within that of the tasks: in the latter's own body TVM 0.27 loses the buffer.
    """
    kept = T.alloc_buffer((1,), "int64")
    store(kept, 0, value.astype("int64"), 1)
    return bound(load(kept, 0, 1))


LINE = 64
"""Bytes of a line of memory."""


def ask(buffer: Buffer, index: Prim) -> None:
    """Asks for a line of memory, up to the second-level cache: the first has few such requests."""
    hints = (tirx.const(hint, "int32") for hint in (0, 2, 1))  # to read, second level, data
    at = T.address_of(buffer[index])
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, *hints))


def intrinsic(name: str, dtype: str, *args: Prim) -> Prim:
    """Returns a call of an LLVM intrinsic without side effects."""
    return tirx.call_llvm_pure_intrin(dtype, name, *args)


def fence(value: Prim) -> Prim:
    """Returns a float that LLVM does not contract with what follows."""
    return intrinsic("llvm.arithmetic.fence", kind_of(value), value)


def fused(a: Prim, b: Prim, c: Prim) -> Prim:
    """Returns ``a * b + c``, rounded once; only for CPUs that have the instruction."""
    return intrinsic("llvm.fma", kind_of(a), a, b, c)


def nearest(value: Prim, lanes: int) -> Prim:
    """Returns a float32 vector rounded half to even, in int32; it must lie within int32."""
    return intrinsic("llvm.lrint", typed("int32", lanes), value)


def summed(value: Prim, lanes: int) -> Prim:
    """Returns the sum of the lanes of an integer vector."""
    kind = kind_of(value).partition("x")[0]
    return value if lanes == 1 else intrinsic("llvm.vector.reduce.add", kind, value)


def largest(value: Prim, lanes: int) -> Prim:
    """Returns the largest lane of an integer vector."""
    kind = kind_of(value).partition("x")[0]
    name = f"llvm.vector.reduce.{'u' if kind.startswith('u') else 's'}max"
    return value if lanes == 1 else intrinsic(name, kind, value)


def wide(code: Prim, lanes: int) -> Prim:
    """Returns integer codes as int32."""
    return code.astype(typed("int32", lanes))


def less_128(codes: Prim, lanes: int) -> Prim:
    """Returns codes of uint8 less 128, in int8."""
    moved = tirx.bitwise_xor(codes, number(128, "uint8", lanes))
    return tirx.reinterpret(typed("int8", lanes), moved)


def floats(value: Prim, lanes: int) -> Prim:
    """Returns integers of up to 24 bits as float32."""
    return value.astype(typed("float32", lanes))


def narrowed(value: Prim, dtype: str, lanes: int) -> Prim:
    """Returns int32 values saturated to a type of 8 or 16 bits."""
    low, high = limits(dtype)
    clipped = tirx.max(tirx.min(value, number(high, "int32", lanes)), number(low, "int32", lanes))
    return clipped.astype(typed(dtype, lanes))


def divided(value: Prim, divisor: Prim, reciprocal: Prim | None) -> Prim:
    """Returns ``value / divisor`` correctly rounded.

    Args:
        value: A float32 vector whose quotient neither overflows nor matters where it is subnormal.
        divisor: The divisor, in every lane.
        reciprocal: ``1 / divisor`` correctly rounded, where the CPU fuses products and sums; None
            to divide.

    A division takes 16 cycles per register, these five operations take 2.5. The first step leaves
    an error below 2 ulp, the second a faithful quotient, and a third step from a faithful quotient
    is correctly rounded (Markstein 1990, theorem 8; Cornea, Harrison and Tang 2002, section 3.1).
    """
    if reciprocal is None:
        return value / divisor
    quotient = value * reciprocal
    for _ in range(2):
        quotient = bound(quotient)
        rest = fused(-quotient, divisor, value)
        quotient = fused(rest, reciprocal, quotient)
    return quotient


def each_piece(
    count: Prim, lanes: int, body: Callable[[Prim, int], None], *, overlap: bool = True
) -> None:
    """Emits ``body(start, lanes)`` over ``count`` elements: full vectors, then ever smaller ones.

    Args:
        count: Number of elements; of an open one what is left is done in pieces of eight and one.
        lanes: Elements of a full vector.
        body: What is done with a piece.
        overlap: Let a remainder of many pieces be one full vector that overlaps the last one;
            ``body`` then has to do the same when it meets an element again.
    """
    if not isinstance(count, int):
        _open_pieces(count, lanes, body)
        return
    whole, rest = divmod(count, lanes)
    if whole > 1:
        with T.serial(0, whole) as block:
            body(block * lanes, lanes)
    elif whole:
        body(tirx.const(0, "int32"), lanes)
    if overlap and rest.bit_count() > 2 and whole:
        body(tirx.const(count - lanes, "int32"), lanes)
        return
    start = whole * lanes
    while rest:
        size = 1 << (rest.bit_length() - 1)
        body(tirx.const(start, "int32"), size)
        start, rest = start + size, rest - size


_REST = 8
"""Lanes of what is left of an open number of elements behind full vectors."""


def _open_pieces(count: Prim, lanes: int, body: Callable[[Prim, int], None]) -> None:
    done: Prim = tirx.const(0, "int32")
    for size in (lanes, _REST, 1) if lanes > _REST else (lanes, 1):
        many = (count - done) // size
        with T.serial(0, many) as block:
            body(done + block * size, size)
        done = done + many * size


# ---- Four registers of int32 as one register of bytes, by the instructions that saturate ---------


@dataclass(frozen=True, slots=True)
class Packing:
    """The instructions.

    Attributes:
        lanes: 32-bit lanes of a register.
        words: int32 to int16, of two registers: an LLVM intrinsic.
        codes: int16 to 8 bits, of two registers, by the type of the result.
        ordered: Puts bytes in order that those have packed.
    """

    lanes: int
    words: str | Callable[[Prim, Prim], Prim]
    codes: Mapping[str, str | Callable[[Prim, Prim], Prim]]
    ordered: Callable[[Prim, int], Prim] | None = None

    def packed(self, four: Sequence[Prim], zero_point: Prim | None, dtype: str) -> Prim:
        """Returns four registers, one after the other, as saturated codes.

        Args:
            four: int32. What leaves 16 bits ends at the bound that it would end at anyway.
            zero_point: int32, added to all with saturation; None for 0.
            dtype: ``uint8`` or ``int8``.
        """
        lanes, kind = self.lanes, typed("int16", 2 * self.lanes)
        words = [_packed(self.words, kind, four[i], four[i + 1]) for i in (0, 2)]
        if zero_point is not None:
            shift = splat(zero_point.astype("int16"), 2 * lanes)
            words = [intrinsic("llvm.sadd.sat", kind, word, shift) for word in words]
        codes = _packed(self.codes[dtype], typed("int8", 4 * lanes), *words)
        if self.ordered is not None:
            codes = self.ordered(codes, lanes)
        return tirx.reinterpret(typed(dtype, 4 * lanes), codes)


def _packed(how: str | Callable[[Prim, Prim], Prim], kind: str, low: Prim, high: Prim) -> Prim:
    return intrinsic(how, kind, low, high) if isinstance(how, str) else how(low, high)
