"""The register tile: sums of products of some pixels with some blocks of output channels.

A tile holds ``pixels x blocks`` accumulators, each a vector register with one output channel per
lane. One step reads ``depth`` consecutive activations of every pixel, spread over all lanes, and
one vector of weights per block, packed ``[lane][depth]``. With 14 x 2 accumulators of AVX-512 a
step is 28 dot products on 16 loads, which two execution ports and two load ports take 14 cycles
for: the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fused,
    load,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T


@dataclass(frozen=True, slots=True)
class Parts:
    """An extent in ``wide`` parts of ``size`` and then ``narrow`` parts of ``size - 1``."""

    size: int
    wide: int
    narrow: int

    def pieces(self) -> list[tuple[int, int, int]]:
        """Returns (first element, parts, size of a part) of the wide and of the narrow parts."""
        both = [(0, self.wide, self.size), (self.wide * self.size, self.narrow, self.size - 1)]
        return [piece for piece in both if piece[1]]


def parts(extent: int, most: int) -> Parts:
    """Returns an extent in as few parts of at most ``most`` as possible, as even as possible."""
    count = -(-extent // most)
    size = -(-extent // count)
    narrow = count * size - extent
    return Parts(size, count - narrow, narrow)


def most_pixels(cpu: Cpu, blocks: int) -> int:
    """Returns how many pixels a tile with so many blocks of channels can have.

    It has two blocks, or four where pixels, too, keep a register each.
    """
    if cpu.steps_held > 1:
        return (cpu.registers - _PASSING) // (min(blocks, 4) + 1)
    width = min(blocks, 2)
    return (cpu.registers - 1 - width) // width


def blocks_of(cpu: Cpu, pixels: int, blocks: int) -> int:
    """Returns with how many blocks a tile of ``pixels`` keeps the multipliers busy.

    A number that divides ``blocks`` is preferred, if it leaves enough independent sums to hide
    the latency of the dot product. A tile of one pixel waits for its weights, which it alone reads:
    they come faster in few streams.
    """
    if pixels == 1:
        return min(blocks, _STREAMS)
    if cpu.steps_held > 1:
        most = (cpu.registers - _PASSING - pixels) // pixels
    else:
        most = (cpu.registers - 1) // (pixels + 1)
    most = min(blocks, max(1, most))
    for count in range(most, 0, -1):
        if blocks % count == 0 and pixels * count >= _INDEPENDENT:
            return count
    return most


def channel_pieces(channels: int, lanes: int, blocks: int) -> list[tuple[int, int, int, int]]:
    """Returns how output channels are shared out to tiles of as many as ``blocks`` blocks.

    Returns:
        (first tile, tiles, blocks of a tile, channels of its last block); the last tile stands
        alone where it is smaller.
    """
    whole = -(-channels // lanes)
    tiles = -(-whole // blocks)
    last, tail = whole - (tiles - 1) * blocks, channels - (whole - 1) * lanes
    regular = tiles if (last, tail) == (blocks, lanes) else tiles - 1
    pieces = [(0, regular, blocks, lanes), (regular, tiles - regular, last, tail)]
    return [piece for piece in pieces if piece[1]]


_STREAMS = 4
"""Blocks of columns of one pixel: of products of 768 or 3072 with 768, 6 to 18 % faster than 12."""
_INDEPENDENT = 10
"""Latency (5 cycles) times throughput (2 per cycle) of a dot product."""
_PASSING = 4
"""Registers of weights where pixels have one each; of fewer, LLVM 22 moves sums to memory."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Element types of a product.

    Attributes:
        source: Activations, as tiles read them.
        weight: Packed weights.
        sum: Sums.
        depth: Products that one lane of a step sums.
    """

    source: str
    weight: str
    sum: str
    depth: int

    @property
    def bytes(self) -> int:
        """Bytes of an activation."""
        return _BYTES[self.source]

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight."""
        return _BYTES[self.weight]


_BYTES = {"uint8": 1, "int8": 1, "int16": 2, "float32": 4}


