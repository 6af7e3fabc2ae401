"""The loops of a product with codes: what of rows, parts and columns stays in caches meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.codegen.lanes import Buffer, Prim, bound, flat
from qdqbridge.relax.kernels.codegen.loops import ceiling, share, total_of, turns, within
from qdqbridge.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.relax.kernels.products.dense import AT_ONCE
from qdqbridge.relax.kernels.tiles.register_tile import channel_pieces
from qdqbridge.relax.kernels.weight_only.digits import RowDigits
from qdqbridge.relax.kernels.weight_only.product import CodesProduct
from qdqbridge.relax.kernels.weight_only.tiles import HEIGHTS, CodesTiles

_PAIRS = 32
"""Pairs of blocks of columns whose codes of some parts stay in the second-level cache."""


def build(description: CodesProduct) -> Any:
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
        most = min(rows, AT_ONCE) if isinstance(rows, int) else AT_ONCE
        digits = RowDigits(d, self.x, most)
        self.tiles = CodesTiles(d, digits, self.shared, self.writer)
        with turns((rows + (most - 1)) // most) as chunk:
            first = chunk * most
            count = rows if isinstance(rows, int) and rows == most else None
            count = bound(tirx.min(rows - first, most)) if count is None else count
            digits.write(first, count)
            tasks = min(d.tasks, d.pairs)
            size = self._part_size(most, count)
            whole = isinstance(size, int) and size == d.parts
            self.tiles.partial = None
            if not whole:
                shape: Any = (most * d.blocks * d.cpu.lanes,)
                self.tiles.partial = T.alloc_buffer(shape, "float32")
            with turns(ceiling(d.parts, size)) as i:
                begin = bound(i * size)
                some = size if whole else bound(tirx.min(d.parts - begin, size))
                self.tiles.range = begin, some
                with turns(tasks, parallel=tasks > 1) as task:
                    self._share(task, tasks, first, count, most)

    def _part_size(self, most: int, count: Prim) -> Prim:
        """Returns how many parts of rows are gone through at a time."""
        d, dots = self.d, self.tiles.dots
        fits, few = dots.parts_at_once(most), dots.read_through
        if fits >= d.parts or (isinstance(count, int) and count <= few):
            return d.parts
        return fits if isinstance(count, int) else bound(tirx.Select(count <= few, d.parts, fits))

    def _share(self, task: Prim, tasks: int, first: Prim, count: Prim, most: int) -> None:
        """Writes one share of the columns, some of them for all rows, then the next ones."""
        d = self.d
        if most > 1:
            self.tiles.make_room()
        low, extent = share(task, tasks, d.pairs)
        for at, length, width, tail in channel_pieces(d.units, d.cpu.lanes, 2):
            begin, extent_ = within(low, extent, at, length)
            with turns(ceiling(extent_, _PAIRS)) as i:
                done = bound(i * _PAIRS)
                some = bound(tirx.min(extent_ - done, _PAIRS))
                self._rows((bound(begin + done), some, width, tail), first, count)

    def _rows(self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim) -> None:
        """Writes the tiles of some pairs of blocks: high ones, and what is left."""
        begin, some, width, tail = columns
        done: Prim = 0
        for size in HEIGHTS:
            many = (count - done) // size
            if not isinstance(many, int) or many:
                many = many if isinstance(many, int) else bound(many)
                with turns(many) as i:
                    self.tiles.begin_rows(done + i * size, size)
                    with turns(some, begin) as unit:
                        self.tiles.write(
                            bound(unit * 2), width, tail, first, bound(done + i * size), size
                        )
            done = done + many * size
            done = done if isinstance(done, int) else bound(done)
