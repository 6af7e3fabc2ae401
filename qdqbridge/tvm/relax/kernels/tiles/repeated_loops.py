"""The loops of a convolution of repeated pixels: every pixel meets the weights once.

Resizing to the nearest pixel by whole factors repeats pixels, and a convolution behind it would
multiply every repetition with the same weights again. Here each pixel of the small image is
multiplied with all elements of the kernel once, into rows of sums that stay in the second-level
cache, and elements of the result add up what they see: behind factors of 2 and 2 a quarter of the
products.

Element ``o`` of an axis sees, under element ``k`` of the kernel, the repeated pixel ``o + k d -
begin``. With ``o = f i + a`` that is pixel ``i + floor((a + k d - begin) / f)`` of the small image:
its row ``i`` and some around it give ``f`` rows of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, bound, load, number, store
from qdqbridge.tvm.relax.kernels.codegen.loops import share, turns, within
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, StagedRow, Staging
from qdqbridge.tvm.relax.kernels.tiles.register_tile import Tile, TileSums, channel_pieces, parts

_ROOM = 1 << 18
"""Bytes of sums that stay in the second-level cache beside what else is used."""
_GROUP = 4
"""Registers that a writer packs into one of bytes."""
_MOST_BLOCKS = 4


@dataclass(frozen=True)
class RepeatedAxis:
    """What the elements of a result see of one axis.

    Attributes:
        repeats: How often a pixel comes in turn.
        kernel: Elements of the kernel.
        dilation: How far apart they are.
        begin: Repeated pixels before the first one.
    """

    repeats: int
    kernel: int
    dilation: int
    begin: int

    def offset(self, phase: Prim, tap: int) -> Prim:
        """Returns which pixel, from its own on, result ``phase`` of a pixel sees under a tap."""
        return (phase + tap * self.dilation - self.begin) // self.repeats

    @cached_property
    def low(self) -> int:
        """The smallest offset."""
        return self.offset(0, 0)

    @cached_property
    def high(self) -> int:
        """The largest offset."""
        return self.offset(self.repeats - 1, self.kernel - 1)

    @cached_property
    def around(self) -> int:
        """Pixels beside its own that a pixel's results see."""
        return self.high - self.low


def axes_of(d: Direct) -> tuple[RepeatedAxis, RepeatedAxis]:
    """Returns rows and columns."""
    rows, columns = (
        RepeatedAxis(d.repeats[i], d.kernel[i], d.dilations[i], d.begin[i]) for i in (0, 1)
    )
    return rows, columns


def pixels_at_once(cpu: Cpu, columns: int) -> int:
    """Returns how many pixels are multiplied with a row of the kernel at once."""
    return (cpu.registers - 1 - columns) // columns


def sums_of_a_block(d: Direct) -> int:
    """Returns how many sums of a pixel row are kept for one lane."""
    rows, columns = axes_of(d)
    width = d.result[1] // d.repeats[1] + columns.around
    return (rows.around + 1) * d.kernel[0] * d.kernel[1] * width


class Finish(Protocol):
    """What finishes the sums of a tile."""

    def write(self, tile: TileSums, starts: Sequence[Prim], channel: Prim, tail: int) -> None:
        """Writes a tile; see :class:`~.integer_sums.Writer`."""
        ...


