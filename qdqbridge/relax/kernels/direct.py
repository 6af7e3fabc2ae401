"""Direct convolution of channels-last images on the register tile, finished on registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.epilogue import ENDS, Extras, Writer
from qdqbridge.relax.kernels.geometry import Direct, Pair
from qdqbridge.relax.kernels.halves import Halves, HalvesWriter
from qdqbridge.relax.kernels.lanes import Buffer, Prim, bound, flat, load
from qdqbridge.relax.kernels.lookup import TABLE
from qdqbridge.relax.kernels.loops import share, total_of, turns, within
from qdqbridge.relax.kernels.micro import Tile, channel_pieces, most_pixels, parts
from qdqbridge.relax.kernels.plain import Plain, PlainWriter
from qdqbridge.relax.kernels.scaled import Scaled, ScaledWriter
from qdqbridge.relax.kernels.script import T, prim_func
from qdqbridge.relax.kernels.staging import stage_rows

AnyWriter = Writer | PlainWriter | ScaledWriter | HalvesWriter
"""What finishes the sums of a tile."""


def build(description: Direct) -> Any:
    """Returns the PrimFunc ``(x, weights, bias, multiplier, ends, y)``."""
    return build_parts((description,))


def build_parts(parts: tuple[Direct, ...]) -> Any:
    """Returns the PrimFunc of convolutions that write parts of one result.

    Args:
        parts: The convolutions; they have operands and results of the same tensors, and one form.

    Returns:
        ``(x, other, weights and bias of each, multiplier, ends, extras, y)``; the other codes and
        the extras are those of :class:`~.epilogue.Extras`, where the form has them. Other codes
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
    with T.sblock("root"):
        source, result = flat(x, "uint8" if d.paired else ""), flat(y)
        arguments = arguments if other is None else replace(arguments, other=flat(other))
        code = tirx.const(0.0, "float32") if d.floats else arguments.numbers[ENDS]
        for part, (weights, bias) in zip(parts, packed, strict=True):
            writer = _writer(part, arguments, result)
            DirectLoops(part, source, flat(weights), bias, code, writer).write(batch)


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


def packed_weights(d: Direct, index: int) -> tuple[Buffer, Buffer]:
    """Declares the weights and the bias of a convolution as the arguments that come next."""
    runs = d.weights * d.runs[0] * d.runs[1]
    shape = (d.groups, d.blocks, runs, d.steps, d.cpu.lanes, d.elements.depth)
    weights = T.arg(f"weights{index}", T.buffer(shape, d.elements.weight))
    return weights, T.arg(f"bias{index}", T.buffer((d.lanes,), d.elements.sum))


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
        """Writes all tasks: images, shares of rows, shares of channels."""
        d = self.d
        rows, channels = d.row_shares, d.channel_shares
        images = (batch + (d.result[0] - 1)) // d.result[0] if d.open_rows else batch
        with turns(images * (rows * channels), parallel=d.tasks > 1) as task:
            image = task // (rows * channels)
            row, count = share(task // channels % rows, rows, d.result[0])
            if d.open_rows:
                left = batch - image * d.result[0]
                count = bound(tirx.min(left, d.result[0]))
            origin = self._stage(image, row, count) if d.staged else self._first(image, row)
            place = image * d.place.image + (row * d.place.row + d.place.first)
            self._groups(task % channels, origin, place, count)

    def _first(self, image: Prim, row: Prim) -> Prim:
        """Returns where the input of a row of the result begins."""
        d = self.d
        return (image * d.image[0] + row * d.strides[0]) * d.pitch

    def _stage(self, image: Prim, row: Prim, count: Prim) -> Prim:
        """Copies what the rows look at; returns where the copy begins."""
        d = self.d
        most = -(-d.result[0] // d.row_shares)
        around = (d.kernel[0] - 1) * d.dilations[0] + 1
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
                at = _At(group, unit * d.tile_blocks, blocks, tail)
                self._pixels(at, origin, place, count)

    def _pixels(self, at: _At, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over the tiles of pixels."""
        d = self.d
        if d.open_rows:
            self._open_rows(at, origin, place, count)
            return
        most = most_pixels(d.cpu, d.blocks)
        rows = parts(d.result[0], d.tile_rows).pieces() if d.tile_rows > 1 else [(0, count, 1)]
        for row, many, height in rows:
            for column, across, width in parts(d.result[1], most).pieces():
                with turns(many) as i, turns(across) as j:
                    r, c = row + i * height, column + j * width
                    source = origin + r * (d.strides[0] * d.pitch)
                    source = source + c * (d.strides[1] * d.channels)
                    pixel = place + r * d.place.row + c * d.place.column
                    self._tile(at, (height, width), source, pixel)

    def _open_rows(self, at: _At, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over tiles of rows: as high as can be, and then of 8, 4, 2 and 1 rows."""
        height = self.d.tile_rows

        def tile(row: Prim, rows: int) -> None:
            self._tile(at, (rows, 1), origin + row * self.d.pitch, place + row)

        whole = bound(count // height)
        with turns(whole) as i:
            tile(i * height, height)
        first, rest = bound(whole * height), bound(count % height)
        size = 1 << (height.bit_length() - 1)
        while size:
            if size < height:
                with turns(rest // size % 2) as i:
                    tile(first + (rest // (2 * size) * (2 * size) + i), size)
            size //= 2

    def _tile(self, at: _At, extent: Pair, source: Prim, place: Prim) -> None:
        """One tile: begin with the bias, go through the runs, requantize."""
        d = self.d
        tile = Tile(d.cpu, extent[0] * extent[1], at.blocks, d.elements)
        lane = (at.group * d.blocks + at.block) * d.cpu.lanes
        pixels = [(i, j) for i in range(extent[0]) for j in range(extent[1])]
        steps_of = d.strides[0] * d.pitch, d.strides[1] * d.channels
        tile.begin(self.bias, lane)
        rows, columns = d.runs
        step = d.cpu.lanes * d.elements.depth
        block = d.weights * rows * columns * d.steps * step
        first = (at.group * d.blocks + at.block) * block
        with turns(d.weights) as part, turns(rows) as i, turns(columns) as j, turns(d.steps) as k:
            run = (part * rows + i) * columns + j
            under = i * (d.dilations[0] * d.pitch) + j * (d.dilations[1] * d.channels)
            base = source + under + k * d.elements.depth
            starts = [base + (y * steps_of[0] + x * steps_of[1]) for y, x in pixels]
            weights = first + (run * d.steps + k) * step
            packed = [load(self.weights, weights + b * block, step) for b in range(at.blocks)]
            tile.step(self.source, starts, packed)
        channel = at.group * d.group_channels + at.block * d.cpu.lanes
        results = [
            (place + (y * d.place.row + x * d.place.column)) * d.out_channels + channel
            for y, x in pixels
        ]
        self.writer.write(tile, results, lane, at.tail)


@dataclass(frozen=True, slots=True)
class _At:
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