def elements_of(cpu: Cpu, *, floats: bool) -> Elements:
    """Returns the element types of products of float32, or of codes of 8 bits."""
    if floats:
        return Elements("float32", "float32", "float32", 1)
    return Elements(cpu.dot.source, cpu.dot.weight, "int32", cpu.depth)


class TileSums(Protocol):
    """What is written of a tile: the sums of its pixels and blocks of output channels."""

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        ...

    @property
    def blocks(self) -> int:
        """Number of blocks of output channels."""
        ...

    def sums(self, pixel: int, block: int) -> Prim:
        """Returns the sums of a pixel and a block of channels, one register."""
        ...


class Tile:
    """The accumulators of one tile, and the code that fills them.

    Args:
        cpu: The CPU.
        pixels: Number of pixels.
        blocks: Number of blocks of output channels.
        elements: Element types; those of codes by default.
    """

    def __init__(
        self, cpu: Cpu, pixels: int, blocks: int, elements: Elements | None = None
    ) -> None:
        self.cpu, self.pixels, self.blocks = cpu, pixels, blocks
        self.elements = elements or elements_of(cpu, floats=False)
        shape: Any = (cpu.lanes,)
        # TVM takes small buffers of the global scope from the stack, others from a pool.
        self._sums = [
            [T.alloc_buffer(shape, self.elements.sum) for _ in range(blocks)] for _ in range(pixels)
        ]

    def begin(self, bias: Buffer, channel: Prim, offsets: Sequence[Prim] = ()) -> None:
        """Sets the accumulators to the bias of their channels, the first being ``channel``.

        Args:
            bias: One entry per channel, of the type of the sums.
            channel: The first channel.
            offsets: What is added to all sums of a pixel; nothing where there are none.
        """
        lanes = self.cpu.lanes
        for pixel, row in enumerate(self._sums):
            for block, sums in enumerate(row):
                start = load(bias, channel + block * lanes, lanes)
                start = start + splat(offsets[pixel], lanes) if offsets else start
                store(sums, 0, start, lanes)

    def put(self, pixel: int, block: int, value: Prim) -> None:
        """Sets one accumulator."""
        store(self._sums[pixel][block], 0, value, self.cpu.lanes)

    def step(
        self, source: Buffer, starts: Sequence[Prim], weights: Sequence[Sequence[Prim]]
    ) -> None:
        """Adds the products of one step, or of as many as a register has the activations of.

        Args:
            source: Activations, as codes of uint8 or as the products take them.
            starts: Where the activations of every pixel begin.
            weights: One register for every block, of every step.
        """
        lanes = self.cpu.lanes
        held = [self._held(source, start, len(weights)) for start in starts]
        for own, vectors in enumerate(weights):
            for pixel, row in zip(held, self._sums, strict=True):
                for vector, sums in zip(vectors, row, strict=True):
                    store(sums, 0, self._added(load(sums, 0, lanes), pixel[own], vector), lanes)

    def _held(self, source: Buffer, start: Prim, steps: int) -> list[Prim]:
        """Returns the activations of a pixel for every step, in all lanes."""
        lanes, kinds = self.cpu.lanes, self.elements
        count = steps * kinds.depth
        activations = load(source, start, count)
        if str(source.dtype) != kinds.source:
            activations = self.cpu.dot.taken(activations, count)
        words = activations
        if kinds.depth > 1:
            words = tirx.reinterpret(typed("int32", steps), activations)
        if steps == 1:
            return [splat(words, lanes)]
        words = bound(words)
        if steps < lanes:  # a shuffle of TIR has no more lanes than what it takes
            return [splat(tirx.Shuffle([words], [step]), lanes) for step in range(steps)]
        return [tirx.Shuffle([words], [step] * lanes) for step in range(steps)]

    def _added(self, sums: Prim, activations: Prim, weights: Prim) -> Prim:
        if self.elements.sum == "int32":
            return self.cpu.dot.added(sums, activations, weights)
        if self.cpu.fuses:
            return fused(activations, weights, sums)
        return sums + activations * weights

    def sums(self, pixel: int, block: int) -> Prim:
        """Returns the accumulator of a pixel and a block of channels."""
        return load(self._sums[pixel][block], 0, self.cpu.lanes)
