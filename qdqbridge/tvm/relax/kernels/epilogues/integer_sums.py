"""What happens to the sums of a tile before they are stored: requantization, on registers.

``sat(rint(f32(sum) * M) + zero_point)``: the product is rounded half to even into int32 by one
instruction, and four registers are packed into one of bytes by saturating instructions: to 16
bits, the zero point added there with saturation, to unsigned 8 bits. Values beyond 16 bits end at
the same bound on every step, so this is the contract's saturation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    floats,
    fused,
    load,
    narrowed,
    nearest,
    number,
    splat,
    store,
    typed,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu, permuted
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.tiles.register_tile import TileSums


@dataclass(frozen=True, slots=True)
class Linear:
    """An Add or Sub of the codes and others: ``rint(fma(a, f, fma(b, g, h))) + zero_point``.

    Attributes:
        other: ``tensor`` where the other codes lie in a tensor like the result, ``channel`` where
            they are constants, one per channel.
        first: True where the codes of the product are ``a``.
        shifted: True where the sum has a zero point other than 0.
        clamped: True where its range is narrower than 8 bits.
    """

    other: str
    first: bool
    shifted: bool
    clamped: bool


@dataclass(frozen=True, slots=True)
class Requantize:
    """How sums become codes.

    Attributes:
        shifted: True where the result has a zero point other than 0.
        clamped: True where its range is narrower than 8 bits.
        signed: True where int8 is stored (at the interface of a model).
        linear: What is added to the codes.
        table: Element type of the entries of the table that the codes are looked up in at last;
            empty where there is none.
    """

    shifted: bool
    clamped: bool
    signed: bool
    linear: Linear | None = None
    table: str = ""

    @property
    def dtype(self) -> str:
        """The element type that is stored."""
        return self.table or ("int8" if self.signed else "uint8")


ENDS = 3
"""Entries of the argument ``ends``: zero point, smallest and largest code, stored as uint8."""


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """The operands of what happens to sums, flat buffers; None where there are none.

    Attributes:
        multiplier: M of every channel, float32; one entry where it is the same for all.
        numbers: See :data:`ENDS`; int32.
        other: The codes, or floats, that are added.
        factors: The three factors of a :class:`Linear`, or both bounds of floats; float32.
        ends: As ``numbers``, of the sum.
        table: 256 entries.
    """

    multiplier: Buffer = None
    numbers: Buffer = None
    other: Buffer = None
    factors: Buffer = None
    ends: Buffer = None
    table: Buffer = None


class Writer:
    """Writes the results of tiles.

    Args:
        form: How sums become codes.
        extras: The operands of that.
        result: What is written to, flat.
    """

    def __init__(self, cpu: Cpu, form: Requantize, extras: Extras, result: Buffer) -> None:
        self.cpu, self.form = cpu, form
        self._extras, self._result = extras, result
        self._multiplier, self._ends = extras.multiplier, extras.numbers
        last: Requantize | Linear = form if form.linear is None else form.linear
        self._last = last, extras.numbers if form.linear is None else extras.ends

    @property
    def added(self) -> Buffer:
        """The tensor whose codes are added, flat; None where there is none."""
        linear = self.form.linear
        return self._extras.other if linear is not None and linear.other == "tensor" else None

    def write(self, tile: TileSums, starts: Sequence[Prim], channel: Prim, tail: int) -> None:
        """Writes a tile.

        Args:
            starts: Where the results of every pixel begin, at the tile's first channel.
            channel: The tile's first channel.
            tail: Channels of the tile's last block.
        """
        places = [(p, b) for p in range(tile.pixels) for b in range(tile.blocks)]
        size = 1 if self.cpu.packing is None else 4
        for first in range(0, len(places), size):
            group = places[first : first + size]
            vectors = [self._rounded(tile, p, b, channel) for p, b in group]
            if self.form.linear is not None:
                valid = [tail if b == tile.blocks - 1 else self.cpu.lanes for _, b in group]
                vectors = [
                    self._summed(self.form.linear, vector, starts[p], channel, b, count)
                    for (p, b), vector, count in zip(group, vectors, valid, strict=True)
                ]
            packed = self._limited(self._packed(vectors), size * self.cpu.lanes)
            if self.form.table:
                packed = permuted(self._extras.table, bound(packed), self.form.table)
            self._put(bound(packed), group, starts, tile, tail)

    def _summed(
        self, linear: Linear, vector: Prim, start: Prim, channel: Prim, block: int, count: int
    ) -> Prim:
        """Returns the sum of codes and others, rounded, without its zero point."""
        lanes = self.cpu.lanes
        zero_point, low, high = (splat(self._ends[i], lanes) for i in range(3))
        own = floats(tirx.max(tirx.min(vector + zero_point, high), low), lanes)
        if linear.other == "channel":
            codes = load(self._extras.other, channel + block * lanes, lanes)
        else:
            codes = self._others(start + block * lanes, count)
        other = floats(wide(codes, lanes), lanes)
        a, b = (own, other) if linear.first else (other, own)
        f, g, h = (splat(self._extras.factors[i], lanes) for i in range(3))
        return nearest(fused(a, f, fused(b, g, h)), lanes)

    def _others(self, start: Prim, count: int) -> Prim:
        """Returns a register's codes of the other tensor; ``count`` of them are in it."""
        lanes = self.cpu.lanes
        if count == lanes:
            return load(self._extras.other, start, lanes)
        held = T.alloc_buffer((lanes,), "uint8")
        store(held, 0, number(0, "uint8", lanes), lanes)
        for lane in range(count):
            store(held, lane, load(self._extras.other, start + lane, 1), 1)
        return load(held, 0, lanes)

    def _rounded(self, tile: TileSums, pixel: int, block: int, channel: Prim) -> Prim:
        lanes = self.cpu.lanes
        if int(self._multiplier.shape[0]) == 1:
            multiplier = splat(self._multiplier[0], lanes)
        else:
            multiplier = load(self._multiplier, channel + block * lanes, lanes)
        return nearest(floats(tile.sums(pixel, block), lanes) * multiplier, lanes)

    def _packed(self, vectors: Sequence[Prim]) -> Prim:
        """Returns four registers of int32, or one on other CPUs, as codes of uint8."""
        lanes, packing, (form, ends) = self.cpu.lanes, self.cpu.packing, self._last
        if packing is None:
            shifted = vectors[0] + splat(ends[0], lanes) if form.shifted else vectors[0]
            return narrowed(shifted, "uint8", lanes)
        four = [*vectors, *[vectors[-1]] * (4 - len(vectors))]
        return packing.packed(four, ends[0] if form.shifted else None, "uint8")

    def _limited(self, codes: Prim, lanes: int) -> Prim:
        form, ends = self._last
        if form.clamped:
            low, high = (splat(ends[i].astype("uint8"), lanes) for i in (1, 2))
            codes = tirx.max(tirx.min(codes, high), low)
        if self.form.signed:
            codes = tirx.bitwise_xor(codes, number(128, "uint8", lanes))
            return tirx.reinterpret(typed("int8", lanes), codes)
        return codes

    def _put(
        self,
        codes: Prim,
        group: Sequence[tuple[int, int]],
        starts: Sequence[Prim],
        tile: TileSums,
        tail: int,
    ) -> None:
        """Stores codes; blocks of one pixel lie side by side."""
        lanes, done = self.cpu.lanes, 0
        while done < len(group):
            pixel, block = group[done]
            run = 1
            while group[done + run : done + run + 1] == [(pixel, block + run)]:
                run += 1
            last = block + run == tile.blocks
            count = run * lanes - (lanes - tail if last else 0)
            self._store(codes, done * lanes, count, starts[pixel] + block * lanes)
            done += run

    def _store(self, codes: Prim, first: int, count: int, start: Prim) -> None:
        """Stores ``count`` lanes of a vector from lane ``first`` on."""
        rest = count % self.cpu.lanes
        whole = count - rest
        if whole:
            store(self._result, start, _lanes(codes, first, whole), whole)
        if rest > 1 and self.cpu.masks:  # LLVM 22 may write 4 bytes for a mask of one
            lanes = self.cpu.lanes
            inside = tirx.Ramp(0, 1, lanes) < number(rest, "int32", lanes)
            at = tirx.Ramp(start + whole, 1, lanes)
            T.evaluate(
                T.masked_store(self._result, _lanes(codes, first + whole, lanes), at, inside)
            )
            return
        while rest:
            size = 1 << (rest.bit_length() - 1)
            done = count - rest
            store(self._result, start + done, _lanes(codes, first + done, size), size)
            rest -= size


def _lanes(vector: Prim, first: int, count: int) -> Prim:
    return tirx.Shuffle([vector], list(range(first, first + count)))
