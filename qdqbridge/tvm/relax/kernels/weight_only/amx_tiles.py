"""Tiles of many rows of a product with codes, on AMX: all rows meet a code while it is unpacked.

Codes become bytes in memory that stays in the first-level cache, a part of a row's products at a
time, and the digits of 16 rows are multiplied with them at once. Sums of integers are exact, so
that what follows, in the order that tiles of vectors have, gives the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    LINE,
    Prim,
    bound,
    fence,
    fused,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns, when
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    LANES,
    ROWS,
    address,
    configure,
    instruction,
    register,
    release,
    stride,
)
from qdqbridge.tvm.relax.kernels.weight_only.product import AMX_ROWS, DIGIT, NIBBLE, NIBBLES
from qdqbridge.tvm.relax.kernels.weight_only.tiles import CodesTiles

_DEPTH = 64
"""Products that one instruction adds to a sum, at most."""
_SUM = ROWS * LANES
"""Sums of a register."""
_WIDTH = 2
"""Blocks of columns of a tile, at most."""
_IN_EVERY_BYTE = 0x01010101


class AmxCodesTiles:
    """Tiles of a product in which a pair of blocks of columns meets all rows.

    Registers are the sums of every digit, the digits, and the codes of both blocks; of one digit
    the sums of both blocks.

    Args:
        tiles: The tiles of few rows, of which these share beginnings, ends and parameters.
    """

    def __init__(self, tiles: CodesTiles) -> None:
        self.tiles, self.d = tiles, tiles.d
        self.depth = min(self.d.step, _DEPTH)
        self.inside = self.d.size // self.d.step

    @property
    def _signed(self) -> bool:
        """Whether codes less their zero point are bytes; sums then begin with nothing."""
        return self.d.bits == NIBBLE or self.d.centre == 1 << (DIGIT - 1)

    @property
    def _several(self) -> bool:
        return self.d.digits > 1

    @property
    def _sums(self) -> int:
        """Registers of sums."""
        return self.d.digits if self._several else _WIDTH

    def begin(self, many: Prim) -> None:
        """Makes room, and tells the thread that runs how large its registers are.

        Args:
            many: Whether there are rows for them, see :meth:`write`.
        """
        sums = [(ROWS, 4 * LANES)] * self._sums
        digits = [(ROWS, self.depth)] * self.d.digits
        codes = [(self.depth // 4, 4 * LANES)] * _WIDTH
        when(many, lambda: configure([*sums, *digits, *codes]))
        rows: Any = (AMX_ROWS * LANES,)
        held: Any = (self.d.step // 4 * LANES,)
        self.totals = [T.alloc_buffer(rows, "float32") for _ in range(_WIDTH)]
        self.own = [T.alloc_buffer(rows, "float32") for _ in range(_WIDTH)]
        self.codes = [T.alloc_buffer(held, "int32") for _ in range(_WIDTH)]
        stored: Any = (2 * _WIDTH * self.d.digits * _SUM,)
        self.stored = T.alloc_buffer(stored, "int32")

    def end(self, many: Prim) -> None:
        """Frees the registers where :meth:`begin` has set them up."""
        when(many, release)

    def write(self, block: Prim, width: int, tail: int, first: Prim, count: Prim) -> None:
        """Writes the products of all rows and a pair of blocks of columns.

        Args:
            block: The first of the blocks.
            width: How many blocks there are, 1 or 2.
            tail: Columns of the last one.
            first: Where the rows begin in the result.
            count: How many rows there are, at least ``ROWS``: the last 16 may be some of those
                before them, which are done again.
        """
        tiles, inside = self.tiles, self.inside
        registers = bound((count + (ROWS - 1)) // ROWS)
        totals = self.totals[:width]

        def start(index: Prim) -> Prim:
            return bound(tirx.min(index * ROWS, count - ROWS))

        with turns(registers) as i, turns(ROWS) as p:
            tiles.begin_sums(totals, block, bound(start(i) + p), 1, bound(i * ROWS + p))
        begin, some = tiles.range
        with turns(some // inside, begin // inside) as group:
            if inside > 1:
                with turns(registers * ROWS) as at:
                    for own in self.own[:width]:
                        store(own, at * LANES, number(0.0, "float32", LANES), LANES)
            with turns(inside) as j:
                part = bound(group * inside + j)
                self._unpack(block, width, group, j)
                # what registers have added up is looked at while they add up the next rows
                with turns(registers + 1) as i:
                    when(i < registers, partial(self._multiply, start(i), part, width, i % 2))

                    def add(i: Prim = i, part: Prim = part, group: Prim = group) -> None:
                        before = bound(i - 1)
                        row, held = start(before), bound(before % 2)
                        with turns(ROWS) as p:
                            place = bound(row + p), part, group
                            self._add(block, width, place, (held, p), bound(before * ROWS + p))

                    when(i > 0, add)
            if inside > 1:
                with turns(registers * ROWS) as at:
                    for b in range(width):
                        self._add_group(block, b, group, at, load(self.own[b], at * LANES, LANES))
        with turns(registers) as i, turns(ROWS) as p:
            rows = first, bound(start(i) + p)
            tiles.end_sums(totals, block, tail, rows, 1, bound(i * ROWS + p))

    def _unpack(self, block: Prim, width: int, group: Prim, j: Prim) -> None:
        """Writes the codes of a part as bytes, and reads them into registers where these do."""
        d = self.d
        loads = d.step * d.bits // 32
        begin = d.group_start(block // 2, group) + j * (2 * loads * d.register)
        first, mask = bound(begin), number(NIBBLES, "int32", LANES)
        points = [self._zero_points(block, b, group) for b in range(width)]
        with turns(loads) as i:
            for b, points_of_block in enumerate(points):
                packed = load(self.tiles.stream, first + (2 * i + b) * d.register, d.register)
                stored = bound(tirx.reinterpret(typed("int32", LANES), packed))
                if d.bits != NIBBLE:
                    self._store_codes(b, i, stored, points_of_block)
                    continue
                high = tirx.shift_right(stored, number(NIBBLE, "int32", LANES))
                for half, word in enumerate((stored, high)):
                    code = tirx.bitwise_and(word, mask)
                    self._store_codes(b, 2 * i + half, code, points_of_block)
        if self._several:
            for b in range(width):
                self._load_codes(b, 0)

    def _zero_points(self, block: Prim, b: int, group: Prim) -> Prim | None:
        """Returns the zero points of a block of columns, as bytes beside its codes."""
        if not self._signed:
            return None
        if self.d.centre is not None:
            return number(self.d.centre, "uint8", 4 * LANES)
        point = self.tiles.zero_points(block, b, group).astype(typed("int32", LANES))
        four = point * number(_IN_EVERY_BYTE, "int32", LANES)
        return bound(tirx.reinterpret(typed("uint8", 4 * LANES), four))

    def _store_codes(self, b: int, at: Prim, codes: Prim, points: Prim | None) -> None:
        """Stores a register of codes, less their zero points where there are any."""
        if points is not None:
            own = tirx.reinterpret(typed("uint8", 4 * LANES), codes) - points  # wraps round
            codes = tirx.reinterpret(typed("int32", LANES), own)
        store(self.codes[b], at * LANES, codes, LANES)

    def _load_codes(self, b: int, depth: Prim) -> None:
        start = depth * (self.depth // 4 * LANES)
        codes = register(self._sums + self.d.digits + b)
        instruction("tileloadd64", codes, address(self.codes[b], start), stride(LINE))

    def _load_digits(self, row: Prim, part: Prim, digit: int, depth: Prim) -> None:
        d = self.d
        start = bound(d.place_of_digits(row, part, digit) + depth * self.depth)
        digits = address(self.tiles.rows.digits, start)
        instruction("tileloadd64", register(self._sums + digit), digits, stride(d.row_digits))

    def _multiply(self, row: Prim, part: Prim, width: int, held: Prim) -> None:
        """Stores the sums of the products of 16 rows and a part, of every block and digit."""
        digits = self.d.digits
        if self._several:
            for digit in range(digits):
                self._load_digits(row, part, digit, 0)
            for b in range(width):
                for digit in range(digits):
                    instruction("tilezero", register(digit))
                    self._product(digit, digit, b)
                    self._store(digit, held, b * digits + digit)
            return
        for b in range(width):
            instruction("tilezero", register(b))
        with turns(self.d.step // self.depth) as depth:
            self._load_digits(row, part, 0, depth)
            for b in range(width):
                self._load_codes(b, depth)
                self._product(b, 0, b)
        for b in range(width):
            self._store(b, held, b)

    def _product(self, sums: int, digit: int, b: int) -> None:
        """Adds the products of signed digits and codes."""
        first = self._sums
        operands = register(first + digit), register(first + self.d.digits + b)
        instruction("tdpbssd" if self._signed else "tdpbsud", register(sums), *operands)

    def _store(self, sums: int, held: Prim, place: int) -> None:
        start = address(self.stored, self._stored(held, place))
        instruction("tilestored64", register(sums), start, stride(4 * LANES))

    def _stored(self, held: Prim, place: int) -> Prim:
        """Returns where sums are stored: of the rows before and of these in turn."""
        return (held * (_WIDTH * self.d.digits) + place) * _SUM

    def _add(
        self, block: Prim, width: int, place_of: tuple[Prim, Prim, Prim],
        held: tuple[Prim, Prim], at: Prim,
    ) -> None:  # fmt: skip
        """Adds the sums of a part of one row, as tiles of vectors do."""
        d, tiles = self.d, self.tiles
        (row, part, group), (half, p) = place_of, held
        place = bound(row * d.parts + part)
        step = bound(splat(load(tiles.rows.steps, place, 1), LANES))
        for b in range(width):
            real = self._real(block, b, group, place, (half, p))
            if not self._several:
                term = fence(bound(real * step * tiles.scales(block, b, group)))
                before = load(self.totals[b], at * LANES, LANES)
                store(self.totals[b], at * LANES, before + term, LANES)
            elif self.inside > 1:
                before = load(self.own[b], at * LANES, LANES)
                store(self.own[b], at * LANES, fused(real, step, before), LANES)
            else:
                own = bound(fused(real, step, number(0.0, "float32", LANES)))
                self._add_group(block, b, group, at, own)

    def _real(self, block: Prim, b: int, group: Prim, place: Prim, held: tuple[Prim, Prim]) -> Prim:
        """Returns the sums of a part of one row as float32."""
        d, tiles, (half, p) = self.d, self.tiles, held
        sums = [
            load(self.stored, self._stored(half, b * d.digits + digit) + p * LANES, LANES)
            for digit in range(d.digits)
        ]
        if not self._signed:
            # with its start every digit's sum is small enough to be joined with others in int32
            sums = [
                total + tiles.start(place, digit, block, b, group)
                for digit, total in enumerate(sums)
            ]
        return tiles.real(sums)

    def _add_group(self, block: Prim, b: int, group: Prim, at: Prim, own: Prim) -> None:
        """Adds the sums of a block of the weight, times its scales."""
        total = self.totals[b]
        before = load(total, at * LANES, LANES)
        added = fused(own, self.tiles.scales(block, b, group), before)
        store(total, at * LANES, added, LANES)