class RepeatedLoops:
    """Writes the loops.

    Args:
        d: The description; its CPU takes bytes or 16-bit integers, its groups are one, its strides
            are 1, and rows and columns of the result are multiples of the repeats.
        x: Activations.
        weights: Packed; every element of the kernel is a run.
        bias: One entry per lane of every block.
        code: Zero point of the activations, as it is stored.
        writer: What finishes sums.
    """

    def __init__(
        self,
        d: Direct,
        x: Buffer,
        weights: Buffer,
        bias: Buffer,
        code: Prim,
        writer: Finish,
    ) -> None:
        self.d, self.x, self.weights, self.bias = d, x, weights, bias
        self.code, self.writer = code, writer
        self.rows, self.columns = axes_of(d)
        self.grid = d.result[0] // d.repeats[0], d.result[1] // d.repeats[1]
        self.width = self.grid[1] + self.columns.around
        self.slots = self.rows.around + 1
        size = sums_of_a_block(d) * d.cpu.lanes * 4
        # More blocks read the image less often, as long as their sums stay in the cache.
        fitting = [n for n in range(1, _MOST_BLOCKS + 1) if n == 1 or n * size <= _ROOM]
        self.blocks = max(n for n in fitting if n == 1 or d.blocks % n == 0)
        staged = d.elements.source != d.stored or d.channels % d.elements.depth
        row = StagedRow(0, d.image[1] * d.channels, 0)
        self.staging = Staging(row, d.elements.source, d.signed) if staged else None
        self.source, self.sums, self.outside = x, x, x  # the last two are made in a task

    def write(self, batch: Prim) -> None:
        """Writes all tasks: images, shares of rows, shares of channels."""
        d, units = self.d, -(-self.d.blocks // self.blocks)
        rows = d.tasks if self.grid[0] >= 8 * d.tasks or units == 1 else 1
        rows = min(rows, self.grid[0])
        channels = min(d.tasks, units) if rows < d.tasks else 1
        with turns(batch * (rows * channels), parallel=d.tasks > 1) as task:
            image, channel = task // (rows * channels), task % channels
            row, count = share(task // channels % rows, rows, self.grid[0])
            self._allocate()
            first, many = share(channel, channels, units)
            for low, length, blocks, tail in channel_pieces(
                d.out_channels, d.cpu.lanes, self.blocks
            ):
                start, extent = within(first, many, low, length)
                with turns(extent, start) as unit:
                    part = _Channels(self, unit * self.blocks, blocks, tail)
                    part.write(image, row, count)

    def _allocate(self) -> None:
        """Makes the memory of a task."""
        d = self.d
        lanes = self.blocks * d.cpu.lanes
        self.sums = _room(sums_of_a_block(d) * lanes, "int32")
        self.outside = _room(d.kernel[0] * d.kernel[1] * lanes, "int32")
        if self.staging is not None:
            self.source = self.staging.room(1)


def _room(size: int, dtype: str) -> Buffer:
    shape: object = (size,)
    return T.alloc_buffer(shape, dtype)


class _Channels:
    """Writes a task's results of some blocks of output channels."""

    def __init__(self, loops: RepeatedLoops, block: Prim, blocks: int, tail: int) -> None:
        self.loops, self.d = loops, loops.d
        self.block, self.blocks, self.tail = block, blocks, tail
        self.lanes = self.d.cpu.lanes

    def write(self, image: Prim, row: Prim, count: Prim) -> None:
        """Writes the results of some rows of the small image."""
        rows = self.loops.rows
        self._outside()
        with turns(count + rows.around) as i:
            self._line(image, bound(row + i + rows.low))
            with T.If(i >= rows.around), T.Then(), turns(rows.repeats) as phase:
                self._results(image, bound(row + i - rows.around), phase)

    # ---- sums of the small image ----------------------------------------------------------------

    def _at(self, slot: Prim, tap: Prim, column: Prim, block: Prim) -> Prim:
        """Returns where the sums of a pixel lie; the first column is the leftmost that is seen."""
        taps = self.d.kernel[0] * self.d.kernel[1]
        place = ((slot * taps + tap) * self.loops.width + column) * self.loops.blocks
        return (place + block) * self.lanes

    def _outside(self) -> None:
        """Computes the sums of a pixel that has the zero point, and sets those beside the image."""
        d, loops = self.d, self.loops
        size = d.steps * d.elements.depth
        blank = _room(size, d.elements.source)
        with turns(size) as i:
            store(blank, i, d.cpu.dot.zero_point(loops.code), 1)
        taps, left = d.kernel[0] * d.kernel[1], -loops.columns.low
        with turns(self.blocks) as block, turns(d.kernel[0]) as k:
            for j, sums in enumerate(self._products(blank, tirx.const(0, "int32"), 1, block, k)[0]):
                at = ((k * d.kernel[1] + j) * loops.blocks + block) * self.lanes
                store(loops.outside, at, sums, self.lanes)
        right = left + self._inside
        with turns(loops.slots) as slot, turns(taps) as tap:
            for first, many in ((0, left), (right, loops.width - right)):
                if many:
                    self._set_outside(slot, tap, first, many)

    @property
    def _inside(self) -> int:
        """Columns of the small image that are seen."""
        return min(self.d.image[1], self.loops.grid[1] + self.loops.columns.high)

    def _set_outside(self, slot: Prim, tap: Prim, first: int, many: int) -> None:
        with turns(many, first) as column, turns(self.blocks) as block:
            sums = load(
                self.loops.outside, (tap * self.loops.blocks + block) * self.lanes, self.lanes
            )
            store(self.loops.sums, self._at(slot, tap, column, block), sums, self.lanes)

    def _line(self, image: Prim, row: Prim) -> None:
        """Computes the sums of a row of the small image, which may lie above or below it."""
        rows, d = self.loops.rows, self.d
        # A ring: only the rows that a result sees are kept.
        slot = bound((row - rows.low) % self.loops.slots)
        # No row can lie outside, so nothing asks whether this one does.
        if rows.low == 0 and self.loops.grid[0] + rows.high <= d.image[0]:
            self._row(image, row, slot)
            return
        with T.If(tirx.all(row >= 0, row < d.image[0])):
            with T.Then():
                self._row(image, row, slot)
            with T.Else(), turns(d.kernel[0] * d.kernel[1]) as tap:
                self._set_outside(slot, tap, -self.loops.columns.low, self._inside)

    def _row(self, image: Prim, row: Prim, slot: Prim) -> None:
        d, loops = self.d, self.loops
        pitch = d.image[1] * d.channels
        start = bound((image * d.image[0] + row) * pitch)
        if loops.staging is not None:
            zero = tirx.const(0, "int32")
            loops.staging.copy(loops.x, start, loops.source, zero, loops.code)
            start = zero
        pieces = parts(self._inside, pixels_at_once(d.cpu, d.kernel[1])).pieces()
        with turns(self.blocks) as block, turns(d.kernel[0]) as k:
            for first, many, size in pieces:
                with turns(many) as i:
                    column = first + i * size
                    made = self._products(loops.source, start + column * d.channels, size, block, k)
                    for pixel, row_of_sums in enumerate(made):
                        for j, sums in enumerate(row_of_sums):
                            at = column + (pixel - loops.columns.low)
                            place = self._at(slot, k * d.kernel[1] + j, at, block)
                            store(loops.sums, place, sums, self.lanes)

    def _products(
        self, source: Buffer, start: Prim, pixels: int, block: Prim, k: Prim
    ) -> list[list[Prim]]:
        """Returns the products of pixels, side by side, with a row of the kernel."""
        d = self.d
        taps, columns = d.kernel[0] * d.kernel[1], d.kernel[1]
        tile = Tile(d.cpu, pixels, columns, d.elements)
        for pixel in range(pixels):
            for j in range(columns):
                tile.put(pixel, j, number(0, "int32", self.lanes))
        size = self.lanes * d.elements.depth
        with turns(d.weights) as part, turns(d.steps) as step:
            run = ((self.block + block) * d.weights + part) * taps + k * columns
            starts = [((run + j) * d.steps + step) * size for j in range(columns)]
            own = [load(self.loops.weights, at, size) for at in starts]
            under = start + step * d.elements.depth
            tile.step(source, [under + pixel * d.channels for pixel in range(pixels)], [own])
        return [[tile.sums(pixel, j) for j in range(columns)] for pixel in range(pixels)]

    # ---- results --------------------------------------------------------------------------------

    def _results(self, image: Prim, own: Prim, phase: Prim) -> None:
        """Writes one row of the result, which is one of a row's of the small image."""
        d, loops = self.d, self.loops
        slots = [
            bound((own + (loops.rows.offset(phase, k) - loops.rows.low)) % loops.slots)
            for k in range(d.kernel[0])
        ]
        row = bound(image * d.place.image + (own * d.repeats[0] + phase) * d.place.row)
        most = max(1, _GROUP // (d.repeats[1] * self.blocks))
        for first, many, size in parts(loops.grid[1], most).pieces():
            with turns(many) as i:
                column = first + i * size
                pixel = row + (column * d.repeats[1] + d.place.first)
                starts = [
                    (pixel + j) * d.out_channels + self.block * self.lanes
                    for j in range(size * d.repeats[1])
                ]
                seen = _Seen(self, slots, column, size)
                loops.writer.write(seen, starts, self.block * self.lanes, self.tail)

    def seen(self, slots: Sequence[Prim], column: Prim, phase: int, block: int) -> Prim:
        """Returns the sums of one element of the result.

        Args:
            slots: Where the rows are that it sees, one for every row of the kernel.
            column: Its pixel of the small image.
            phase: Which of the pixel's elements it is, along columns.
            block: Its block of channels.
        """
        d, columns = self.d, self.loops.columns
        total = load(self.loops.bias, (self.block + block) * self.lanes, self.lanes)
        for k, slot in enumerate(slots):
            for j in range(d.kernel[1]):
                at = column + (columns.offset(phase, j) - columns.low)
                place = self._at(slot, k * d.kernel[1] + j, at, block)
                total = total + load(self.loops.sums, place, self.lanes)
        return bound(total)


class _Seen:
    """Elements of a row of the result, as a writer takes them."""

    def __init__(self, part: _Channels, slots: Sequence[Prim], column: Prim, pixels: int) -> None:
        self._part, self._slots, self._column = part, slots, column
        self._repeats = part.d.repeats[1]
        self.pixels, self.blocks = pixels * self._repeats, part.blocks

    def sums(self, pixel: int, block: int) -> Prim:
        """Returns the sums of an element and a block of channels, one register."""
        column, phase = divmod(pixel, self._repeats)
        return self._part.seen(self._slots, self._column + column, phase, block)
