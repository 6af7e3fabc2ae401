"""The loops around the register tiles of a direct convolution: tasks, channels, pixels, runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from qdqbridge.core.ops.windows import span
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import LINE, Buffer, Prim, ask, bound, load
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    ceiling,
    halves,
    overlapping,
    share,
    turns,
    within,
)
from qdqbridge.tvm.relax.kernels.epilogues.dequantized_sums import ScaledWriter
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import PlainWriter
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Writer
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import HalvesWriter
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    Tile,
    TileSums,
    channel_pieces,
)
from qdqbridge.tvm.relax.kernels.tiles.staging import stage_rows

AnyWriter = Writer | PlainWriter | ScaledWriter | HalvesWriter
"""What finishes the sums of a tile."""


@dataclass(frozen=True, slots=True)
class ChannelTile:
    """The output channels of a tile.

    Attributes:
        group: The group.
        block: The first block of channels in it.
        blocks: Blocks of the tile.
        tail: Channels of the last of them.
    """

    group: Prim
    block: Prim
    blocks: int
    tail: int


@dataclass(frozen=True, slots=True)
class StepPart:
    """Steps of every run: ``many`` times ``size`` of them, from ``first`` on."""

    first: int
    many: int
    size: int


class DirectLoops:
    """Writes the loops around the tiles."""

    def __init__(
        self,
        d: Direct,
        x: Buffer,
        weights: Buffer,
        bias: Buffer,
        code: Prim,
        writer: AnyWriter,
    ) -> None:
        self.d, self.x, self.weights, self.bias = d, x, weights, bias
        self.code, self.writer = code, writer
        self.source = x

    def write(self, batch: Prim) -> None:
        """Writes all tasks: images, shares of rows, shares of channels.

        Of an open number of rows the shares of channels come first: threads take even numbers of
        tasks that follow each other, and the last rows are fewer than the others.
        """
        d = self.d
        rows, channels = d.row_shares, d.channel_shares
        images = ceiling(batch, d.result[0]) if d.open_rows else batch
        with turns(images * (rows * channels), parallel=d.tasks > 1) as task, self._task():
            if d.open_rows:
                image, row, channel = task % images, 0, task // images
                count: Prim = bound(tirx.min(batch - image * d.result[0], d.result[0]))
            else:
                image, channel = task // (rows * channels), task % channels
                row, count = share(task // channels % rows, rows, d.result[0])
            origin = self._stage(image, row, count) if d.staged else self._first(image, row)
            place = image * d.place.image + (row * d.place.row + d.place.first)
            self._groups(channel, origin, place, count)

    @contextmanager
    def _task(self) -> Generator[None]:
        """Opens what a task needs besides its operands: nothing."""
        yield

    def _first(self, image: Prim, row: Prim) -> Prim:
        """Returns where the input of a row of the result begins."""
        d = self.d
        return (image * d.image[0] + row * d.strides[0]) * d.pitch

    def _stage(self, image: Prim, row: Prim, count: Prim) -> Prim:
        """Copies what the rows look at; returns where the copy begins."""
        d = self.d
        most = -(-d.result[0] // d.row_shares)
        around = span(d.kernel[0], d.dilations[0])
        self.source = d.staging.room((most - 1) * d.strides[0] + around)
        pitch = d.image[1] * d.channels
        stage_rows(
            d.staging, self.x, self.source, self.code, (count - 1) * d.strides[0] + around,
            row * d.strides[0] - d.begin[0], image * (d.image[0] * pitch), d.image[0], pitch,
            inside=bool(d.inside[0]),
        )  # fmt: skip
        return tirx.const(0, "int32")

    def _groups(self, channels: Prim, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over the groups, and over the tiles of channels in each."""
        d = self.d
        first, number = share(channels, d.channel_shares, d.channel_units)
        if d.groups == 1:
            self._channels(tirx.const(0, "int32"), first, number, origin, place, count)
            return
        with turns(number, first) as group:
            source = origin + group * (d.channels // d.groups)
            units = -(-d.blocks // d.tile_blocks)
            self._channels(group, tirx.const(0, "int32"), units, source, place, count)

    def _channels(
        self, group: Prim, first: Prim, number: Prim, origin: Prim, place: Prim, count: Prim
    ) -> None:
        d = self.d
        pieces = channel_pieces(d.group_channels, d.cpu.lanes, d.tile_blocks)
        for low, length, blocks, tail in pieces:
            start, extent = within(first, number, low, length)
            with turns(extent, start) as unit:
                at = ChannelTile(group, unit * d.tile_blocks, blocks, tail)
                self._pixels(at, origin, place, count)

    def _pixels(self, at: ChannelTile, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over the tiles of pixels."""
        d = self.d
        if d.open_rows:
            self._open_rows(at, origin, place, count)
            return
        rows = [(0, count, 1)] if d.tile_rows == 1 else d.row_parts.pieces()
        in_row = d.column_parts.wide + d.column_parts.narrow
        before: Prim | int = 0
        for row, many, height in rows:
            passed = before
            for column, across, width in d.column_parts.pieces():
                with turns(many) as i, turns(across) as j:
                    r, c = row + i * height, column + j * width
                    source = origin + r * (d.strides[0] * d.pitch)
                    source = source + c * (d.strides[1] * d.channels)
                    pixel = place + r * d.place.row + c * d.place.column
                    self._tile(at, (height, width), source, pixel, passed + i * in_row + j)
                passed = passed + across
            before = before + many * in_row

    def _open_rows(self, at: ChannelTile, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over tiles of rows: the highest ones, and a lower one that overlaps the last."""

        def tile(row: Prim, rows: int) -> None:
            self._tile(at, (rows, 1), origin + row * self.d.pitch, place + row)

        overlapping(count, self._heights, tile)

    @property
    def _heights(self) -> tuple[int, ...]:
        """Rows of tiles of an open number of them, falling to 1."""
        return halves(self.d.tile_rows)

    def _tile(
        self, at: ChannelTile, extent: Pair, source: Prim, place: Prim, number: Prim | int = 0
    ) -> None:
        """One tile: begin with the bias, go through the runs, requantize.

        Args:
            at: The output channels.
            extent: Rows and columns of the tile.
            source: Where what the first pixel reads begins.
            place: Where the first pixel is written to.
            number: Which of the tiles of these channels it is.
        """
        d = self.d
        tile = Tile(d.cpu, extent[0] * extent[1], at.blocks, d.elements)
        pixels = [(i, j) for i in range(extent[0]) for j in range(extent[1])]
        down, right = self._apart
        self._ask_added(at, extent, place)
        tile.begin(self.bias, self._lane(at))
        step, once = d.cpu.lanes * d.elements.depth, max(1, d.asked_steps)
        coming = (
            bound(self._coming(at, number, self._steps_of_block // once)) if d.asked_steps else 0
        )
        for part in self._step_parts(once):
            with self._steps(at, source, part) as (base, weights, passed):
                if d.asked_steps:
                    ask(self.weights, coming + passed * step)
                for turn in range(0, part.size, d.cpu.steps_held):
                    starts = [
                        base + (y * down + x * right + turn * d.elements.depth) for y, x in pixels
                    ]
                    vectors = [
                        [load(self.weights, w + own * step, step) for w in weights]
                        for own in range(turn, min(turn + d.cpu.steps_held, part.size))
                    ]
                    tile.step(self.source, starts, vectors)
        self._write(tile, at, extent, place)

    def _step_parts(self, once: int) -> list[StepPart]:
        """Returns the steps of a run in as few parts as registers hold their activations in."""
        if self.d.cpu.steps_held == 1:
            return [StepPart(0, self.d.steps // once, once)]
        found: list[StepPart] = []
        first = 0
        for size in halves(self.d.cpu.steps_held):
            many = (self.d.steps - first) // size
            if many:
                found.append(StepPart(first, many, size))
            first += many * size
        return found

    def _coming(self, at: ChannelTile, number: Prim | int, lines: int) -> Prim:
        """Returns where the weights begin that a tile asks memory for.

        Each tile asks for a share of those of the channels that come next; tiles that are left ask
        for the last share again. Behind the last channels there is what nobody needs.

        Args:
            at: The output channels.
            number: Which of the tiles of these channels it is.
            lines: How many lines it asks for.
        """
        first = tirx.min(number * lines, max(0, at.blocks * self._steps_of_block - lines))
        step = self.d.cpu.lanes * self.d.elements.depth
        return self._weight(at) + at.blocks * self._block + first * step

    def _ask_added(self, at: ChannelTile, extent: Pair, place: Prim) -> None:
        """Asks memory for what is added to the pixels that come next."""
        scattered = self.d.placement is not None
        if scattered or self.d.cpu.reads_ahead or not isinstance(self.writer, Writer):
            return
        if self.writer.added is not None:
            for start in self._results(at, extent, place + extent[0] * extent[1]):
                for line in range(0, at.blocks * self.d.cpu.lanes, LINE):
                    ask(self.writer.added, start + line)

    @property
    def _steps_of_block(self) -> int:
        """Steps over all weights of an output channel."""
        d = self.d
        return d.weights * d.runs[0] * d.runs[1] * d.steps

    @property
    def _block(self) -> int:
        """Elements of the weights of a block of output channels."""
        return self._steps_of_block * self.d.cpu.lanes * self.d.elements.depth

    @property
    def _apart(self) -> Pair:
        """Elements between what two pixels of the result read, below and beside each other."""
        d = self.d
        return d.strides[0] * d.pitch, d.strides[1] * d.channels

    def _lane(self, at: ChannelTile) -> Prim:
        """Returns the first lane of a tile in the bias and the multiplier."""
        return (at.group * self.d.blocks + at.block) * self.d.cpu.lanes

    def _weight(self, at: ChannelTile) -> Prim:
        """Returns where the weights of a tile begin."""
        return (at.group * self.d.blocks + at.block) * self._block

    @contextmanager
    def _steps(
        self, at: ChannelTile, source: Prim, part: StepPart
    ) -> Generator[tuple[Prim, list[Prim], Prim]]:
        """Opens the loops over all runs, and over some steps of each at a time.

        Args:
            at: The output channels.
            source: Where what the first pixel reads begins.
            part: Which steps of a run.

        Yields:
            Where the activations of the first pixel begin, and the weights of every block; how
            many turns came before.
        """
        d = self.d
        rows, columns = d.runs
        step = d.cpu.lanes * d.elements.depth
        many, once = part.many, part.size
        with turns(d.weights) as again, turns(rows) as i, turns(columns) as j, turns(many) as k:
            run = (again * rows + i) * columns + j
            under = i * (d.dilations[0] * d.pitch) + j * (d.dilations[1] * d.channels)
            weights = self._weight(at) + (run * d.steps + k * once) * step
            if part.first:
                weights, under = weights + part.first * step, under + part.first * d.elements.depth
            starts = [weights + b * self._block for b in range(at.blocks)]
            yield source + under + k * (once * d.elements.depth), starts, run * many + k

    def _write(self, tile: TileSums, at: ChannelTile, extent: Pair, place: Prim) -> None:
        """Finishes a tile, whose first pixel is written to ``place``."""
        self.writer.write(tile, self._results(at, extent, place), self._lane(at), at.tail)

    def _results(self, at: ChannelTile, extent: Pair, place: Prim) -> list[Prim]:
        """Returns where the results of a tile's pixels begin, the first pixel being ``place``."""
        d = self.d
        channel = at.group * d.group_channels + at.block * d.cpu.lanes
        return [
            (place + (y * d.place.row + x * d.place.column)) * d.out_channels + channel
            for y in range(extent[0])
            for x in range(extent[1])
        ]
