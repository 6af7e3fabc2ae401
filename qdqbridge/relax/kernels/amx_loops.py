"""The loops around tiles of AMX."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import accumulate

from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.amx import ROWS, AmxShape, AmxTile, configure, release, room
from qdqbridge.relax.kernels.direct_loops import ChannelTile, DirectLoops
from qdqbridge.relax.kernels.geometry import Pair
from qdqbridge.relax.kernels.lanes import Buffer, Prim, bound
from qdqbridge.relax.kernels.loops import ceiling, turns


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
        configure(self._shape)
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
            self._amx_tile(self._shape, at, (height, width), source, pixel)

    def _open_rows(self, at: ChannelTile, origin: Prim, place: Prim, count: Prim) -> None:
        """Goes over tiles of rows: as high as can be, and then of 32, 16, 8, 4, 2 and 1 rows."""
        d, shape = self.d, self._shape

        def tile(own: AmxShape, row: Prim) -> None:
            extent = sum(own.heights), 1
            self._amx_tile(own, at, extent, origin + row * d.pitch, place + row)

        height = sum(shape.heights)
        whole = bound(count // height)
        configure(shape)
        with turns(whole) as i:
            tile(shape, i * height)
        first, rest = bound(whole * height), bound(count % height)
        size = 1 << (height.bit_length() - 1)
        while size:
            if size < height:
                own = AmxShape(shape.heights[: size // ROWS] or (size,), shape.blocks, shape.steps)
                with turns(rest // size % 2) as i:
                    configure(own)
                    tile(own, first + (rest // (2 * size) * (2 * size) + i))
            size //= 2

    def _amx_tile(
        self, shape: AmxShape, at: ChannelTile, extent: Pair, source: Prim, place: Prim
    ) -> None:
        """One tile: begin with the bias, go through the runs, finish, requantize."""
        d = self.d
        tile = AmxTile(shape, at.blocks, self._room)
        lane = (at.group * d.blocks + at.block) * d.cpu.lanes
        tile.begin(self.bias, lane)
        rows, columns = d.runs
        step = d.cpu.lanes * d.elements.depth
        block = d.weights * rows * columns * d.steps * step
        first = (at.group * d.blocks + at.block) * block
        down, right = d.strides[0] * d.pitch, d.strides[1] * d.channels
        many = d.steps // shape.steps
        with turns(d.weights) as part, turns(rows) as i, turns(columns) as j, turns(many) as k:
            run = (part * rows + i) * columns + j
            under = i * (d.dilations[0] * d.pitch) + j * (d.dilations[1] * d.channels)
            base = source + under + k * (shape.steps * d.elements.depth)
            weights = first + (run * d.steps + k * shape.steps) * step
            starts = [base + (y * down + x * right) for y, x in _corners(shape, extent)]
            packed = [weights + b * block for b in range(at.blocks)]
            pitch = down if d.result[1] == 1 else right
            tile.step(self.source, starts, pitch, self.weights, packed)
        tile.finish()
        channel = at.group * d.group_channels + at.block * d.cpu.lanes
        pixels = [(i, j) for i in range(extent[0]) for j in range(extent[1])]
        results = [
            (place + (y * d.place.row + x * d.place.column)) * d.out_channels + channel
            for y, x in pixels
        ]
        self.writer.write(tile, results, lane, at.tail)


def _corners(shape: AmxShape, extent: Pair) -> list[Pair]:
    """Returns the first pixel of every register of activations."""
    before = accumulate(shape.heights[:-1], initial=0)
    return [(done, 0) if extent[1] == 1 else divmod(done, extent[1]) for done in before]
