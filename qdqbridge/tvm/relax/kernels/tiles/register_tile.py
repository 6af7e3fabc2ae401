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
from qdqbridge.tvm.relax.kernels.codegen.loops import halves
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
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


@dataclass(frozen=True, slots=True)
class StepPart:
    """Steps of every run: ``many`` times ``size`` of them, from ``first`` on."""

    first: int
    many: int
    size: int


def steps_in_turns(cpu: Cpu, steps: int) -> list[StepPart]:
    """Returns the steps of a run in turns of as many steps as a CPU wants, the rest in fewer."""
    found: list[StepPart] = []
    first = 0
    for size in halves(cpu.steps_in_turn):
        many = (steps - first) // size
        if many:
            found.append(StepPart(first, many, size))
        first += many * size
    return found


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


# ---- amx -----------------------------------------------------------------------------------------
# Tiles of AMX: sums of products of up to 16 pixels with 16 output channels, 64 products deep.
#
# A CPU with Advanced Matrix Extensions has eight registers of up to 16 rows of 64 bytes. One
# instruction adds to a register of int32 sums, a row per pixel and a column per output channel, the
# products of one of activations (a row per pixel, up to 64 consecutive bytes) and one of weights,
# which lie in memory as vectors want them: a row per step, ``[lane][4]``. It does on its own what
# 256 vector instructions do, in 16 cycles instead of 128. How many rows and bytes the registers
# have is told once, before they are used (Intel 64 and IA-32 Architectures Software Developer's
# Manual, volume 1, chapter 18).


ROWS, LANES, STEPS = 16, 16, 16
"""Rows of a register, its columns of int32, and the steps of four products that one has at most."""
_AMX_BYTES = 64
"""Bytes of a row."""
_REGISTERS = 8


def steps_at_once(steps: int) -> int | None:
    """Returns how many steps of a run are multiplied at once, a part of it; None for too few."""
    if steps <= STEPS:
        return steps
    return next((n for n in range(STEPS, STEPS // 2 - 1, -1) if steps % n == 0), None)


def most_rows(blocks: int) -> int:
    """Returns how many registers of activations go with as many as two blocks of channels."""
    return 2 if blocks > 1 else 3


@dataclass(frozen=True, slots=True)
class AmxShape:
    """How registers are divided up.

    Attributes:
        heights: Pixels of every register of activations.
        blocks: Blocks of output channels, at most.
        steps: Steps that are multiplied at once.
    """

    heights: tuple[int, ...]
    blocks: int
    steps: int

    def sums(self, row: int, block: int) -> int:
        """Returns the register of the sums of some pixels and a block."""
        return row * self.blocks + block

    def activations(self, row: int) -> int:
        """Returns the register of the activations of some pixels."""
        return len(self.heights) * self.blocks + row

    def weights(self, block: int) -> int:
        """Returns the register of the weights of a block."""
        return len(self.heights) * (self.blocks + 1) + block

    @property
    def registers(self) -> list[tuple[int, int]]:
        """Rows, and bytes of a row, of every register."""
        sums = [(height, _AMX_BYTES) for height in self.heights for _ in range(self.blocks)]
        activations = [(height, 4 * self.steps) for height in self.heights]
        return [*sums, *activations, *[(self.steps, _AMX_BYTES)] * self.blocks]


def configure(registers: Sequence[tuple[int, int]]) -> None:
    """Tells the thread that runs how large its registers are; their contents are lost.

    Args:
        registers: Rows, and bytes of a row, of each.
    """
    palette = bytearray(64)
    palette[0] = 1
    for index, (rows, size) in enumerate(registers):
        palette[16 + 2 * index] = size
        palette[48 + index] = rows
    held = T.alloc_buffer((8,), "int64")
    for word in range(8):
        number = int.from_bytes(palette[8 * word : 8 * word + 8], "little")
        store(held, word, tirx.const(number, "int64"), 1)
    instruction("ldtilecfg", address(held, 0))


def release() -> None:
    """Frees the registers: a thread that holds some is slower to switch to and from."""
    instruction("tilerelease")


def room(shape: AmxShape) -> Buffer:
    """Returns memory for the sums of a tile."""
    extent: Any = (len(shape.heights) * shape.blocks * ROWS * LANES,)
    return T.alloc_buffer(extent, "int32")


class AmxTile:
    """The sums of one tile, in registers of AMX until they are finished.

    Args:
        shape: How registers are divided up.
        blocks: Blocks of output channels that this tile has.
        room: Memory for finished sums, see :func:`room`.
    """

    def __init__(self, shape: AmxShape, blocks: int, room: Buffer) -> None:
        self.shape, self.blocks, self._room = shape, blocks, room
        heights = shape.heights
        self._places = [(row, i) for row, height in enumerate(heights) for i in range(height)]
        self._used = [(row, block) for row in range(len(heights)) for block in range(blocks)]
        self.pixels = len(self._places)

    def begin(self, bias: Buffer, channel: Prim) -> None:
        """Sets the sums to the bias of their channels, the first being ``channel``."""
        for row, block in self._used:
            start = address(bias, channel + block * LANES)
            instruction("tileloadd64", register(self.shape.sums(row, block)), start, stride(0))

    def step(
        self, source: Buffer, starts: Sequence[Prim], pitch: Prim, weights: Buffer,
        packed: Sequence[Prim],
    ) -> None:  # fmt: skip
        """Adds the products of some steps.

        Args:
            source: Activations, uint8.
            starts: Where those of the first pixel of every register begin.
            pitch: Elements from one pixel to the next.
            weights: Packed weights, int8.
            packed: Where those of every block begin.
        """
        shape = self.shape
        for block, start in enumerate(packed):
            at = address(weights, start)
            instruction("tileloadd64", register(shape.weights(block)), at, stride(_AMX_BYTES))
        for row, start in enumerate(starts):
            own = register(shape.activations(row))
            instruction("tileloadd64", own, address(source, start), stride(pitch))
            for block in range(self.blocks):
                sums, others = shape.sums(row, block), shape.weights(block)
                instruction("tdpbusd", register(sums), own, register(others))

    def finish(self) -> None:
        """Stores the sums, so that vectors can be made of them."""
        for row, block in self._used:
            sums = self.shape.sums(row, block)
            start = address(self._room, sums * (ROWS * LANES))
            instruction("tilestored64", register(sums), start, stride(_AMX_BYTES))

    def sums(self, pixel: int, block: int) -> Prim:
        """Returns the finished sums of a pixel and a block of channels."""
        row, place = self._places[pixel]
        first = self.shape.sums(row, block) * (ROWS * LANES)
        return load(self._room, first + place * LANES, LANES)


def instruction(name: str, *arguments: Prim) -> None:
    """Emits an instruction of AMX."""
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def register(index: int) -> Prim:
    """Returns a register as an operand."""
    assert index < _REGISTERS
    return tirx.const(index, "uint8")


def stride(size: Prim) -> Prim:
    """Returns the bytes from one row of a register to the next, in memory."""
    return tirx.const(size, "int64") if isinstance(size, int) else size.astype("int64")


def address(buffer: Buffer, index: Prim) -> Prim:
    """Returns where an element of a buffer is."""
    return tirx.address_of(tirx.BufferLoad(buffer, [index]))
