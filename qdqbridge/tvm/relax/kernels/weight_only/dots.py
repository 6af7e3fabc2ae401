"""Dot products of a chunk of codes with digits, by the product of bytes that a CPU has.

All sums are exact. Where four products are added in 32 bits (``vpdpbusd``), codes of 4 and of 8
bits are the same. Where two are added in 16 bits (``vpmaddubsw``), codes are cut in halves of 4
bits: 16 such sums, which is what a chunk is, do not leave int16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qdqbridge.core.ops.dynamic import LAST_OF_BLOCK, SMALLEST
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    LINE,
    Buffer,
    Prim,
    ask,
    bound,
    fence,
    largest,
    load,
    nearest,
    number,
    splat,
    store,
    summed,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.weight_only.product import (
    CHUNK,
    DIGIT,
    FEW,
    NIBBLE,
    NIBBLES,
    CodesProduct,
    half_unit,
)

# ---- Rows of float32 as digits of 8 bits: an integer times a scale of its own for every part of a
# row
#
# The scale is ``max |x| / 127``. One digit is what a ``DynamicBlockDense`` rounds to, bit for bit;
# three are the 24 bits that a float32 has. Where an activation is infinite or no number, so is the
# scale of its part, and with it the row.

_DIGITS_AHEAD = 4
"""Lines of memory that come while the digits of a part of a row are made."""


class RowDigits:
    """Digits of some rows.

    Attributes:
        digits: Those of a part of a row side by side, the highest digit first.
        steps: The scale of each part.
        sums: Sums over a part of ``begun_digits``, times what the zero point of the weight needs.
    """

    def __init__(self, d: CodesProduct, x: Buffer, most: int) -> None:
        self.d, self.x = d, x
        self.digits = T.alloc_buffer((most * d.row_digits,), "int8")
        self.steps = T.alloc_buffer((most * d.parts,), "float32")
        self.sums = T.alloc_buffer((most * d.parts * len(d.begun_digits),), "int32")

    def write(
        self, first: Prim, count: Prim, at: Prim = 0, ahead: Place | None = None, *,
        parallel: bool = False,
    ) -> None:  # fmt: skip
        """Writes the digits of some rows.

        Args:
            first: The first of the rows.
            count: How many there are.
            at: Where the digits of the first one go.
            ahead: What is read next, and asked for meanwhile: memory does not wait for the digits.
            parallel: Spread the rows over threads.
        """
        with turns(count, parallel=parallel) as row, turns(self.d.parts) as part:
            if ahead is not None:
                stream, start = ahead
                for i in range(_DIGITS_AHEAD):
                    ask(stream, start + (part * _DIGITS_AHEAD + i) * LINE)
            self._part(first + row, at + row, part)

    def _part(self, source: Prim, row: Prim, part: Prim) -> None:
        """Writes the digits, the scale and the sums of one part of a row."""
        d, lanes = self.d, self.d.step
        value = bound(load(self.x, source * d.inner + part * lanes, lanes))
        bits = tirx.reinterpret(typed("int32", lanes), value)
        magnitude = tirx.bitwise_and(bits, number(0x7FFFFFFF, "int32", lanes))
        top = bound(tirx.reinterpret("float32", bound(largest(magnitude, lanes))))
        usual = tirx.all(top >= SMALLEST, top < float("inf"))
        nothing = tirx.const(0.0, "float32")
        inverse = tirx.Select(usual, tirx.const(float(LAST_OF_BLOCK), "float32") / top, nothing)
        inverse = bound(inverse)
        step = bound(tirx.Select(top < SMALLEST, nothing, top + (top - top)))
        last = bound(fence(tirx.const(float(LAST_OF_BLOCK), "float32")))  # TVM takes 1 / 127
        place = row * d.parts + part
        quotient = bound(step / last)
        highest = bound(value * splat(inverse, lanes))
        # by powers of two, which change no bit, after the division: no inverse overflows
        if d.digits > 1:
            quotient = quotient * tirx.const(half_unit(d.digits), "float32")
            highest = highest * number(float(1 << DIGIT * (d.digits - 1)), "float32", lanes)
        store(self.steps, place, quotient, 1)
        whole = bound(nearest(bound(highest), lanes))
        centre = 1 if d.centre is None else d.centre
        digits = self._digits(whole)
        for i, digit in enumerate(digits):
            held = d.place_of_digits(row, part, i)
            store(self.digits, held, digit.astype(typed("int8", lanes)), lanes)
        for i, begun in enumerate(d.begun_digits):
            total = bound(integers_of_digits([digits[digit] for digit in begun], lanes))
            store(self.sums, place * len(d.begun_digits) + i, summed(total, lanes) * -centre, 1)

    def _digits(self, whole: Prim) -> list[Prim]:
        """Returns balanced digits, the highest first."""
        lanes = self.d.step
        half, mask = (number(value, "int32", lanes) for value in (128, 255))
        found: list[Prim] = []
        for _ in range(self.d.digits - 1):
            digit = bound(tirx.bitwise_and(whole + half, mask) - half)
            whole = bound(tirx.shift_right(whole - digit, number(DIGIT, "int32", lanes)))
            found.insert(0, digit)
        return [whole, *found]


def integers_of_digits(digits: Sequence[Prim], lanes: int) -> Prim:
    """Returns the integers of some digits, the highest first."""
    total = digits[0]
    for digit in digits[1:]:
        total = tirx.shift_left(total, number(DIGIT, "int32", lanes)) + digit
    return total


Place = tuple[Buffer, Prim]
"""An element of a buffer."""
_AHEAD = 8192
"""Bytes by which codes that meet one row are asked for before they are used."""
_EACH = 4096
"""The same in each of several places that are read in turn."""
_NEAR = 1280
"""The same, of one digit and 256-bit registers (measured on Zen 3: 0.88 of memory, 0.80 with the
distance of three digits)."""
_CHAINS = 2
"""Sums of one row whose blocks are several chunks: a dot product waits for the one before it."""
_HEIGHTS = (4, 2, 1)
"""Rows of tiles: their sums, and the codes of a chunk of two blocks of columns, are registers."""
TALL = 6
"""Rows of the highest tiles of a CPU that has 32 registers: 12 sums that do not wait for each other
are as many as it needs that begins two dot products a clock cycle and ends them five later."""
_PAIRS = 8
"""Pairs of blocks of columns that meet many rows: codes of some parts, and sums, are kept by the
second-level cache, and tasks end together on a machine that others use too (two threads without
AMX, one digit: 0.86 of the time of 32 pairs, three digits 0.94; one thread takes the same)."""
_MANY_PAIRS = 32
"""The same where digits are read anew, or spread, for every such piece and that takes its time."""
ROOM = 1 << 17
"""Bytes of the digits of many rows that stay in the second-level cache."""
AMX_ROOM = 1 << 19
"""The same of a CPU with AMX."""
SPREAD = 3 << 13
"""Bytes of digits in every lane that stay in the first-level cache."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Digits of rows: four neighbours once, or ``in_lanes`` of a register."""

    buffer: Buffer
    in_lanes: bool = False


