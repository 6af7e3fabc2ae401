"""Tall tiles of several digits: a register of sums goes on from one digit to the next.

It is shifted between them, so that a row and a block of columns have one register, not one for
each digit: those of ``TALL`` rows and the codes of a part are all that there are. Sums of integers
are exact; the bits are those that tiles of few rows give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    floats,
    fused,
    load,
    number,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.weight_only.dots import TALL, Digits
from qdqbridge.tvm.relax.kernels.weight_only.product import DIGIT
from qdqbridge.tvm.relax.kernels.weight_only.tiles import CodesTiles

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
