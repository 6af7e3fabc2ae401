"""The loops of a product with codes: what of rows, parts and columns stays in caches meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, bound, flat
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    ceiling,
    choice,
    share,
    total_of,
    turns,
    when,
    within,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.codegen.shared_pieces import SharedPieces
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.tvm.relax.kernels.tiles.amx import ROWS
from qdqbridge.tvm.relax.kernels.tiles.register_tile import channel_pieces
from qdqbridge.tvm.relax.kernels.weight_only.amx_tiles import AmxCodesTiles
from qdqbridge.tvm.relax.kernels.weight_only.dots import TALL, RowDigits
from qdqbridge.tvm.relax.kernels.weight_only.product import FEW, CodesProduct
from qdqbridge.tvm.relax.kernels.weight_only.tiles import CodesTiles, Streams, TallTiles

_PIECES = 8
"""Pieces of a share that meet few rows: every one begins to read anew, few are handed over (two
threads, Zen 4: 0.83 of memory, with 2 pieces 0.80, with 16 0.82)."""
_PAIRS_OF_FEW = 32
"""Pairs of blocks of columns of such a piece, at most."""


def build_codes_product(description: CodesProduct) -> Any:
    """Returns the PrimFunc ``(x, codes and scales, [zero points], bias, y)``."""
    d = description

    def body() -> None:
        lanes = d.cpu.lanes
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.operand))]
        given, taken = (
            [name if extent is None else extent for name, extent in zip(names, shape, strict=True)]
            for shape in (d.operand, d.outcome)
        )
        rows = total_of(given[:-1])
        x = T.arg("x", T.buffer(given, "float32"))
        packed = T.buffer((d.pairs, d.groups, d.group_registers, d.register), "uint8")
        stream = T.arg("codes_and_scales", packed)
        zeros = None
        if d.centre is None:
            zeros = T.arg("zeros", T.buffer((d.pairs, d.groups, 1, 2, lanes), "uint8"))
        bias = T.arg("bias", T.buffer((d.blocks * lanes,), "float32"))
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            shared = [flat(stream), None if zeros is None else flat(zeros), bias]
            _CodesProduct(d, flat(x), shared, flat(y)).write(rows)

    return prim_func(body)


class _CodesProduct:
    def __init__(
        self, d: CodesProduct, x: Buffer, shared: Sequence[Buffer], result: Buffer
    ) -> None:
        self.d, self.x, self.shared = d, x, shared
        self.writer = PlainWriter(d.cpu, Plain(), None, None, result)

    def write(self, rows: Prim) -> None:
        """Writes the loops: some rows at a time; their digits, and shares of the columns."""
        d = self.d
        most = min(rows, d.at_once) if isinstance(rows, int) else d.at_once
        tasks = min(d.tasks, d.pairs)
        room = self._room(rows, most, tasks)
        digits = RowDigits(d, self.x, room)
        self.tiles = CodesTiles(d, digits, self.shared, self.writer)
        self.tall = TallTiles(self.tiles)
        self.amx = AmxCodesTiles(self.tiles) if d.amx else None
        self.pieces = SharedPieces(d.cpu, tasks, d.pairs)
        self.few = min(self.tiles.dots.read_through, room // tasks) if tasks > 1 else 0
        with turns((rows + (most - 1)) // most) as chunk:
            first = chunk * most
            count = rows if isinstance(rows, int) and rows == most else None
            count = bound(tirx.min(rows - first, most)) if count is None else count
            few, several = (count <= self.few, count > self.few) if self.few else (False, True)
            when(several, lambda: digits.write(first, count, parallel=tasks > 1))
            self.part_size = self._part_size(most, count)
            if not self._whole:
                pairs = min(self._piece(self.tiles.dots.pairs), ceiling(d.pairs, tasks))
                kept = pairs * 2 * d.cpu.lanes
                self.tiles.keep(T.alloc_buffer((tasks * most * kept,), "float32"), most, kept)
            self.pieces.begin()
            with turns(tasks, parallel=tasks > 1) as task:
                self._share(task, few, digits, first, count, most)

    @property
    def _whole(self) -> bool:
        """Whether all parts of rows are gone through at once, however many rows there are."""
        return isinstance(self.part_size, int) and self.part_size == self.d.parts

    def _room(self, rows: Prim, most: int, tasks: int) -> int:
        """Returns how many rows of digits there is room for: of few rows, those of every task."""
        if not isinstance(rows, int):
            return max(most, tasks)
        copies = most * tasks
        return copies if most <= FEW and copies <= self.d.at_once else most

    def _part_size(self, most: int, count: Prim) -> Prim:
        """Returns how many parts of rows are gone through at a time."""
        d, dots = self.d, self.tiles.dots
        fits, few = dots.parts_at_once(most), dots.read_through
        if fits >= d.parts or (isinstance(count, int) and count <= few):
            return d.parts
        return fits if isinstance(count, int) else bound(tirx.Select(count <= few, d.parts, fits))

    def _piece(self, most: int) -> int:
        """Returns how many pairs of blocks the pieces of a share have, evenly, about so many.

        Where several are read in turn, all but the last piece of a share have no other ones.
        """
        own, streams = ceiling(self.d.pairs, self.pieces.tasks), self.d.streams
        return ceiling(ceiling(own, ceiling(own, most)), streams) * streams

    def _share(
        self, task: Prim, few: Prim, digits: RowDigits, first: Prim, count: Prim, most: int
    ) -> None:
        """Writes one share of the columns, some of them for all rows at a time, and helps others.

        Of few rows every task makes the digits itself: they come from no other core's cache.
        """
        d = self.d
        many = count >= ROWS if self.amx is not None else False
        if most > 1 and many is not True:
            self.tiles.make_room()
        if self.amx is not None:
            self.amx.begin(many)
        tasks = self.pieces.tasks
        own = self.tiles.own = bound(choice(few, task * count, 0)) if self.few else 0

        def make() -> None:
            pair, _ = share(task, tasks, d.pairs)
            start = bound(d.group_start(pair.astype("int64"), 0))
            digits.write(first, count, own, (self.shared[0], start))

        when(few, make)
        pieces = _PIECES if tasks > 1 else 1  # alone, a task hands nothing over
        pairs = min(ceiling(ceiling(d.pairs, tasks), pieces), _PAIRS_OF_FEW)
        read_through = count <= self.tiles.dots.read_through
        size = choice(read_through, self._piece(pairs), self._piece(self.tiles.dots.pairs))
        with (
            self.pieces.of(task, size) as (low, extent),
            turns(ceiling(d.parts, self.part_size)) as i,
        ):
            part = bound(i * self.part_size)
            parts = d.parts if self._whole else bound(tirx.min(d.parts - part, self.part_size))
            self.tiles.begin_parts(task, low, (part, parts))
            for at, length, width, tail in channel_pieces(d.units, d.cpu.lanes, 2):
                begin, some = within(low, extent, at, length)
                columns = bound(begin), bound(some), width, tail
                rows = partial(self._any_rows, columns, first, count, many)
                when(True if isinstance(some, int) else some > 0, rows)
        if self.amx is not None:
            self.amx.end(many)

    def _any_rows(
        self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim, many: Prim
    ) -> None:
        """Writes the tiles of some pairs of blocks, on AMX where there are many rows."""
        begin, some, width, tail = columns

        def on_amx() -> None:
            assert self.amx is not None
            with turns(some, begin) as unit:
                self.amx.write(bound(unit * 2), width, tail, first, count)

        when(many, on_amx)
        few = not many if isinstance(many, bool) else tirx.Not(many)
        when(few, partial(self._rows, columns, first, count))

    def _rows(self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim) -> None:
        """Writes the tiles of some pairs of blocks: high ones, and what is left."""
        done: Prim = 0
        for size in self.tiles.dots.heights:
            many = (count - done) // size
            if not isinstance(many, int) or many:
                many = many if isinstance(many, int) else bound(many)
                with turns(many) as i:
                    self.tiles.begin_rows(done + i * size, size)
                    self._tiles(columns, first, bound(done + i * size), size)
            done = done + many * size
            done = done if isinstance(done, int) else bound(done)

    def _tiles(
        self, columns: tuple[Prim, Prim, int, int], first: Prim, row: Prim, size: int
    ) -> None:
        """Writes tiles of some rows: of one, several pairs in turn where that is faster."""
        begin, some, width, tail = columns
        if size == TALL and self.d.digits > 1:
            with turns(some, begin) as unit:
                self.tall.write(bound(unit * 2), width, tail, first, row)
            return
        streams = self.d.streams if size == 1 and width == 2 and tail == self.d.cpu.lanes else 1
        each = some // streams
        if streams > 1 and not (isinstance(each, int) and not each):
            each = each if isinstance(each, int) else bound(each)
            with turns(each, begin) as unit:
                several = Streams(streams, each * 2)
                self.tiles.write(bound(unit * 2), width, tail, first, row, size, several)
            begin, some = bound(begin + each * streams), bound(some - each * streams)
        with turns(some, begin) as unit:
            self.tiles.write(bound(unit * 2), width, tail, first, row, size)