class Dots(Protocol):
    """Dot products of one CPU.

    Attributes:
        heights: Rows of tiles, falling to 1.
        chains: How many sums of a block and row take turns, one register behind another.
        asks_between: Whether what a row of one digit meets is asked for between dot products, not
            before them.
        spread_parts: Of how many parts of a row digits are stored in every lane before several
            rows meet the columns; 0 if they are spread where they are multiplied.
        one_loop: Whether the parts of a block of the weight are not a loop of their own: LLVM would
            make straight code of it, longer than what the processor keeps decoded.
        read_through: Rows up to which a weight is read from one end to the other.
        pairs: Pairs of blocks of columns that more rows meet before the next ones: a task has them
            to itself.
    """

    heights: tuple[int, ...]
    chains: int
    asks_between: bool
    spread_parts: int
    one_loop: bool
    read_through: int
    pairs: int

    def ahead(self, streams: int) -> int:
        """Returns how many bytes before they are used codes that meet one row are asked for.

        Args:
            streams: In how many places codes are read in turn.
        """
        ...

    def parts_at_once(self, rows: int) -> int:
        """Returns how many parts of so many rows meet some columns before the next ones do.

        These are whole blocks of the weight; what is used again meanwhile stays in caches.
        """
        ...

    def blocks(self, height: int) -> int:
        """Returns how many blocks of columns a digit of ``height`` rows meets at a time."""
        ...

    def registers(self, blocks: Iterable[int], count: int) -> dict[int, Buffer]:
        """Returns room for ``count`` registers of codes of each of some blocks of a pair."""
        ...

    def load_codes(self, codes: Mapping[int, Buffer], stream: Buffer, first: Prim) -> None:
        """Fills registers with codes, of the blocks in turn: four neighbours of a sum in a lane.

        Args:
            codes: The registers of every block.
            stream: Codes and scales in the order of reading.
            first: The first byte of the chunk.
        """
        ...

    def add(
        self,
        rows: Digits,
        digits: Sequence[tuple[Prim, Sequence[Place]]],
        codes: Mapping[int, Buffer],
        asked: Sequence[Place] = (),
        chains: int = 1,
    ) -> None:
        """Adds the exact products of the codes of a chunk, of every block, and digits of rows.

        A code meets all digits before the next one: what waits for memory is then one line's.

        Args:
            rows: The digits of all rows.
            digits: Of every digit of an activation, where those of the row begin, and of every
                block a buffer and the place of its sums there.
            codes: Of every block.
            asked: What is asked for meanwhile, spread over the dot products.
            chains: How many sums of a block, one register behind another, take turns.
        """
        ...


