"""Tiles of a product with codes: a few rows and two blocks of columns, in registers.

The codes are read as they lie in memory, so the product of a row is as fast as memory is. All up to
the product with both scales is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    floats,
    fused,
    intrinsic,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.relax.kernels.codegen.loops import turns
from qdqbridge.relax.kernels.codegen.script import T
from qdqbridge.relax.kernels.epilogues.float_sums import PlainWriter
from qdqbridge.relax.kernels.weight_only.digits import RowDigits
from qdqbridge.relax.kernels.weight_only.product import DIGIT, NIBBLE, CodesProduct

_AHEAD = 8192
"""Bytes by which codes that meet one row are asked for before they are used."""
_CHAINS = 2
"""Sums of one row whose blocks are several chunks: a dot product waits for the one before it."""

Place = tuple[Buffer, Prim]
"""An element of a buffer."""


class CodesTiles:
    """Tiles of one product.

    Attributes:
        partial: What the parts before have summed; None where all are gone through at once.
        range: The parts that are gone through, the first and how many.
    """

    def __init__(
        self, d: CodesProduct, rows: RowDigits, shared: Sequence[Buffer], writer: PlainWriter
    ) -> None:
        self.d, self.rows, self.writer = d, rows, writer
        self.stream, self.zeros, self.bias = shared
        self.partial: Buffer | None = None
        self.range: tuple[Prim, Prim] = (0, d.parts)

    def write(
        self, block: Prim, width: int, tail: int, first: Prim, row: Prim, height: int
    ) -> None:
        """Writes the products of some rows and a pair of blocks of columns.

        Args:
            block: The first of the blocks.
            width: How many blocks there are, 1 or 2.
            tail: Columns of the last one.
            first: Where the rows of these digits begin in the result.
            row: The first row of the tile.
            height: How many rows it has.
        """
        d, lanes = self.d, self.d.cpu.lanes
        totals = [self._register("float32", height) for _ in range(width)]
        columns = [(b, total, p) for b, total in enumerate(totals) for p in range(height)]

        def kept(b: int, p: int) -> Prim:
            return ((row + p) * d.blocks + block + b) * lanes

        def first_sums() -> None:
            for b, total, p in columns:
                start = load(self.bias, (block + b) * lanes, lanes)
                start = number(0.0, "float32", lanes) if d.digits == 1 else start
                store(total, p * lanes, start, lanes)

        def other_sums() -> None:
            for b, total, p in columns:
                store(total, p * lanes, load(self.partial, kept(b, p), lanes), lanes)

        self._either(self.range[0] == 0, first_sums, other_sums)
        if d.digits == 1:
            self._one_digit(totals, block, row, height)
        else:
            self._three_digits(totals, block, row, height)

        def results() -> None:
            for b, total, p in columns:
                start = (first + row + p) * d.units + (block + b) * lanes
                value = load(total, p * lanes, lanes)
                if d.digits == 1:  # DynamicBlockDense adds its bias last
                    value = value + load(self.bias, (block + b) * lanes, lanes)
                self.writer.put(value, start, tail if b == width - 1 else lanes)

        def sums_so_far() -> None:
            for b, total, p in columns:
                store(self.partial, kept(b, p), load(total, p * lanes, lanes), lanes)

        begin, some = self.range
        self._either(begin + some == d.parts, results, sums_so_far)

    def _either(self, last: Prim, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Writes either of two; the first where all parts are gone through at once."""
        if self.partial is None:
            one()
            return
        with T.If(last):
            with T.Then():
                one()
            with T.Else():
                other()

    def _one_digit(self, totals: Sequence[Buffer], block: Prim, row: Prim, height: int) -> None:
        """Adds the products of the rows, step by step as a ``DynamicBlockDense`` has them.

        Chunks are one loop: of an inner one LLVM would make straight code, and read it out of turn.
        """
        d, lanes = self.d, self.d.cpu.lanes
        chunks, blocks = d.step // d.chunk, range(len(totals))
        chains = _CHAINS if height == 1 and chunks > 1 else 1
        sums = [self._register("int32", height * chains) for _ in blocks]
        codes = [self._register("int32", d.chunk // 4) for _ in blocks]
        begin, some = self.range
        with turns(some * chunks, begin * chunks) as chunk:
            part = bound(chunk // chunks)
            group = bound(part // (d.size // d.step))

            def start(p: int) -> None:
                place = bound((row + p) * d.parts + part)
                for b in blocks:
                    store(sums[b], p * lanes, self._start(place, block, b, group), lanes)
                    for chain in range(1, chains):
                        store(sums[b], chain * lanes, number(0, "int32", lanes), lanes)

            def finish(p: int) -> None:
                place = bound((row + p) * d.parts + part)
                for b, total in enumerate(totals):
                    whole = load(sums[b], p * lanes, lanes)
                    for chain in range(1, chains):
                        whole = whole + load(sums[b], chain * lanes, lanes)
                    real = floats(whole, lanes)
                    real = real * splat(load(self.rows.steps, place, 1), lanes)
                    term = fence(bound(real * self._scales(block, b, group)))
                    store(total, p * lanes, load(total, p * lanes, lanes) + term, lanes)

            if chunks > 1:
                with T.If(chunk % chunks == 0), T.Then():
                    for p in range(height):
                        start(p)
            first = bound(self._codes_of(block, chunk))
            for later in self._later(first, height):
                _ask(*later)
            self._load_codes(codes, first)
            for p in range(height):
                if chunks == 1:
                    start(p)
                digits = bound((row + p) * d.inner + chunk * d.chunk)
                own = [(each, p * lanes) for each in sums]
                self._add_dots([(digits, own)], codes, chains=chains)
                if chunks == 1:
                    finish(p)
            if chunks > 1:
                with T.If(chunk % chunks == chunks - 1), T.Then():
                    for p in range(height):
                        finish(p)

    def _start(self, place: Prim, block: Prim, after: int, group: Prim) -> Prim:
        """Returns what the zero points of a group of the weight add to its sums.

        Args:
            place: Index of the sum of the digits.
            block: The first block of the pair.
            after: How many blocks after it, 0 or 1.
            group: The group.
        """
        d, lanes = self.d, self.d.cpu.lanes
        start = splat(load(self.rows.sums, place, 1), lanes)
        if self.zeros is None:
            return start
        at = ((block // 2 * d.groups + group) * 2 + after) * lanes
        return start * load(self.zeros, at, lanes).astype(typed("int32", lanes))

    def _scales(self, block: Prim, after: int, group: Prim) -> Prim:
        """Returns the scales of a group of the weight: of a block, or of the one after it."""
        d = self.d
        last = (d.group_registers - 2 + after) * d.register
        stored = load(self.stream, d.group_start(block // 2, group) + last, d.register)
        return tirx.reinterpret(typed("float32", d.cpu.lanes), stored)

    def _codes_of(self, block: Prim, chunk: Prim) -> Prim:
        """Returns the first byte of the codes of a chunk of a pair of blocks."""
        d = self.d
        chunks = d.size // d.chunk
        start = d.group_start(block // 2, chunk // chunks)
        return start + chunk % chunks * (2 * d.loads * d.register)

    def _add_dots(
        self,
        digits: Sequence[tuple[Prim, Sequence[Place]]],
        codes: Sequence[Buffer],
        asked: Sequence[Place] = (),
        chains: int = 1,
    ) -> None:
        """Adds the exact products of the codes of a chunk, of every block, and digits of a row.

        A code meets all digits before the next one: what waits for memory is then one line's.

        Args:
            digits: Of every digit of an activation, where those of the row begin, and of every
                block a buffer and the place of its sums there.
            codes: Of every block.
            asked: What is asked for meanwhile, spread over the dot products.
            chains: How many sums of a block, one register behind another, take turns.
        """
        d, lanes = self.d, self.d.cpu.lanes
        name, kind = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", typed("int8", 4 * lanes)
        steps = d.chunk // 4
        runs = min(steps, max(1, len(asked)))
        for run in range(runs):
            for later in _piece(asked, run, runs):
                _ask(*later)
            first = steps * run // runs
            with T.unroll(steps * (run + 1) // runs - first) as i:
                chain = tirx.floormod(i, chains) * lanes
                for begin, sums in digits:
                    four = load(self.rows.digits, begin + 4 * (first + i), 4)
                    spread = splat(tirx.reinterpret("int32", four), lanes)
                    spread = bound(tirx.reinterpret(kind, spread))
                    for (total, at), own in zip(sums, codes, strict=True):
                        code = tirx.reinterpret(kind, load(own, (first + i) * lanes, lanes))
                        before = load(total, at + chain, lanes)
                        after = intrinsic(name, typed("int32", lanes), before, code, spread)
                        store(total, at + chain, after, lanes)

    def _three_digits(self, totals: Sequence[Buffer], block: Prim, row: Prim, height: int) -> None:
        """Adds the products of the rows, with the accuracy of float32."""
        d, lanes, blocks = self.d, self.d.cpu.lanes, range(len(totals))
        sums = [[self._register("int32") for _ in range(d.digits)] for _ in blocks]
        codes = [self._register("int32", d.step // 4) for _ in blocks]
        own = [self._register("float32", height) for _ in blocks]
        inside = d.size // d.step
        begin, some = self.range
        with turns(some // inside, begin // inside) as group:
            for p in range(height):
                for total in own:
                    store(total, p * lanes, number(0.0, "float32", lanes), lanes)
            with turns(inside) as j:
                part = bound(group * inside + j)
                first = bound(self._codes_of(block, part))
                asked = self._later(first, height)
                self._load_codes(codes, first)
                for p in range(height):
                    place = bound((row + p) * d.parts + part)
                    digits: list[tuple[Prim, list[Place]]] = []
                    for digit in range(d.digits):
                        at = place * d.digits + digit
                        for b in blocks:
                            store(sums[b][digit], 0, self._start(at, block, b, group), lanes)
                        digits.append((bound(at * d.step), [(each[digit], 0) for each in sums]))
                    self._add_dots(digits, codes, asked if p == 0 else ())
                    for b, total in enumerate(own):
                        step = splat(load(self.rows.steps, place, 1), lanes)
                        before = load(total, p * lanes, lanes)
                        store(total, p * lanes, fused(self._real(sums[b]), step, before), lanes)
            for p in range(height):
                for b, total in enumerate(totals):
                    before, value = load(total, p * lanes, lanes), load(own[b], p * lanes, lanes)
                    added = fused(value, self._scales(block, b, group), before)
                    store(total, p * lanes, added, lanes)

    def _register(self, dtype: str, count: int = 1) -> Buffer:
        shape: Any = (count * self.d.cpu.lanes,)
        return T.alloc_buffer(shape, dtype)

    def _later(self, first: Prim, height: int) -> list[Place]:
        """Returns what is asked for beside a chunk: memory does not wait for a row's products.

        A CPU that reads ahead by itself begins anew with every page of memory: it is asked for one
        line of a chunk, which lets it begin early; asking for all takes more than it gives there.

        Args:
            first: The first byte of the chunk.
            height: Rows that meet it: several take longer than memory does.
        """
        d = self.d
        if height > 1:
            return []
        last = 2 * d.loads + (2 if d.size == d.chunk else 0) if d.asks else 1
        return [(self.stream, first + _AHEAD + i * d.register) for i in range(last)]

    def _load_codes(self, codes: Sequence[Buffer], first: Prim) -> None:
        """Fills registers with codes, of the blocks in turn: four neighbours of a sum in a lane.

        Args:
            codes: The registers of every block.
            first: The first byte of the chunk.
        """
        d, lanes = self.d, self.d.cpu.lanes
        mask = number(0x0F0F0F0F, "int32", lanes)
        with T.unroll(d.loads) as i:
            for b, own in enumerate(codes):
                packed = load(self.stream, first + (2 * i + b) * d.register, d.register)
                stored = tirx.reinterpret(typed("int32", lanes), packed)
                if d.bits != NIBBLE:
                    store(own, i * lanes, stored, lanes)
                    continue
                high = tirx.shift_right(stored, number(NIBBLE, "int32", lanes))
                store(own, i * (2 * lanes), tirx.bitwise_and(stored, mask), lanes)
                store(own, i * (2 * lanes) + lanes, tirx.bitwise_and(high, mask), lanes)

    def _real(self, sums: Sequence[Buffer]) -> Prim:
        """Returns the sums of all digits as float32, in units of the lowest one."""
        lanes = self.d.cpu.lanes
        up = number(float(1 << DIGIT), "float32", lanes)
        real: Prim = None
        for chain in self.d.joint_digits:
            total = load(sums[chain[0]], 0, lanes)
            for digit in chain[1:]:
                total = tirx.shift_left(total, number(DIGIT, "int32", lanes))
                total = total + load(sums[digit], 0, lanes)
            value = floats(total, lanes)
            real = value if real is None else fused(real, up, value)
        return real


def _piece(asked: Sequence[Place], index: int, count: int) -> Sequence[Place]:
    """Returns one of ``count`` even pieces."""
    return asked[len(asked) * index // count : len(asked) * (index + 1) // count]


def _ask(buffer: Buffer, index: Prim) -> None:
    """Asks for a line of memory, up to the second-level cache: the first has few such requests."""
    hints = (tirx.const(hint, "int32") for hint in (0, 2, 1))  # to read, second level, data
    at = T.address_of(buffer[index])
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, *hints))
