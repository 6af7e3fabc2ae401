"""Tiles of a product with codes: a few rows and two blocks of columns, in registers.

The codes are read as they lie in memory, so the product of a row is as fast as memory is. All up to
the product with both scales is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    LINE,
    Buffer,
    Prim,
    ask,
    bound,
    fence,
    flat,
    floats,
    fused,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns, when
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import PlainWriter
from qdqbridge.tvm.relax.kernels.weight_only.dots import (
    TALL,
    Digits,
    Place,
    RowDigits,
    dots_of,
    integers_of_digits,
    pieces,
)
from qdqbridge.tvm.relax.kernels.weight_only.product import DIGIT, CodesProduct


@dataclass(frozen=True, slots=True)
class Streams:
    """Pairs of blocks that one row meets in turn, a chunk of each after another.

    Where every line of memory is asked for, memory comes faster from several places at once than
    from one. Of what a loop has that reads from one end to the other, on an Intel Xeon (Emerald
    Rapids), three digits and blocks of 128 had 0.82 with one pair, 0.89 with two, 0.97 with four
    and 0.91 with eight; one digit 0.82, 0.88, 0.90 and 0.93; blocks of 32 0.81 to 0.92 (three
    digits) and 0.88 to 0.97. In turn after whole blocks of 128 it was 0.91 and 0.83.

    Attributes:
        count: How many pairs.
        apart: How many blocks one lies behind the other.
    """

    count: int = 1
    apart: Prim = 0

    def block(self, first: Prim, index: Prim) -> Prim:
        """Returns the first block of one of the pairs."""
        return first if self.count == 1 else bound(first + index * self.apart)


ONE = Streams()


@dataclass(frozen=True, slots=True)
class _Room:
    """Registers of a tile, of every block of columns.

    Attributes:
        totals: Sums of each row, of one stream after the other.
        sums: Exact sums of each digit, of one part of one row.
        codes: Codes of a chunk.
        own: Such sums over a block of the weight, without its scales.
    """

    totals: Mapping[int, Buffer]
    sums: Mapping[int, Sequence[Buffer]]
    codes: Mapping[int, Buffer]
    own: Mapping[int, Buffer]


class CodesTiles:
    """Tiles of one product.

    Attributes:
        partial: What the parts before have summed; None where all are gone through at once.
        range: The parts that are gone through, the first and how many.
        kept: For how many rows and columns each task keeps such sums.
        kept_from: Where those of the first column of all, in the first row, would be.
        own: Where the digits begin of the rows that a task goes through.
    """

    def __init__(
        self, d: CodesProduct, rows: RowDigits, shared: Sequence[Buffer], writer: PlainWriter
    ) -> None:
        self.d, self.rows, self.writer = d, rows, writer
        self.dots = dots_of(d)
        self.stream, self.zeros, self.bias = shared
        self.partial: Buffer | None = None
        self.kept = (0, 0)
        self.kept_from: Prim = 0
        self.range: tuple[Prim, Prim] = (0, d.parts)
        self.spread: Buffer | None = None
        self.own: Prim = 0

    def make_room(self) -> None:
        """Makes room for the digits of the rows of a tile as they are multiplied.

        They are seen through a view: of the buffer itself TVM works out what every read of a tile
        needs (CompactBufferAllocation), for a minute.
        """
        if self.dots.spread_parts:
            size = self.dots.heights[0] * self.dots.spread_parts * self.d.step * self.d.digits
            self.spread = flat(T.alloc_buffer((size * self.d.cpu.lanes,), "int8"))

    def begin_rows(self, row: Prim, height: int) -> None:
        """Spreads the digits of the rows of tiles that follow."""
        if self.spread is None or height == 1:
            return
        d, register = self.d, self.d.register
        begin, some = self.range
        each = d.step * d.digits
        with turns(height) as p:
            source = bound(d.place_of_digits(self.own + row + p, begin))
            target = bound(p * (self.dots.spread_parts * each * d.cpu.lanes))
            with turns(some * (each // 4)) as four:
                digits = load(self.rows.digits, source + four * 4, 4)
                lanes = splat(tirx.reinterpret("int32", digits), d.cpu.lanes)
                wide = tirx.reinterpret(typed("int8", register), lanes)
                store(self.spread, target + four * register, wide, register)

    def _digits(self, height: int) -> Digits:
        """Returns where digits of tiles are read."""
        spread = self.spread if height > 1 else None
        return Digits(self.rows.digits) if spread is None else Digits(spread, in_lanes=True)

    def _spread_of(self, first: Prim) -> Callable[[int, int], Prim]:
        """Returns where digits of a row of the tile, so many after the first ones, are read.

        Args:
            first: The first digits of a chunk, of all of a row.
        """
        d, parts = self.d, self.dots.spread_parts
        each = d.step * d.digits
        start = bound((first - self.range[0] * each) * d.cpu.lanes)
        return lambda p, after: start + (p * parts * each + after) * d.cpu.lanes

    def write(
        self, block: Prim, width: int, tail: int, first: Prim, row: Prim, height: int,
        streams: Streams = ONE,
    ) -> None:  # fmt: skip
        """Writes the products of some rows and a pair of blocks of columns, or of several pairs.

        Args:
            block: The first of the blocks.
            width: How many blocks there are, 1 or 2.
            tail: Columns of the last one.
            first: Where the rows of these digits begin in the result.
            row: The first row of the tile.
            height: How many rows it has; one where there are several pairs.
            streams: The pairs.
        """
        d = self.d
        totals = [self._register("float32", height * streams.count) for _ in range(width)]
        with turns(streams.count) as index:
            at = streams.block(block, index)
            self.begin_sums(totals, at, row, height, index)
        for blocks in pieces(width, self.dots.blocks(height)):
            some = {b: totals[b] for b in blocks}
            if d.digits == 1:
                self._one_digit(some, block, row, height, streams)
            else:
                self._three_digits(some, block, row, height, streams)
        with turns(streams.count) as index:
            at = streams.block(block, index)
            self.end_sums(totals, at, tail, (first, row), height, index)

    def begin_sums(
        self, totals: Sequence[Buffer], block: Prim, row: Prim, height: int, index: Prim
    ) -> None:
        """Begins the sums of a pair of blocks: with the bias, or what the parts before gave."""
        d, lanes = self.d, self.d.cpu.lanes
        columns = [(b, total, p) for b, total in enumerate(totals) for p in range(height)]

        def first_sums() -> None:
            for b, total, p in columns:
                start = load(self.bias, (block + b) * lanes, lanes)
                start = number(0.0, "float32", lanes) if d.digits == 1 else start
                store(total, (index + p) * lanes, start, lanes)

        def other_sums() -> None:
            for b, total, p in columns:
                kept = load(self.partial, self._kept(block + b, row + p), lanes)
                store(total, (index + p) * lanes, kept, lanes)

        self._either(self.range[0] == 0, first_sums, other_sums)

    def keep(self, room: Buffer, rows: int, columns: int) -> None:
        """Has the sums of some parts kept for those behind them.

        Args:
            room: Room for them, each task's behind another's.
            rows: How many there are of each task.
            columns: The same.
        """
        self.partial, self.kept = room, (rows, columns)

    def begin_parts(self, task: Prim, pair: Prim, some: tuple[Prim, Prim]) -> None:
        """Begins parts of the rows and a piece of the columns.

        Args:
            task: The task that goes through them.
            pair: The first pair of blocks of the piece.
            some: The first of the parts, and how many.
        """
        self.range = some
        if self.partial is not None:
            rows, columns = self.kept
            first = task * (rows * columns) - pair * 2 * self.d.cpu.lanes
            self.kept_from = bound(first.astype("int64"))

    def _kept(self, block: Prim, row: Prim) -> Prim:
        """Returns where the sums of earlier parts are kept."""
        return self.kept_from + row * self.kept[1] + block * self.d.cpu.lanes

    def end_sums(
        self, totals: Sequence[Buffer], block: Prim, tail: int, rows: tuple[Prim, Prim],
        height: int, index: Prim,
    ) -> None:  # fmt: skip
        """Writes the results of a pair of blocks, or keeps its sums for the parts behind."""
        d, lanes = self.d, self.d.cpu.lanes
        first, row = rows
        columns = [(b, total, p) for b, total in enumerate(totals) for p in range(height)]

        def results() -> None:
            for b, total, p in columns:
                start = (first + row + p) * d.units + (block + b) * lanes
                value = load(total, (index + p) * lanes, lanes)
                if d.digits == 1:  # DynamicBlockDense adds its bias last
                    value = value + load(self.bias, (block + b) * lanes, lanes)
                self.writer.put(value, start, tail if b == len(totals) - 1 else lanes)

        def sums_so_far() -> None:
            for b, total, p in columns:
                value = load(total, (index + p) * lanes, lanes)
                store(self.partial, self._kept(block + b, row + p), value, lanes)

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

    def _one_digit(
        self, totals: Mapping[int, Buffer], block: Prim, row: Prim, height: int, streams: Streams
    ) -> None:
        """Adds the products of the rows, step by step as a ``DynamicBlockDense`` has them.

        Chunks are one loop: of an inner one LLVM would make straight code, and read it out of turn.
        """
        d, lanes = self.d, self.d.cpu.lanes
        chunks = d.step // d.chunk
        chains = self.dots.chains if height == 1 and chunks > 1 else 1
        kept = streams.count if chunks > 1 else 1
        sums = {b: self._register("int32", height * chains * kept) for b in totals}
        codes = self.dots.registers(totals, d.chunk // 4)
        read = self._digits(height)
        begin, some = self.range
        with turns(some * chunks, begin * chunks) as chunk, turns(streams.count) as index:
            part, own = bound(chunk // chunks), streams.block(block, index)
            kind = index * (chains * lanes) if kept > 1 else 0
            group = bound(part // (d.size // d.step))

            def every_row(do: Callable[[int], None]) -> None:
                for p in range(height):
                    do(p)

            def begin_sums(p: int) -> None:
                place = bound((self.own + row + p) * d.parts + part)
                for b in totals:
                    start = self.start(place, 0, own, b, group)
                    store(sums[b], kind + p * lanes, start, lanes)
                    for chain in range(1, chains):
                        store(sums[b], kind + chain * lanes, number(0, "int32", lanes), lanes)

            def finish(p: int) -> None:
                place = bound((self.own + row + p) * d.parts + part)
                for b, total in totals.items():
                    whole = load(sums[b], kind + p * lanes, lanes)
                    for chain in range(1, chains):
                        whole = whole + load(sums[b], kind + chain * lanes, lanes)
                    real = floats(whole, lanes)
                    real = real * splat(load(self.rows.steps, place, 1), lanes)
                    # LLVM would multiply and add in one instruction, and round once where
                    # DynamicBlockDense does twice.
                    term = fence(bound(real * self.scales(own, b, group)))
                    before = load(total, (index + p) * lanes, lanes)
                    store(total, (index + p) * lanes, before + term, lanes)

            when(chunk % chunks == 0 if chunks > 1 else True, partial(every_row, begin_sums))
            first = bound(self.codes_of(own, chunk))
            asked = self._later(first, height, streams.count)
            if not self.dots.asks_between:
                for later in asked:
                    ask(*later)
                asked = []
            self.dots.load_codes(codes, self.stream, first)
            spread = self._spread_of(chunk * d.chunk) if read.in_lanes else None
            digits: list[tuple[Prim, list[Place]]] = []
            for p in range(height):
                begins = (self.own + row + p) * d.row_digits + chunk * d.chunk
                begins = bound(begins) if spread is None else spread(p, 0)
                digits.append((begins, [(each, kind + p * lanes) for each in sums.values()]))
            self.dots.add(read, digits, codes, asked, chains)
            when(chunk % chunks == chunks - 1 if chunks > 1 else True, partial(every_row, finish))

    def start(self, place: Prim, digit: int, block: Prim, after: int, group: Prim) -> Prim:
        """Returns what the zero points of a group of the weight add to the sums of a digit.

        Args:
            place: Index of the part of a row.
            digit: The digit; of ``begun_digits`` the last one takes what all of them need.
            block: The first block of the pair.
            after: How many blocks after it, 0 or 1.
        """
        lanes, begun = self.d.cpu.lanes, self.d.begun_digits
        at = next((i for i, digits in enumerate(begun) if digits[-1] == digit), None)
        if at is None:
            return number(0, "int32", lanes)
        start = splat(load(self.rows.sums, place * len(begun) + at, 1), lanes)
        if self.zeros is None:
            return start
        return start * self.zero_points(block, after, group).astype(typed("int32", lanes))

    def zero_points(self, block: Prim, after: int, group: Prim) -> Prim:
        """Returns the zero points of a group of the weight that has its own, as unsigned bytes."""
        at = ((block // 2 * self.d.groups + group) * 2 + after) * self.d.cpu.lanes
        return load(self.zeros, at, self.d.cpu.lanes)

    def scales(self, block: Prim, after: int, group: Prim) -> Prim:
        """Returns the scales of a group of the weight: of a block, or of the one after it."""
        d = self.d
        last = (d.group_registers - 2 + after) * d.register
        stored = load(self.stream, d.group_start(block // 2, group) + last, d.register)
        return tirx.reinterpret(typed("float32", d.cpu.lanes), stored)

    def codes_of(self, block: Prim, chunk: Prim) -> Prim:
        """Returns the first byte of the codes of a chunk of a pair of blocks."""
        d = self.d
        chunks = d.size // d.chunk
        start = d.group_start(block // 2, chunk // chunks)
        return start + chunk % chunks * (2 * d.loads * d.register)

    def _three_digits(
        self, totals: Mapping[int, Buffer], block: Prim, row: Prim, height: int, streams: Streams
    ) -> None:
        """Adds the products of the rows, with the accuracy of float32."""
        d = self.d
        room = _Room(
            totals,
            {b: [self._register("int32") for _ in range(d.digits)] for b in totals},
            self.dots.registers(totals, d.step // 4),
            {b: self._register("float32", height * streams.count) for b in totals},
        )
        inside = d.size // d.step
        begin, some = self.range
        if self.dots.one_loop:
            with turns(some, begin) as part, turns(streams.count) as index:
                own, group = streams.block(block, index), bound(part // inside)
                self._begin_group(room, height, index)
                self._part(room, own, row, height, (part, group), (index, streams.count))
                self._end_group(room, own, height, group, index)
            return
        with turns(some // inside, begin // inside) as group:
            with turns(streams.count) as index:
                self._begin_group(room, height, index)
            with turns(inside) as j, turns(streams.count) as index:
                own, part = streams.block(block, index), bound(group * inside + j)
                self._part(room, own, row, height, (part, group), (index, streams.count))
            with turns(streams.count) as index:
                self._end_group(room, streams.block(block, index), height, group, index)

    def _begin_group(self, room: _Room, height: int, index: Prim) -> None:
        """Begins the sums of a block of the weight."""
        lanes = self.d.cpu.lanes
        for p in range(height):
            for total in room.own.values():
                store(total, (index + p) * lanes, number(0.0, "float32", lanes), lanes)

    def _part(
        self, room: _Room, block: Prim, row: Prim, height: int, place_of: tuple[Prim, Prim],
        stream: tuple[Prim, int],
    ) -> None:  # fmt: skip
        """Adds the products of a part of the rows, which has one scale of activations."""
        d, lanes = self.d, self.d.cpu.lanes
        (part, group), (index, streams) = place_of, stream
        first = bound(self.codes_of(block, part))
        asked = self._later(first, height, streams)
        self.dots.load_codes(room.codes, self.stream, first)
        read = self._digits(height)
        spread = self._spread_of(part * (d.step * d.digits)) if read.in_lanes else None
        for p in range(height):
            place = bound((self.own + row + p) * d.parts + part)
            digits: list[tuple[Prim, list[Place]]] = []
            for digit in range(d.digits):
                for b in room.totals:
                    begun = self.start(place, digit, block, b, group)
                    store(room.sums[b][digit], 0, begun, lanes)
                places = [(sums[digit], 0) for sums in room.sums.values()]
                begins = d.place_of_digits(self.own + row + p, part, digit)
                begins = bound(begins) if spread is None else spread(p, digit * d.step)
                digits.append((begins, places))
            self.dots.add(read, digits, room.codes, asked if p == 0 else ())
            for b, total in room.own.items():
                step = splat(load(self.rows.steps, place, 1), lanes)
                before = load(total, (index + p) * lanes, lanes)
                real = self.real([load(each, 0, lanes) for each in room.sums[b]])
                store(total, (index + p) * lanes, fused(real, step, before), lanes)

    def _end_group(self, room: _Room, block: Prim, height: int, group: Prim, index: Prim) -> None:
        """Adds the sums of a block of the weight, times its scales."""
        lanes = self.d.cpu.lanes
        for p in range(height):
            for b, total in room.totals.items():
                at = (index + p) * lanes
                before, value = load(total, at, lanes), load(room.own[b], at, lanes)
                store(total, at, fused(value, self.scales(block, b, group), before), lanes)

    def _register(self, dtype: str, count: int = 1) -> Buffer:
        shape: Any = (count * self.d.cpu.lanes,)
        return T.alloc_buffer(shape, dtype)

    def _later(self, first: Prim, height: int, streams: int) -> list[Place]:
        """Returns what is asked for beside a chunk: memory does not wait for a row's products.

        A CPU that reads ahead by itself begins anew with every page of memory: it is asked for one
        line of a chunk, which lets it begin early; asking for all takes more than it gives there.
        Where a block of the weight is several chunks, the line after each is asked for too: it may
        be scales, which are read late (blocks of 128: 0.92 of memory, then 0.94).

        Args:
            first: The first byte of the chunk.
            height: Rows that meet it: several take longer than memory does.
            streams: How many pairs of blocks are read in turn.
        """
        d = self.d
        if height > 1:
            return []
        registers = 2 * d.loads + (2 if d.size == d.chunk else 0)
        ahead = first + self.dots.ahead(streams)
        if d.asks:
            lines = range(registers * d.register // LINE)
            return [(self.stream, ahead + i * LINE) for i in lines]
        scales = [ahead + 2 * d.loads * d.register] if d.size > d.chunk else []
        return [(self.stream, at) for at in (ahead, *scales)]

    def real(self, sums: Sequence[Prim]) -> Prim:
        """Returns the sums of all digits as float32, in units of the lowest one."""
        lanes = self.d.cpu.lanes
        up = number(float(1 << DIGIT), "float32", lanes)
        real: Prim = None
        for chain in self.d.joint_digits:
            value = floats(integers_of_digits([sums[digit] for digit in chain], lanes), lanes)
            real = value if real is None else fused(real, up, value)
        return real


# ---- Tall tiles of several digits: a register of sums goes on from one digit to the next
#
# It is shifted between them, so that a row and a block of columns have one register, not one for
# each digit: those of ``TALL`` rows and the codes of a part are all that there are. Sums of
# integers are exact; the bits are those that tiles of few rows give.

Registers = Sequence[Buffer]
"""Of each block of columns one register for every row."""
Added = Callable[[int, int, Prim], Prim]
"""What a block of columns and a row make of the sum before."""


class TallTiles:
    """Tall tiles of one product.

    Args:
        tiles: The tiles of few rows, of which these share beginnings, ends and parameters.
    """

    def __init__(self, tiles: CodesTiles) -> None:
        self.tiles, self.d = tiles, tiles.d
        self.zero = number(0.0, "float32", self.d.cpu.lanes)

    def write(self, block: Prim, width: int, tail: int, first: Prim, row: Prim) -> None:
        """Writes the products of ``TALL`` rows and a pair of blocks of columns.

        Args:
            block: The first of the blocks.
            width: How many blocks there are, 1 or 2.
            tail: Columns of the last one.
            first: Where the rows of these digits begin in the result.
            row: The first row of the tile.
        """
        d, tiles = self.d, self.tiles
        inside = d.size // d.step
        totals, own = self._room("float32", width), self._room("float32", width)
        self.sums = self._room("int32", width)
        self.codes = tiles.dots.registers(range(width), d.step // 4)
        tiles.begin_sums(totals, block, row, TALL, 0)
        begin, some = tiles.range
        with turns(some // inside, begin // inside) as group:

            def with_scales(b: int, p: int, value: Prim) -> Prim:
                return fused(value, tiles.scales(block, b, group), self._of(totals, b, p))

            if inside == 1:
                first_of = self._part(block, row, group, group)
                self._set(totals, lambda b, p: with_scales(b, p, bound(first_of(b, p, self.zero))))
            else:
                self._set(own, lambda b, p: self.zero)
                with turns(inside) as j:
                    next_of = self._part(block, row, bound(group * inside + j), group)
                    self._set(own, lambda b, p: next_of(b, p, self._of(own, b, p)))
                self._set(totals, lambda b, p: with_scales(b, p, self._of(own, b, p)))
        tiles.end_sums(totals, block, tail, (first, row), TALL, 0)

    def _part(self, block: Prim, row: Prim, part: Prim, group: Prim) -> Added:
        """Multiplies a part of the rows, which has one scale of activations.

        Returns:
            What gives a sum of the block of the weight, without its scale, of the one before.
        """
        d, tiles, lanes = self.d, self.tiles, self.d.cpu.lanes
        first = bound(tiles.codes_of(block, part))
        tiles.dots.load_codes(self.codes, tiles.stream, first)
        places = [bound((tiles.own + row + p) * d.parts + part) for p in range(TALL)]
        real: dict[tuple[int, int], Prim] = {}
        up = number(float(1 << DIGIT), "float32", lanes)
        for chain in d.joint_digits:
            for digit in chain:
                self._begin_digit(digit, digit == chain[0], places, block, group)
                begins = [d.place_of_digits(tiles.own + row + p, part, digit) for p in range(TALL)]
                digits = [
                    (bound(begin), [(sums, p * lanes) for sums in self.sums])
                    for p, begin in enumerate(begins)
                ]
                tiles.dots.add(Digits(tiles.rows.digits), digits, self.codes)
            for b, p in product(range(len(self.sums)), range(TALL)):
                value, before = floats(self._of(self.sums, b, p), lanes), real.get((b, p))
                real[b, p] = bound(value if before is None else fused(before, up, value))
        steps = [bound(splat(load(tiles.rows.steps, place, 1), lanes)) for place in places]
        return lambda b, p, before: fused(real[b, p], steps[p], before)

    def _begin_digit(
        self, digit: int, highest: bool, places: Sequence[Prim], block: Prim, group: Prim
    ) -> None:
        """Begins the sums of a digit with those of the digit above, if there are any."""

        def begun(b: int, p: int) -> Prim:
            start = self.tiles.start(places[p], digit, block, b, group)
            if highest:
                return start
            above = self._of(self.sums, b, p)
            return tirx.shift_left(above, number(DIGIT, "int32", self.d.cpu.lanes)) + start

        self._set(self.sums, begun)

    def _room(self, dtype: str, width: int) -> Registers:
        shape: Any = (TALL * self.d.cpu.lanes,)
        return [T.alloc_buffer(shape, dtype) for _ in range(width)]

    def _of(self, registers: Registers, b: int, p: int) -> Prim:
        return load(registers[b], p * self.d.cpu.lanes, self.d.cpu.lanes)

    def _set(self, registers: Registers, value: Callable[[int, int], Prim]) -> None:
        """Sets the registers of every row and block."""
        lanes = self.d.cpu.lanes
        for p, (b, one) in product(range(TALL), enumerate(registers)):
            store(one, p * lanes, value(b, p), lanes)
