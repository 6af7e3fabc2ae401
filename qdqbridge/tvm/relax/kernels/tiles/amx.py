"""Tiles of AMX: sums of products of up to 16 pixels with 16 output channels, 64 products deep.

A CPU with Advanced Matrix Extensions has eight registers of up to 16 rows of 64 bytes. One
instruction adds to a register of int32 sums, a row per pixel and a column per output channel, the
products of one of activations (a row per pixel, up to 64 consecutive bytes) and one of weights,
which lie in memory as vectors want them: a row per step, ``[lane][4]``. It does on its own what 256
vector instructions do, in 16 cycles instead of 128. How many rows and bytes the registers have is
told once, before they are used (Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 1, chapter 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, load, store
from qdqbridge.tvm.relax.kernels.codegen.script import T

ROWS, LANES, STEPS = 16, 16, 16
"""Rows of a register, its columns of int32, and the steps of four products that one has at most."""
_BYTES = 64
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
        sums = [(height, _BYTES) for height in self.heights for _ in range(self.blocks)]
        activations = [(height, 4 * self.steps) for height in self.heights]
        return [*sums, *activations, *[(self.steps, _BYTES)] * self.blocks]


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
            instruction("tileloadd64", register(shape.weights(block)), at, stride(_BYTES))
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
            instruction("tilestored64", register(sums), start, stride(_BYTES))

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
