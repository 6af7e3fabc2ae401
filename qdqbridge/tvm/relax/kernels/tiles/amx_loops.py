"""The loops around tiles of AMX."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, bound
from qdqbridge.tvm.relax.kernels.codegen.loops import ceiling, halves, turns
from qdqbridge.tvm.relax.kernels.tiles.amx import ROWS, AmxShape, AmxTile, configure, release, room
from qdqbridge.tvm.relax.kernels.tiles.direct_loops import ChannelTile, DirectLoops, StepPart
from qdqbridge.tvm.relax.kernels.tiles.geometry import Pair


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
