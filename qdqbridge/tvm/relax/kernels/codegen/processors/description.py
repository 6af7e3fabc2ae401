"""What kernels need to know of a processor: registers, dot product, saturation, lookups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, less_128, typed
from qdqbridge.tvm.relax.kernels.codegen.saturation import Packing


@dataclass(frozen=True, slots=True)
class Dot:
    """The instruction that multiplies integers and sums some of their products in every lane.

    Attributes:
        source: Element type of activations as it takes them, or as they are copied for it.
        weight: Element type of weights.
        depth: Products that one lane sums.
        added: Returns int32 sums plus the products of activations and weights, one register each;
            activations of a lane are one int32 where they are as long.
        centre: What activations have less than codes of uint8: 128 where it takes int8. Sums begin
            with as much more: ``centre * sum(w)``.
        code_bits: Bits of unsigned codes that it multiplies with int8, as blocks of weights are
            stored; 0 where there is no such product.
    """

    source: str
    weight: str
    depth: int
    added: Callable[[Prim, Prim, Prim], Prim]
    centre: int = 0
    code_bits: int = 0

    @property
    def bytes_in(self) -> bool:
        """True where activations are taken as they are stored, one byte each."""
        return np.dtype(self.source).itemsize == 1

    def in_lanes(self, activations: Prim, lanes: int) -> Prim:
        """Returns a register of activations as ``added`` takes it."""
        words = self.depth * np.dtype(self.source).itemsize == 4
        return tirx.reinterpret(typed("int32", lanes), activations) if words else activations

    def zero_point(self, code: Prim) -> Prim:
        """Returns the zero point as it takes it, which is a code of uint8."""
        return (code - self.centre if self.centre else code).astype(self.source)

    def taken(self, codes: Prim, lanes: int) -> Prim:
        """Returns codes of uint8 as it takes bytes."""
        return less_128(codes, lanes) if self.centre else codes


class ByteLookup(Protocol):
    """Lookups in a table of 256 bytes that is held in registers.

    Attributes:
        lanes: Codes that are looked up at once.
    """

    lanes: int

    def looked_up(self, table: Buffer, codes: Prim, dtype: str) -> Prim:
        """Returns the entries of codes.

        Args:
            table: Entries by the bit pattern of a code.
            codes: One byte each, ``lanes`` of them.
            dtype: The element type of the entries.
        """
        ...


@dataclass(frozen=True, slots=True)
class Cpu:
    """A class of processors that runs the same kernels; to be compared by ``==``, not by identity.

    Attributes:
        name: What it is called, by its dot product.
        about: Which processors are of it, and what its dot product is.
        architecture: LLVM's name of its architecture; empty for any.
        features: LLVM's names of what a processor of it has.
        lanes: 32-bit lanes of a vector register, which is also the number of output channels that
            are packed side by side.
        registers: Vector registers.
        dot: Its dot product.
        fuses: True where products and sums of floats fuse.
        steps_held: Steps whose activations one register holds, since the dot product, and the
            product of floats, takes one lane of it for all others; 1 where each step is spread.
        masks: True where some lanes of a register are stored by one instruction.
        barrier: The LLVM intrinsic, and its int32 arguments, behind which memory is seen to be
            written by other threads before anything else is read; none where nobody has tried.
        packing: How four registers of int32 become one of bytes; None for plain clipping.
        lookup: How bytes are looked up in a table; None where every entry is loaded.
        permutes: True where one instruction looks 64 bytes up in 128 entries (AVX-512 VBMI). A
            kernel that cares says so in its description.
        amx: True where tiles of bytes are multiplied by one instruction (AMX-INT8).
        reads_ahead: True where a page of memory comes as fast as it can by itself once it is begun,
            so that asking for every line costs (Zen 4, as measured; Zen 3, whose registers are half
            as long, gets half as much again by being asked). As ``permutes``, where one cares: a
            module, whose equal descriptions share code, is made for one CPU.
        room: Bytes of copied rows that are used before others are copied: what stays in the
            second-level cache next to the weights, or what memory there is.
        refined: What some processors of the class have besides, by features and LLVM's name.
    """

    name: str
    about: str = field(compare=False)
    architecture: str = field(compare=False)
    features: tuple[str, ...] = field(compare=False)
    lanes: int
    registers: int
    dot: Dot
    fuses: bool
    steps_held: int = 1
    masks: bool = field(default=False, compare=False)
    barrier: tuple[str, tuple[int, ...]] | None = field(default=None, compare=False)
    packing: Packing | None = field(default=None, compare=False)
    lookup: ByteLookup | None = field(default=None, compare=False)
    permutes: bool = field(default=False, compare=False)
    amx: bool = field(default=False, compare=False)
    reads_ahead: bool = field(default=False, compare=False)
    room: int = field(default=1 << 18, compare=False)
    refined: Callable[[Cpu, frozenset[str], str], Cpu] | None = field(default=None, compare=False)

    @property
    def depth(self) -> int:
        """Products that one lane of a dot product sums: 4 of bytes, 1 or 2 of 16-bit integers."""
        return self.dot.depth

    @property
    def bytes_in(self) -> bool:
        """True where dot products take activations as they are stored, one byte each."""
        return self.dot.bytes_in


_LANES = 4


def _pair_products(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Products of every second element; LLVM knows both halves together as a dot product."""
    pairs = tirx.reinterpret(typed("int16", 2 * _LANES), activations)
    for first in (0, 1):
        chosen = list(range(first, 2 * _LANES, 2))
        left, right = (tirx.Shuffle([vector], chosen) for vector in (pairs, weights))
        wide = typed("int32", _LANES)
        sums = sums + left.astype(wide) * right.astype(wide)
    return sums


GENERIC = Cpu(
    "generic", "any other processor: plain vectors of LLVM", "", (), _LANES, 16,
    Dot("int16", "int16", 2, _pair_products), fuses=False,
)  # fmt: skip
