"""What a product with codes of weights is: its shapes, its digits, and where a part of it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qdqbridge.tvm.relax.kernels.codegen.lanes import LINE, Prim
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.kernel import Open
from qdqbridge.tvm.relax.kernels.tiles.register_tile import ROWS

NIBBLE, DIGIT = 4, 8
"""Bits of a packed code, and of a digit of an activation."""
NIBBLES = 0x0F0F0F0F
"""The lower codes of four bytes."""
CHUNK = 32
"""Products whose codes are in registers at a time, at most."""
STREAMS = 4
"""Pairs of blocks that one row meets in turn where memory is asked for."""
AMX_ROWS = 8 * ROWS
"""Rows of an open number that are worked on at a time with AMX."""
_ROWS = 132
"""The same otherwise: a prompt of 128 rows at once, and rows of tall tiles (6) and others (4)."""
FEW = 8
"""Rows up to which a weight is read from end to end, and every thread makes the digits itself."""


def half_unit(digits: int) -> float:
    """Returns the root of what the lowest of some digits counts in units of the highest one.

    The scales of activations and of weights take half of it each, so that neither an activation of
    2 ** -110 nor one of 2 ** 103 leaves float32 on the way, with 8 bits in blocks of 256 either.
    """
    return 2.0 ** (-DIGIT * (digits - 1) / 2)


@dataclass(frozen=True, slots=True)
class CodesProduct:
    """A product of rows of float32 with a matrix of codes.

    Attributes:
        operand: Shape of the activations; None for open extents.
        outcome: Shape of the result.
        units: Columns of the result.
        bits: Bits of a code, 4 or 8.
        size: Products that share a scale of the weight.
        step: Products that share a scale of the activation.
        digits: Digits of an activation, 1 or 3.
        centre: The zero point of all blocks; None where they have their own.
        asks: Whether all that meets one row is asked for before it is used, or one line of a chunk.
        tasks: How many threads the columns are shared out to.
    """

    cpu: Cpu
    operand: Open
    outcome: Open
    units: int
    bits: int
    size: int
    step: int
    digits: int
    centre: int | None
    asks: bool
    tasks: int

    @property
    def streams(self) -> int:
        """Pairs of blocks that one row meets in turn where memory is asked for."""
        return STREAMS if self.asks else 1

    @property
    def inner(self) -> int:
        """Products of a sum."""
        assert self.operand[-1] is not None
        return self.operand[-1]

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.units // self.cpu.lanes)

    @property
    def pairs(self) -> int:
        """Pairs of blocks: what a row meets of both lies side by side, a stream of memory."""
        return -(-self.blocks // 2)

    @property
    def groups(self) -> int:
        """Groups of products of a sum that share a scale of the weight."""
        return self.inner // self.size

    @property
    def group_codes(self) -> int:
        """Registers of codes of a group in a block of columns."""
        return self.size * self.bits // 32

    @property
    def group_registers(self) -> int:
        """Registers of a group of a pair: codes, of both blocks in turn, and the scales of both.

        Each pair is read from one end to the other, line after line: a second stream of scales
        took a tenth of the memory's speed, lines out of turn a fourth (Zen 4).
        """
        return 2 * self.group_codes + 2

    def group_start(self, pair: Prim, group: Prim) -> Prim:
        """Returns the first byte of a group of a pair of blocks."""
        return (pair * self.groups + group) * (self.group_registers * self.register)

    @property
    def joint_digits(self) -> tuple[tuple[int, ...], ...]:
        """Digits whose sums are one integer: three, times codes beyond -8 .. 8, do not fit."""
        if self.digits == 1:
            return ((0,),)
        small = self.bits == NIBBLE and self.centre == 1 << (NIBBLE - 1)
        return ((0, 1, 2),) if small else ((0, 1), (2,))

    @property
    def begun_digits(self) -> tuple[tuple[int, ...], ...]:
        """Digits of which the zero point of the weight takes what they sum up to, as one integer.

        The highest one of those that are joint begins alone, and the others together: all sums on
        the way are then within int32.
        """
        cut = [(chain[:1], chain[1:]) for chain in self.joint_digits]
        return tuple(digits for pieces in cut for digits in pieces if digits)

    @property
    def amx(self) -> bool:
        """Whether many rows are multiplied by AMX."""
        known = [extent for extent in self.operand[:-1] if extent is not None]
        is_open = len(known) < len(self.operand) - 1
        return self.cpu.amx and (is_open or math.prod(known) >= ROWS)

    @property
    def at_once(self) -> int:
        """Rows of an open number that are worked on at a time."""
        return AMX_ROWS if self.amx else _ROWS

    @property
    def row_digits(self) -> int:
        """Bytes from the digits of one row to those of the next.

        Rows of one AMX register shall not all lie in the same few lines of the first-level cache.
        """
        return self.inner * self.digits + (LINE if self.amx else 0)

    def place_of_digits(self, row: Prim, part: Prim, digit: int = 0) -> Prim:
        """Returns where a digit of a part of a row begins."""
        return row * self.row_digits + (part * self.digits + digit) * self.step

    @property
    def parts(self) -> int:
        """Parts of a row that have a scale."""
        return self.inner // self.step

    @property
    def register(self) -> int:
        """Bytes of a register."""
        return 4 * self.cpu.lanes

    @property
    def chunk(self) -> int:
        """Products whose codes are in registers at a time."""
        return min(self.step, CHUNK)

    @property
    def loads(self) -> int:
        """Registers of packed codes that a chunk of a row meets in a block of columns."""
        return self.chunk * self.bits // 32