def dots_of(d: CodesProduct) -> Dots:
    """Returns the dot products of the CPU of a product."""
    return ByteDots(d) if d.cpu.bytes_in else PairDots(d)


class ByteDots:
    """Four products of bytes are added to a sum of 32 bits (``vpdpbusd``, ``usdot``).

    Where both have a sign (``sdot``), codes of 4 bits are what they are without one.
    """

    chains, asks_between = _CHAINS, False
    spread_parts, one_loop, read_through = 0, False, FEW

    def __init__(self, d: CodesProduct) -> None:
        self.d = d
        self.pairs = _MANY_PAIRS if d.amx else _PAIRS
        self.heights: tuple[int, ...] = _HEIGHTS if d.cpu.registers < 32 else (TALL, *_HEIGHTS)

    def ahead(self, streams: int) -> int:
        """Returns less where it is asked for in several places."""
        return _AHEAD if streams == 1 else _EACH

    def parts_at_once(self, rows: int) -> int:
        """Returns as many as the second-level cache has digits of."""
        room = AMX_ROOM if self.d.amx else ROOM
        return _whole_blocks(self.d, room // (rows * self.d.step * self.d.digits))

    def blocks(self, height: int) -> int:
        """Returns two: a digit is spread once for both."""
        return 2

    def registers(self, blocks: Iterable[int], count: int) -> dict[int, Buffer]:
        """Returns registers of int32."""
        return {b: T.alloc_buffer((count * self.d.cpu.lanes,), "int32") for b in blocks}

    def load_codes(self, codes: Mapping[int, Buffer], stream: Buffer, first: Prim) -> None:
        """Fills registers with codes, of the blocks in turn."""
        d, lanes = self.d, self.d.cpu.lanes
        mask = number(NIBBLES, "int32", lanes)
        with T.unroll(d.loads) as i:
            for b, own in codes.items():
                packed = load(stream, first + (2 * i + b) * d.register, d.register)
                stored = tirx.reinterpret(typed("int32", lanes), packed)
                if d.bits != NIBBLE:
                    store(own, i * lanes, stored, lanes)
                    continue
                high = tirx.shift_right(stored, number(NIBBLE, "int32", lanes))
                store(own, i * (2 * lanes), tirx.bitwise_and(stored, mask), lanes)
                store(own, i * (2 * lanes) + lanes, tirx.bitwise_and(high, mask), lanes)

    def add(
        self,
        rows: Digits,
        digits: Sequence[tuple[Prim, Sequence[Place]]],
        codes: Mapping[int, Buffer],
        asked: Sequence[Place] = (),
        chains: int = 1,
    ) -> None:
        """Adds the products."""
        d, lanes = self.d, self.d.cpu.lanes
        kind = typed("int8", 4 * lanes)
        added = d.cpu.dot.codes_added or d.cpu.dot.added
        steps = d.chunk // 4
        runs = min(steps, max(1, len(asked)))
        for run in range(runs):
            for later in _piece(asked, run, runs):
                ask(*later)
            first = steps * run // runs
            with T.unroll(steps * (run + 1) // runs - first) as i:
                chain = tirx.floormod(i, chains) * lanes
                for begin, sums in digits:
                    four = load(rows.buffer, begin + 4 * (first + i), 4)
                    spread = splat(tirx.reinterpret("int32", four), lanes)
                    spread = bound(tirx.reinterpret(kind, spread))
                    for (total, at), own in zip(sums, codes.values(), strict=True):
                        code = load(own, (first + i) * lanes, lanes)
                        before = load(total, at + chain, lanes)
                        after = added(before, code, spread)
                        store(total, at + chain, after, lanes)


class PairDots:
    """Two products of bytes are added in 16 bits, and may saturate beyond them (``vpmaddubsw``).

    A half of a code times a digit is at most 15 * 128, and a lane adds two of them for each of the
    ``CHUNK // 4`` steps of a chunk: 30720.
    """

    heights: tuple[int, ...] = _HEIGHTS
    chains, asks_between = 1, True
    one_loop, read_through, pairs = True, 1, _MANY_PAIRS

    def __init__(self, d: CodesProduct) -> None:
        assert d.chunk <= CHUNK
        self.d = d
        spread = _HEIGHTS[0] * d.step * d.digits * d.cpu.lanes
        parts = min(_whole_blocks(d, SPREAD // spread), d.parts)
        self.spread_parts = parts if parts * spread <= 2 * SPREAD else 0
        self.halves = d.bits // NIBBLE

    def ahead(self, streams: int) -> int:
        """Returns less where one digit meets the codes."""
        return _NEAR if self.d.digits == 1 else _EACH

    def parts_at_once(self, rows: int) -> int:
        """Returns as many as the first-level cache has spread digits of."""
        d = self.d
        return self.spread_parts or _whole_blocks(d, ROOM // (rows * d.step * d.digits))

    def blocks(self, height: int) -> int:
        """Returns one for several rows, whose codes and sums are all registers there are."""
        return 1 if height > 1 else 2

    def registers(self, blocks: Iterable[int], count: int) -> dict[int, Buffer]:
        """Returns registers of bytes, one for each half of a code."""
        size = count * self.halves * self.d.register
        return {b: T.alloc_buffer((size,), "uint8") for b in blocks}

    def load_codes(self, codes: Mapping[int, Buffer], stream: Buffer, first: Prim) -> None:
        """Fills registers with halves of codes, of the blocks in turn."""
        d, lanes = self.d, self.d.cpu.lanes
        mask, shift = number(NIBBLES, "int32", lanes), number(NIBBLE, "int32", lanes)
        kind = typed("uint8", d.register)
        for i in range(d.loads):
            for b, own in codes.items():
                packed = load(stream, first + (2 * i + b) * d.register, d.register)
                stored = bound(tirx.reinterpret(typed("int32", lanes), packed))
                for half, word in enumerate((stored, tirx.shift_right(stored, shift))):
                    low = tirx.reinterpret(kind, tirx.bitwise_and(word, mask))
                    store(own, (2 * i + half) * d.register, low, d.register)

    def add(
        self,
        rows: Digits,
        digits: Sequence[tuple[Prim, Sequence[Place]]],
        codes: Mapping[int, Buffer],
        asked: Sequence[Place] = (),
        chains: int = 1,
    ) -> None:
        """Adds the products."""
        multiplied = self.d.cpu.dot.pairs
        assert chains == self.chains and multiplied is not None
        d, lanes, words = self.d, self.d.cpu.lanes, 2 * self.d.cpu.lanes
        steps, kind = d.chunk // 4, typed("int8", d.register)
        pairs = [
            [T.alloc_buffer((self.halves * words,), "int16") for _ in sums] for _, sums in digits
        ]
        for i in range(steps):
            for later in _piece(asked, i, steps):
                ask(*later)
            for (begin, _), columns in zip(digits, pairs, strict=True):
                if rows.in_lanes:
                    spread = bound(load(rows.buffer, begin + i * d.register, d.register))
                else:
                    four = tirx.reinterpret("int32", load(rows.buffer, begin + 4 * i, 4))
                    spread = bound(tirx.reinterpret(kind, splat(four, lanes)))
                for total, own in zip(columns, codes.values(), strict=True):
                    for half in range(self.halves):
                        code = load(own, (self.halves * i + half) * d.register, d.register)
                        two = multiplied(code, spread)
                        before = load(total, half * words, words)
                        store(total, half * words, before + two if i else two, words)
        for (_, sums), columns in zip(digits, pairs, strict=True):
            for (total, at), own in zip(sums, columns, strict=True):
                whole = load(total, at, lanes)
                for half in range(self.halves):
                    unit = number(1 << (NIBBLE * half), "int16", words)
                    added = load(own, half * words, words)
                    whole = d.cpu.dot.added(whole, added, unit)
                store(total, at, whole, lanes)


def _whole_blocks(d: CodesProduct, parts: int) -> int:
    """Returns about so many parts, at least one block of the weight."""
    each = d.size // d.step
    return max(1, parts // each) * each


def _piece(asked: Sequence[Place], index: int, count: int) -> Sequence[Place]:
    """Returns one of ``count`` even pieces."""
    return asked[len(asked) * index // count : len(asked) * (index + 1) // count]


def pieces(count: int, size: int) -> list[range]:
    """Returns ``range(count)`` in pieces of ``size``."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
