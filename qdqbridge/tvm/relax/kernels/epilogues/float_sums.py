"""What happens to sums of floats before they are stored: another tensor added, two bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    floats,
    load,
    number,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Extras
from qdqbridge.tvm.relax.kernels.tiles.register_tile import TileSums


@dataclass(frozen=True, slots=True)
class Plain:
    """Results of float32.

    Attributes:
        added: True where a tensor like the result is added.
        clamped: True where results are then bounded on both sides.
    """

    added: bool = False
    clamped: bool = False

    @property
    def dtype(self) -> str:
        """The element type that is stored."""
        return "float32"


class PlainWriter:
    """Writes the results of tiles.

    Args:
        form: What is done.
        bounds: The smallest and the largest result; None where there are none.
        other: What is added, flat; None for nothing.
        result: What is written to, flat.
    """

    def __init__(
        self, cpu: Cpu, form: Plain, bounds: Buffer, other: Buffer, result: Buffer
    ) -> None:
        self.cpu, self.form = cpu, form
        self._bounds, self._other, self._result = bounds, other, result

    def write(self, tile: TileSums, starts: Sequence[Prim], channel: Prim, tail: int) -> None:
        """Writes a tile.

        Args:
            starts: Where the results of every pixel begin, at the tile's first channel.
            channel: The tile's first channel.
            tail: Channels of the tile's last block.
        """
        del channel
        lanes = self.cpu.lanes
        for pixel, start in enumerate(starts):
            for block in range(tile.blocks):
                count = tail if block == tile.blocks - 1 else lanes
                self.put(tile.sums(pixel, block), start + block * lanes, count)

    def put(self, sums: Prim, start: Prim, count: int) -> None:
        """Stores the first ``count`` lanes of a register from ``start`` on."""
        lanes = self.cpu.lanes
        if count == lanes:
            store(self._result, start, self._finished(sums, start, lanes), lanes)
            return
        sums = bound(sums)
        if self.cpu.masks and not self.form.added:
            inside = tirx.Ramp(0, 1, lanes) < number(count, "int32", lanes)
            value = self._finished(sums, start, lanes)
            T.evaluate(T.masked_store(self._result, value, tirx.Ramp(start, 1, lanes), inside))
            return
        done = 0
        while done < count:
            size = 1 << ((count - done).bit_length() - 1)
            part = tirx.Shuffle([sums], list(range(done, done + size)))
            store(self._result, start + done, self._finished(part, start + done, size), size)
            done += size

    def _finished(self, value: Prim, start: Prim, lanes: int) -> Prim:
        if self.form.added:
            value = value + load(self._other, start, lanes)
        if self.form.clamped:
            low, high = (splat(self._bounds[i], lanes) for i in (0, 1))
            value = tirx.min(tirx.max(value, low), high)
        return value


# ---- Exact sums of codes as floats: ``f32(sum) * scale``, and then a bias of floats --------------
# This is the contract of a product whose operands are quantized and whose result is not.


@dataclass(frozen=True, slots=True)
class Scaled:
    """Results of float32 that are sums of codes.

    Attributes:
        added: True where a bias of floats is added, one per channel.
    """

    added: bool = False

    @property
    def dtype(self) -> str:
        """The element type that is stored."""
        return "float32"


class ScaledWriter:
    """Writes the results of tiles.

    Args:
        form: What is done.
        extras: ``multiplier`` holds the scales, ``factors`` the bias.
        result: What is written to, flat.
    """

    def __init__(self, cpu: Cpu, form: Scaled, extras: Extras, result: Buffer) -> None:
        self.cpu, self.form, self._extras = cpu, form, extras
        self._plain = PlainWriter(cpu, Plain(), None, None, result)

    def write(self, tile: TileSums, starts: Sequence[Prim], channel: Prim, tail: int) -> None:
        """Writes a tile.

        Args:
            starts: Where the results of every pixel begin, at the tile's first channel.
            channel: The tile's first channel.
            tail: Channels of the tile's last block.
        """
        lanes = self.cpu.lanes
        for pixel, start in enumerate(starts):
            for block in range(tile.blocks):
                count = tail if block == tile.blocks - 1 else lanes
                value = self._real(tile.sums(pixel, block), channel + block * lanes)
                self._plain.put(bound(value), start + block * lanes, count)

    def _real(self, sums: Prim, channel: Prim) -> Prim:
        lanes, extras = self.cpu.lanes, self._extras
        single = int(extras.multiplier.shape[0]) == 1
        scale = (
            splat(extras.multiplier[0], lanes)
            if single
            else load(extras.multiplier, channel, lanes)
        )
        value = floats(sums, lanes) * scale
        return fence(value) + load(extras.factors, channel, lanes) if self.form.added else value
