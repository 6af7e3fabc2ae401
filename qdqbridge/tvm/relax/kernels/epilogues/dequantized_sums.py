"""Exact sums of codes as floats: ``f32(sum) * scale``, and then a bias of floats.

This is the contract of a product whose operands are quantized and whose result is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    floats,
    load,
    splat,
)
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Extras
from qdqbridge.tvm.relax.kernels.tiles.register_tile import TileSums


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
        cpu: The CPU.
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
            tile: The tile.
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
