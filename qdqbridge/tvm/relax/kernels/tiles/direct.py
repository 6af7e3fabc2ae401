"""Direct convolution of channels-last images on the register tile, finished on registers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from qdqbridge.core.ops.shapes import span
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import LINE, Buffer, Prim, ask, bound, flat, load
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    ceiling,
    halves,
    overlapping,
    share,
    total_of,
    turns,
    within,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import (
    Plain,
    PlainWriter,
    Scaled,
    ScaledWriter,
)
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import ENDS, Extras, Writer
from qdqbridge.tvm.relax.kernels.lookup import TABLE
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves, HalvesWriter
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair, stage_rows
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    ROWS,
    AmxShape,
    AmxTile,
    StepPart,
    Tile,
    TileSums,
    channel_pieces,
    configure,
    release,
    room,
    steps_in_turns,
)
from qdqbridge.tvm.relax.kernels.tiles.repeated_loops import RepeatedLoops
from qdqbridge.tvm.relax.kernels.tiles.winograd import WinogradLoops

# ---- direct loops --------------------------------------------------------------------------------
# The loops around the register tiles of a direct convolution: tasks, channels, pixels, runs.


AnyWriter = Writer | PlainWriter | ScaledWriter | HalvesWriter
"""What finishes the sums of a tile."""


@dataclass(frozen=True, slots=True)
class ChannelTile:
    """The output channels of a tile.

    Attributes:
        block: The first block of channels in it.
        tail: Channels of the last of them.
    """

    group: Prim
    block: Prim
    blocks: int
    tail: int


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
        # A share is some of the channels of the only group, else some of the groups.
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
        # Tiles are numbered across all their sizes, since each asks memory for its share of the
        # next weights.
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
        later = step * d.side_by_side
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
                        [load(self.weights, w + own * later, step) for w in weights]
                        for own in range(turn, min(turn + d.cpu.steps_held, part.size))
                    ]
                    tile.step(self.source, starts, vectors)
        self._write(tile, at, extent, place)

    def _step_parts(self, once: int) -> list[StepPart]:
        """Returns the steps of a run in as few parts as turns have so many steps."""
        if once > 1:
            return [StepPart(0, self.d.steps // once, once)]
        return steps_in_turns(self.d.cpu, self.d.steps)

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
        blocks = -(-self.d.blocks // self.d.side_by_side) * self.d.side_by_side
        return (at.group * blocks + at.block) * self._block

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
        later, block = step * d.side_by_side, self._block if d.side_by_side == 1 else step
        many, once = part.many, part.size
        with turns(d.weights) as again, turns(rows) as i, turns(columns) as j, turns(many) as k:
            run = (again * rows + i) * columns + j
            under = i * (d.dilations[0] * d.pitch) + j * (d.dilations[1] * d.channels)
            weights = self._weight(at) + (run * d.steps + k * once) * later
            if part.first:
                weights, under = weights + part.first * later, under + part.first * d.elements.depth
            starts = [weights + b * block for b in range(at.blocks)]
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


# ---- The loops around tiles of AMX ---------------------------------------------------------------


class AmxLoops(DirectLoops):
    """Writes the loops around tiles whose sums lie in registers of AMX.

    All tiles of a result have as many pixels, so that registers are divided up once for a task: the
    last ones overlap those before them, and write the same again.
    """

    @property
    def _shape(self) -> AmxShape:
        assert self.d.amx is not None
        return self.d.amx

    @contextmanager
    def _task(self) -> Generator[None]:
        configure(self._shape.registers)
        self._room: Buffer = room(self._shape)
        yield
        release()

    def _pixels(self, at: ChannelTile, origin: Prim, place: Prim, count: Prim) -> None:
        d = self.d
        if d.open_rows:
            self._open_rows(at, origin, place, count)
            return
        height = d.tile_rows
        width = sum(self._shape.heights) // height
        across = ceiling(d.result[1], width)
        with turns(ceiling(count, height)) as i, turns(across) as j:
            r = tirx.min(i * height, count - height) if height > 1 else i
            c = tirx.min(j * width, d.result[1] - width) if d.result[1] % width else j * width
            r, c = bound(r), bound(c)
            source = origin + r * (d.strides[0] * d.pitch) + c * (d.strides[1] * d.channels)
            pixel = place + r * d.place.row + c * d.place.column
            self._tile(at, (height, width), source, pixel)

    @property
    def _heights(self) -> tuple[int, ...]:
        """Rows of tiles of an open number of them: whole registers, then parts of one."""
        heights = self._shape.heights
        several = [sum(heights[:n]) for n in range(len(heights), 1, -1)]
        return (*several, *halves(heights[0]))

    def _tile(
        self, at: ChannelTile, extent: Pair, source: Prim, place: Prim, number: Prim | int = 0
    ) -> None:
        """One tile: begin with the bias, go through the runs, finish, requantize."""
        del number
        shape, (down, right) = self._shape_of(extent[0] * extent[1]), self._apart
        # Of an open number of rows the last tile is lower: registers are divided up for it, and
        # back again.
        if shape is not self._shape:
            configure(shape.registers)
        tile = AmxTile(shape, at.blocks, self._room)
        tile.begin(self.bias, self._lane(at))
        pitch = down if self.d.result[1] == 1 else right
        part = StepPart(0, self.d.steps // shape.steps, shape.steps)
        with self._steps(at, source, part) as (base, weights, _):
            starts = [base + (y * down + x * right) for y, x in _corners(shape, extent)]
            tile.step(self.source, starts, pitch, self.weights, weights)
        tile.finish()
        if shape is not self._shape:
            configure(self._shape.registers)
        self._write(tile, at, extent, place)

    def _shape_of(self, pixels: int) -> AmxShape:
        """Returns how registers are divided up for a tile: less of them, or lower ones."""
        shape = self._shape
        if pixels == sum(shape.heights):
            return shape
        return replace(shape, heights=shape.heights[: pixels // ROWS] or (pixels,))


def _corners(shape: AmxShape, extent: Pair) -> list[Pair]:
    """Returns the first pixel of every register of activations."""
    before = accumulate(shape.heights[:-1], initial=0)
    return [(done, 0) if extent[1] == 1 else divmod(done, extent[1]) for done in before]


# ---- Direct convolution of channels-last images on the register tile, finished on registers ------


def build_direct_conv(description: Direct) -> Any:
    """Returns the PrimFunc ``(x, weights, bias, multiplier, ends, y)``."""
    return build_parts((description,))


def build_parts(parts: tuple[Direct, ...]) -> Any:
    """Returns the PrimFunc of convolutions that write parts of one result.

    Args:
        parts: The convolutions; they have operands and results of the same tensors, and one form.

    Returns:
        ``(x, other, weights and bias of each, multiplier, ends, extras, y)``; the other codes and
        the extras are those of :class:`~.integer_sums.Extras`, where the form has them. Other codes
        that are constants stand behind the extras' ends. Floats have no multiplier and no ends.
    """
    return prim_func(lambda: _body(parts))


def _body(parts: tuple[Direct, ...]) -> None:
    d = parts[0]
    (given, taken), batch = opened(d)
    x = T.arg("x", T.buffer(given, "uint16" if d.paired else d.stored))
    other = T.arg("other", T.buffer(taken, _other(d))) if _other(d) else None
    packed = [packed_weights(part, i) for i, part in enumerate(parts)]
    arguments = _arguments(d, other)
    y = T.arg("y", T.buffer(taken, d.form.dtype))
    with root():
        source, result = flat(x, "uint8" if d.paired else ""), flat(y)
        arguments = arguments if other is None else replace(arguments, other=flat(other))
        code = tirx.const(0.0, "float32") if d.floats else arguments.numbers[ENDS]
        for part, (weights, bias) in zip(parts, packed, strict=True):
            writer = _writer(part, arguments, result)
            loops_of(part)(part, source, flat(weights), bias, code, writer).write(batch)


def opened(d: Direct) -> tuple[tuple[list[Any], list[Any]], Prim]:
    """Returns the shapes of operand and result, and how many images there are (or open rows)."""
    axes = max(len(d.operand), len(d.outcome))
    names = [tirx.Var(f"n{axis}" if axis else "n", "int64") for axis in range(axes)]
    given, taken = (
        [name if extent is None else extent for name, extent in zip(names, shape, strict=False)]
        for shape in (d.operand, d.outcome)
    )
    if not d.open_rows:
        return (given, taken), names[0] if d.batch is None else d.batch
    return (given, taken), total_of(given[:-1])


def _other(d: Direct) -> str:
    """Returns the element type of a tensor that is added to the result; empty for none."""
    if isinstance(d.form, Plain):
        return "float32" if d.form.added else ""
    if isinstance(d.form, Scaled | Halves):
        return ""
    return "uint8" if d.form.linear is not None and d.form.linear.other == "tensor" else ""


def _arguments(d: Direct, other: Buffer) -> Extras:
    """Declares the operands of what happens to sums."""
    extras = Extras(other=other)
    if isinstance(d.form, Plain):
        bounds = T.arg("bounds", T.buffer((2,), "float32")) if d.form.clamped else None
        return replace(extras, factors=bounds)
    channels = d.lanes // 2 if d.paired else d.lanes
    multiplier = T.arg("multiplier", T.buffer((channels,), "float32"))
    extras = replace(extras, multiplier=multiplier)
    extras = replace(extras, numbers=T.arg("ends", T.buffer((ENDS + 1,), "int32")))
    if isinstance(d.form, Halves):
        return replace(extras, factors=T.arg("offsets", T.buffer((channels,), d.form.offsets)))
    if isinstance(d.form, Scaled):
        added = T.arg("added", T.buffer((d.lanes,), "float32")) if d.form.added else None
        return replace(extras, factors=added)
    if d.form.linear is not None:
        factors = T.arg("factors", T.buffer((ENDS,), "float32"))
        extras = replace(extras, factors=factors, ends=T.arg("sum", T.buffer((ENDS,), "int32")))
        if other is None:
            extras = replace(extras, other=T.arg("other", T.buffer((d.lanes,), "uint8")))
    if d.form.table:
        extras = replace(extras, table=T.arg("table", T.buffer((TABLE,), d.form.table)))
    return extras


def _writer(d: Direct, arguments: Extras, result: Buffer) -> AnyWriter:
    if isinstance(d.form, Halves):
        return HalvesWriter(d.cpu, d.form, arguments, result)
    if isinstance(d.form, Plain):
        return PlainWriter(d.cpu, d.form, arguments.factors, arguments.other, result)
    if isinstance(d.form, Scaled):
        return ScaledWriter(d.cpu, d.form, arguments, result)
    return Writer(d.cpu, d.form, arguments, result)


def loops_of(d: Direct) -> type[DirectLoops | RepeatedLoops | WinogradLoops]:
    """Returns what writes the loops around the tiles: of vectors, or of AMX."""
    if d.winograd:
        return WinogradLoops
    if d.repeats != (1, 1):
        return RepeatedLoops
    return DirectLoops if d.amx is None else AmxLoops


def packed_weights(d: Direct, index: int) -> tuple[Buffer, Buffer]:
    """Declares the weights and the bias of a convolution as the arguments that come next."""
    runs = d.weights * d.runs[0] * d.runs[1]
    shape: tuple[int, ...] = (d.groups, d.blocks, runs, d.steps, d.cpu.lanes, d.elements.depth)
    if (width := d.side_by_side) > 1:
        shape = (d.groups, -(-d.blocks // width), runs, d.steps, width, *shape[-2:])
    weights = T.arg(f"weights{index}", T.buffer(shape, d.elements.weight))
    count = d.lanes * (2 if d.winograd else 1)
    return weights, T.arg(f"bias{index}", T.buffer((count,), d.elements.sum))
