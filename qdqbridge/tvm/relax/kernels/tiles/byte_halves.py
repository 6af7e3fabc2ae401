"""Products of 16-bit activations: exact sums of their low and of their high bytes, put together.

A tensor of uint16 is one of uint8 with twice the channels, the low byte first. One block of
output channels sums the low bytes and the next one the high bytes, with zeros between the weights:
``sum = 256 * high + low + offset``, the offset being ``bias - zx * sum(w)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    floats,
    load,
    narrowed,
    nearest,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Extras
from qdqbridge.tvm.relax.kernels.tiles.register_tile import TileSums


@dataclass(frozen=True, slots=True)
class Halves:
    """How both sums become codes.

    Attributes:
        dtype: Element type of the result, of 8 or 16 bits.
        wide: True where the whole sum needs 64 bits.
        clamped: True where the range is narrower than the type's.
    """

    dtype: str
    wide: bool
    clamped: bool

    @property
    def offsets(self) -> str:
        """Element type of the offsets and of the whole sum."""
        return "int64" if self.wide else "int32"


class HalvesWriter:
    """Writes the results of tiles, whose blocks are pairs.

    Args:
        form: How both sums become codes.
        extras: ``multiplier`` and ``factors`` (the offsets) have one entry per channel,
            ``numbers`` the zero point, the smallest and the largest code.
        result: What is written to, flat; it has half as many channels as there are sums.
    """

    def __init__(self, cpu: Cpu, form: Halves, extras: Extras, result: Buffer) -> None:
        self.cpu, self.form, self._extras, self._result = cpu, form, extras, result

    def write(self, tile: TileSums, starts: Sequence[Prim], channel: Prim, tail: int) -> None:
        """Writes a tile.

        Args:
            tile: The tile; it has an even number of blocks.
            starts: Where the sums of every pixel would begin, at the tile's first channel.
            channel: The tile's first channel of sums.
            tail: Channels of the tile's last block: all.
        """
        lanes = self.cpu.lanes
        assert tile.blocks % 2 == 0 and tail == lanes
        for pixel, start in enumerate(starts):
            for pair in range(tile.blocks // 2):
                low, high = (tile.sums(pixel, 2 * pair + i) for i in (0, 1))
                codes = self._codes(low, high, channel // 2 + pair * lanes)
                store(self._result, start // 2 + pair * lanes, codes, lanes)

    def _codes(self, low: Prim, high: Prim, channel: Prim) -> Prim:
        form, lanes, extras = self.form, self.cpu.lanes, self._extras
        kind = typed(form.offsets, lanes)
        whole = high.astype(kind) * number(256, form.offsets, lanes) + low.astype(kind)
        real = floats(bound(whole + load(extras.factors, channel, lanes)), lanes)
        rounded = nearest(real * load(extras.multiplier, channel, lanes), lanes)
        zero_point, least, most = (splat(extras.numbers[i], lanes) for i in range(3))
        codes = narrowed(bound(rounded + zero_point), form.dtype, lanes)
        if not form.clamped:
            return codes
        own = typed(form.dtype, lanes)
        return tirx.max(tirx.min(codes, most.astype(own)), least.astype(own))
