"""Convolutions of 3x3 with fewer products, by Winograd's minimal filtering, exact in integers.

Four neighbouring results ``Y = A'(U * V)A`` take 16 products per channel in place of 36, with
``V = B'XB`` of 4x4 activations and ``U = GWG'`` of the weights (Lavin and Gray 2016, F(2x2, 3x3)).
Twice ``G`` is whole, so four times the weights' transform is, and sums are four times the wanted
ones: a shift ends it. Activations are of 11 bits then and weights of 12 to 13, which CPUs that
multiply 16-bit integers do not notice. ``B``, ``G`` and ``A`` are those of that paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    load,
    number,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import share, turns, within
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.tiles.geometry import (
    WINOGRAD,
    Direct,
    StagedRow,
    Staging,
    stage_rows,
)
from qdqbridge.tvm.relax.kernels.tiles.packing import Array, Packed, pack
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    Tile,
    channel_pieces,
    most_pixels,
    parts,
    steps_in_turns,
)
from qdqbridge.tvm.relax.kernels.tiles.repeated_loops import Finish

_G = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.int32)
_LARGEST = np.full((WINOGRAD, WINOGRAD), 2 * 255, np.int64)
_LARGEST[1, 1] = 4 * 255
_ALL = WINOGRAD * WINOGRAD
_IN_ALL = WINOGRAD + 1
"""The product that all four results add: of row 1 and column 1."""
_MOST_BLOCKS = 4


def filtered(d: Direct, weights: Array, packed: Packed) -> tuple[Direct, Packed] | None:
    """Returns a convolution with fewer products, and its weights.

    Args:
        d: The description of the direct convolution.
        weights: Centred integers of at most 9 bits, (groups, channels, runs, length).
        packed: The same, packed, and the bias.

    Returns:
        None where it is not of 3x3, where bytes are multiplied, where a sum could leave int32, or
        where it would take more instructions.
    """
    if d.cpu.dot.source != "int16" or not isinstance(d.form, Requantize | Scaled):
        return None
    one = (1, 1)
    if d.kernel != (3, 3) or (d.strides, d.dilations, d.repeats) != (one, one, one):
        return None
    if d.groups > 1 or d.open_rows or d.placement is not None or min(d.result) < 2:
        return None
    if not _pays(d):
        return None
    taps = weights.reshape(d.out_channels, 3, 3, d.channels).astype(np.int32)
    made = np.einsum("ik,jl,nklc->nijc", _G, _G, taps, optimize=True)
    sums = np.abs(made).sum(axis=3, dtype=np.int64)
    starts = packed.bias.astype(np.int64) * 4
    if (sums * _LARGEST).sum(axis=(1, 2)).max() + np.abs(starts).max() >= 1 << 31:
        return None
    small = pack(d.cpu, made.reshape(1, d.out_channels, _ALL, d.channels), 0, None)
    if small is None:
        return None
    bias = np.concatenate([np.zeros_like(starts), starts]).astype(np.int32)
    return replace(d, winograd=True), Packed(small.weights, bias, 1)


def _pays(d: Direct) -> bool:
    """True where fewer instructions are executed, by what AVX2 takes for each part of the work."""
    tiles = -(-d.result[0] // 2) * -(-d.result[1] // 2)
    own = tiles * (d.blocks * (22 * d.channels + 80) + 4 * d.channels)
    return own < 12 * d.pixels * d.blocks * d.channels


class WinogradLoops:
    """Writes the loops, a description's as :class:`~.direct.DirectLoops` takes it.

    A tile has two rows and two columns of the result; the last ones overlap those before them where
    extents are odd, and write the same again. Some rows of tiles are transformed at a time.
    """

    def __init__(
        self, d: Direct, x: Buffer, weights: Buffer, bias: Buffer, code: Prim, writer: Finish
    ) -> None:
        self.d, self.x, self.weights, self.bias = d, x, weights, bias
        self.code, self.writer = code, writer
        down, self.across = -(-d.result[0] // 2), -(-d.result[1] // 2)
        self.pitch = d.steps * d.elements.depth
        most = max(1, 2 * d.cpu.room // (_ALL * self.across * self.pitch * 2))
        self.high = max(n for n in range(1, down + 1) if down % n == 0 and n <= most)
        if 2 * self.high < min(most, down):
            self.high = min(most, down)
        self.down = down
        width = 2 * self.across + 2
        before = d.begin[1]
        copied = min(d.image[1], width - before)
        row = [n * d.channels for n in (before, copied, width - before - copied)]
        self.staging = Staging(StagedRow(*row), "uint8", d.signed)
        held = d.cpu.steps_held > 1
        self.blocks = min(d.blocks, _MOST_BLOCKS if held else 2)
        self.tiles = parts(self.high * self.across, most_pixels(d.cpu, self.blocks))

    def write(self, batch: Prim) -> None:
        """Writes all tasks: images, rows of tiles, shares of channels."""
        d, chunks, units = self.d, -(-self.down // self.high), -(-self.d.blocks // self.blocks)
        shares = min(d.tasks, units) if chunks < d.tasks else 1
        with turns(batch * (chunks * shares), parallel=d.tasks > 1) as task:
            image, share_of = task // (chunks * shares), task % shares
            chunk = task // shares % chunks
            first = bound(tirx.min(chunk * self.high, self.down - self.high))
            made = self._transformed(image, first)
            products = _room(_ALL * self.tiles.size * self.blocks * d.cpu.lanes, "int32")
            sums = _room(4 * self.blocks * d.cpu.lanes, "int32")
            begin, many = share(share_of, shares, units)
            for low, length, blocks, tail in channel_pieces(
                d.out_channels, d.cpu.lanes, self.blocks
            ):
                start, extent = within(begin, many, low, length)
                with turns(extent, start) as unit:
                    part = _WinogradChannels(self, unit * self.blocks, blocks, tail, products, sums)
                    for tile, count, size in self.tiles.pieces():
                        with turns(count) as i:
                            part.write(image, first, bound(tile + i * size), size, made)

    def row(self, tile: Prim) -> Prim:
        """Returns the first row of the result in a row of tiles."""
        rows = self.d.result[0]
        return tirx.min(tile * 2, rows - 2) if rows % 2 else tile * 2

    def column(self, tile: Prim) -> Prim:
        """Returns the first column of the result in a tile."""
        columns = self.d.result[1]
        return tirx.min(tile * 2, columns - 2) if columns % 2 else tile * 2

    def _transformed(self, image: Prim, first: Prim) -> Buffer:
        """Returns ``V`` of some rows of tiles: (16, tiles, channels)."""
        d, staging = self.d, self.staging
        rows = 2 * self.high + 2
        copy = staging.room(rows)
        pitch = d.image[1] * d.channels
        top = bound(self.row(first))
        stage_rows(
            staging, self.x, copy, self.code, rows, top - d.begin[0],
            image * (d.image[0] * pitch), d.image[0], pitch, inside=False,
        )  # fmt: skip
        tiles = self.high * self.across
        made = _room(_ALL * tiles * self.pitch, d.elements.source)
        with turns(self.high) as r, turns(self.across) as c:
            start = bound(
                (self.row(first + r) - top) * staging.row.length + self.column(c) * d.channels
            )
            place = bound((r * self.across + c) * self.pitch)

            def piece(channel: Prim, lanes: int) -> None:
                under = [
                    load(copy, start + (i * staging.row.length + j * d.channels) + channel, lanes)
                    for i in range(WINOGRAD)
                    for j in range(WINOGRAD)
                ]
                wide = [bound(one.astype(typed("int16", lanes))) for one in under]
                columns = [_of_activations(wide[j::WINOGRAD]) for j in range(WINOGRAD)]
                for i, row in enumerate(zip(*columns, strict=True)):
                    for j, value in enumerate(_of_activations(row)):
                        at = (i * WINOGRAD + j) * (tiles * self.pitch) + place + channel
                        store(made, at, value, lanes)

            each_piece(d.channels, 2 * d.cpu.lanes, piece)
        return made


def _room(size: int, dtype: str) -> Buffer:
    shape: object = (size,)
    return T.alloc_buffer(shape, dtype)


def _of_activations(four: Sequence[Prim]) -> list[Prim]:
    """Returns what ``B`` makes of four."""
    a, b, c, d = four
    return [bound(a - c), bound(b + c), bound(c - b), bound(b - d)]


def _of_products(four: Sequence[Prim]) -> list[Prim]:
    """Returns what ``A`` makes of four."""
    a, b, c, d = four
    return [bound(a + b + c), bound(b - c - d)]


@dataclass(frozen=True, slots=True)
class _WinogradChannels:
    """Writes the results of some blocks of output channels."""

    loops: WinogradLoops
    block: Prim
    blocks: int
    tail: int
    products: Buffer
    sums: Buffer

    def write(self, image: Prim, first: Prim, tile: Prim, tiles: int, made: Buffer) -> None:
        """Writes the results of some tiles.

        Args:
            image: The image.
            first: The first row of tiles that is transformed.
            tile: The first tile, counted from there.
            tiles: How many.
            made: The transformed activations.
        """
        loops, d = self.loops, self.loops.d
        self._multiply(tile, tiles, made)
        with turns(tiles) as own:
            self._add(own, tiles)
            which = bound(tile + own)
            row = loops.row(first + which // loops.across)
            column = loops.column(which % loops.across)
            pixel = image * d.place.image + row * d.place.row + column * d.place.column
            start = bound(pixel * d.out_channels + self.block * d.cpu.lanes)
            starts = [
                start + (down + right) * d.out_channels
                for down in (0, d.place.row)
                for right in (0, d.place.column)
            ]
            found = _Found(self.sums, 4, self.blocks, d.cpu.lanes)
            loops.writer.write(found, starts, self.block * d.cpu.lanes, self.tail)

    def _multiply(self, tile: Prim, tiles: int, made: Buffer) -> None:
        """Sums the products of all channels, 16 sums for every tile and output channel."""
        loops, d = self.loops, self.loops.d
        lanes, depth = d.cpu.lanes, d.elements.depth
        size = lanes * depth
        with turns(_ALL) as product:
            sums = Tile(d.cpu, tiles, self.blocks, d.elements)
            begin = tirx.Select(product == _IN_ALL, tirx.const(d.lanes, "int32"), 0)
            sums.begin(loops.bias, bound(begin + self.block * lanes))
            source = bound((product * (loops.high * loops.across) + tile) * loops.pitch)
            weights = [
                bound(((self.block + b) * _ALL + product) * (d.steps * size))
                for b in range(self.blocks)
            ]
            for part in steps_in_turns(d.cpu, d.steps):
                with turns(part.many) as turn:
                    for own in range(0, part.size, d.cpu.steps_held):
                        k = turn * part.size + (part.first + own)
                        under = [source + (p * loops.pitch) + k * depth for p in range(tiles)]
                        vectors = [
                            [load(loops.weights, w + (k + i) * size, size) for w in weights]
                            for i in range(min(d.cpu.steps_held, part.size - own))
                        ]
                        sums.step(made, under, vectors)
            for p in range(tiles):
                for b in range(self.blocks):
                    at = ((product * tiles + p) * self.blocks + b) * lanes
                    store(self.products, at, sums.sums(p, b), lanes)

    def _add(self, tile: Prim, tiles: int) -> None:
        """Makes the sums of a tile's four results of those of its 16 products."""
        lanes = self.loops.d.cpu.lanes
        quarter = number(2, "int32", lanes)
        apart = tiles * self.blocks * lanes
        for b in range(self.blocks):
            place = bound((tile * self.blocks + b) * lanes)
            sixteen = [bound(load(self.products, place + i * apart, lanes)) for i in range(_ALL)]
            columns = [_of_products(sixteen[j::WINOGRAD]) for j in range(WINOGRAD)]
            for i, row in enumerate(zip(*columns, strict=True)):
                for j, four_times in enumerate(_of_products(row)):
                    at = ((2 * i + j) * self.blocks + b) * lanes
                    store(self.sums, at, four_times >> quarter, lanes)


@dataclass(frozen=True, slots=True)
class _Found:
    """The sums of some results, as writers take them; see :class:`~.register_tile.TileSums`."""

    room: Buffer
    pixels: int
    blocks: int
    lanes: int

    def sums(self, pixel: int, block: int) -> Prim:
        """Returns the sums of a pixel and a block of channels, one register."""
        return load(self.room, (pixel * self.blocks + block) * self.lanes, self.lanes)
