"""The description of a direct convolution, and the numbers that follow from it.

The activations under one row of the kernel lie side by side, all channels of all its columns, so
they are one *run* of steps. That serves few input channels as well as many: 7 columns of 3
channels are 21 elements in a row. A kernel that is dilated or grouped has a run for every one of
its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qdqbridge.core.ops.shapes import covered
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    LINE,
    Buffer,
    Prim,
    each_piece,
    less_128,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    ROWS,
    AmxShape,
    Elements,
    Parts,
    blocks_of,
    elements_of,
    most_pixels,
    most_rows,
    parts,
    steps_at_once,
)

# ---- Copies of activations that the register tile can read without looking at borders ------------
# Where an image is padded, stored as int8, or where the CPU multiplies 16-bit integers, the rows
# that a task needs are copied first: with the zero point around them, as uint8 or widened.


SLACK = 64
"""Elements behind a copy that may be read, though only zeros of the weights meet them."""
_LANES = 64


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One copied row, in elements: padding, what is copied, padding.

    Attributes:
        before: Elements before it.
        copied: Elements that are copied.
        after: Elements behind it.
    """

    before: int
    copied: int
    after: int

    @property
    def length(self) -> int:
        """Elements of the row."""
        return self.before + self.copied + self.after


@dataclass(frozen=True, slots=True)
class Staging:
    """What is copied, and how.

    Attributes:
        dtype: Element type of the copy: ``uint8``, ``int16``, or ``int8`` for codes less 128.
        signed: True where the source holds int8 codes, whose zero points count 128 less.
        paired: True where two bytes are a code, and the zero point has both.
    """

    row: StagedRow
    dtype: str
    signed: bool
    paired: bool = False

    def room(self, rows: int) -> Buffer:
        """Returns memory for that many rows."""
        shape: Any = (rows * self.row.length + SLACK,)
        return T.alloc_buffer(shape, self.dtype)

    def copy(self, source: Buffer, start: Prim, target: Buffer, at: Prim, code: Prim) -> None:
        """Copies one row of ``source`` from ``start`` on to ``at`` in ``target``."""
        row = self.row
        self._fill(target, at, row.before, code)
        middle = at + row.before

        def piece(offset: Prim, lanes: int) -> None:
            value = self._carried(load(source, start + offset, lanes), lanes)
            store(target, middle + offset, value, lanes)

        each_piece(row.copied, _LANES, piece)
        self._fill(target, middle + row.copied, row.after, code)

    def blank(self, target: Buffer, at: Prim, code: Prim) -> None:
        """Fills a row with the zero point."""
        self._fill(target, at, self.row.length, code)

    def _carried(self, value: Prim, lanes: int) -> Prim:
        if self.dtype == "int8":
            return value if self.signed else less_128(value, lanes)
        if self.signed:
            unsigned = tirx.reinterpret(typed("uint8", lanes), value)
            # The highest bit turned: int8 around 0 is uint8 around 128.
            value = tirx.bitwise_xor(unsigned, number(128, "uint8", lanes))
        return value if self.dtype == "uint8" else value.astype(typed(self.dtype, lanes))

    def _everywhere(self, code: Prim, lanes: int) -> Prim:
        """Returns the zero point in every lane; its bytes in turn where they are a pair."""
        if not self.paired:
            code = code - 128 if self.dtype == "int8" else code
            return splat(code.astype(self.dtype), lanes)
        pair = splat(code.astype("uint16"), lanes // 2)
        codes = tirx.reinterpret(typed("uint8", lanes), pair)
        if self.dtype == "int8":
            return less_128(codes, lanes)
        return codes.astype(typed(self.dtype, lanes))

    def _fill(self, target: Buffer, at: Prim, count: int, code: Prim) -> None:
        def piece(offset: Prim, lanes: int) -> None:
            store(target, at + offset, self._everywhere(code, lanes), lanes)

        each_piece(count, _LANES, piece)


def stage_rows(
    staging: Staging,
    source: Buffer,
    target: Buffer,
    code: Prim,
    rows: Prim,
    first: Prim,
    image: Prim,
    extent: int,
    pitch: int,
    *,
    inside: bool,
) -> None:
    """Copies rows ``first .. first + rows`` of an image, those outside of it being blank.

    Args:
        staging: How.
        source: The images, flat.
        target: The copy, flat.
        code: The zero point, as it is stored.
        rows: Number of rows.
        first: The first of them; negative above the image.
        image: Where the image begins in ``source``.
        extent: Rows of the image.
        pitch: Elements of a row of the image.
        inside: True where no row can lie outside.
    """
    with turns(rows) as r:
        row, at = first + r, r * staging.row.length
        if inside:
            staging.copy(source, image + row * pitch, target, at, code)
            return
        with T.If(tirx.all(row >= 0, row < extent)):
            with T.Then():
                staging.copy(source, image + row * pitch, target, at, code)
            with T.Else():
                staging.blank(target, at, code)


# ---- The description of a direct convolution, and the numbers that follow from it ----------------


Pair = tuple[int, int]
_AHEAD = 16
"""Tiles of an image up to which weights that come next are asked for; of more, few wait."""
_SHARING = (1, 2, 4)
"""How many steps may share a line that is asked for."""
_READERS = 3
"""Tiles that make codes of uint8 what the dot product takes as fast as a copy does."""
_PIXELS = 4
"""Pixels of a result from which on registers of AMX are worth their setting up."""
WINOGRAD = 4
"""Rows and columns of activations, and of what is multiplied, behind 2x2 results of 3x3 weights."""


@dataclass(frozen=True, slots=True)
class PixelPlacement:
    """Where pixels of a result lie, in pixels of its tensor.

    Attributes:
        row: From one row to the next.
        column: From one column to the next.
        image: From one image to the next.
    """

    first: int
    row: int
    column: int
    image: int


@dataclass(frozen=True)
class Direct:
    """A convolution of (batch, rows, columns, channels), the weight being packed.

    Attributes:
        operand: Shape of the activations as their tensor has it; None for an open first extent.
        outcome: Shape of the result as its tensor has it.
        batch: Images; None where that is known at run time only.
        image: Rows and columns of an image.
        channels: Input channels.
        signed: True where activations are int8 (at the interface of a model).
        kernel: Rows and columns of the kernel.
        begin: Rows above and columns left of an image.
        result: Rows and columns of the result.
        out_channels: Output channels.
        weights: Sums that make a weight, see :class:`~.packing.Packed`.
        form: How sums become codes or floats, or what is done with sums of floats.
        tasks: How many threads the work is to be spread over.
        placement: Where pixels are written to; None for one behind the other.
        open_rows: True of a product whose number of rows is known at run time only: an image is
            some of them, the last one what is left.
        repeats: How often every row and every column of an image comes in turn before the kernel
            sees it, which counts repeated ones; see :mod:`.repeated_loops`.
        winograd: True where it is computed with fewer products; see :mod:`.winograd`.
    """

    cpu: Cpu
    operand: tuple[int | None, ...]
    outcome: tuple[int | None, ...]
    batch: int | None
    image: Pair
    channels: int
    signed: bool
    kernel: Pair
    strides: Pair
    dilations: Pair
    begin: Pair
    result: Pair
    groups: int
    out_channels: int
    weights: int
    form: Requantize | Plain | Scaled | Halves
    tasks: int
    placement: PixelPlacement | None = None
    open_rows: bool = False
    repeats: Pair = (1, 1)
    winograd: bool = False

    # ---- elements -----------------------------------------------------------------------------

    @cached_property
    def floats(self) -> bool:
        """True where activations, weights and results are float32."""
        return isinstance(self.form, Plain)

    @cached_property
    def elements(self) -> Elements:
        """Element types of activations as tiles read them, of weights and of sums."""
        return elements_of(self.cpu, floats=self.floats)

    @cached_property
    def stored(self) -> str:
        """Element type of the activations' tensor."""
        return "float32" if self.floats else "int8" if self.signed else "uint8"

    @cached_property
    def paired(self) -> bool:
        """True where two bytes are an activation, and two blocks of sums a block of results."""
        return isinstance(self.form, Halves)

    # ---- runs ---------------------------------------------------------------------------------

    @cached_property
    def joined(self) -> bool:
        """True where a row of the kernel is one run."""
        side_by_side = self.dilations[1] == 1 and self.repeats == (1, 1)
        alike = self.groups == 1 and not self.winograd
        return alike and (side_by_side or self.kernel[1] == 1)

    @cached_property
    def runs(self) -> Pair:
        """Runs per kernel: rows, and columns of those."""
        if self.winograd:
            return WINOGRAD, WINOGRAD
        return self.kernel[0], 1 if self.joined else self.kernel[1]

    @cached_property
    def run(self) -> int:
        """Elements of a run."""
        return self.channels // self.groups * (self.kernel[1] if self.joined else 1)

    @cached_property
    def steps(self) -> int:
        """Steps of a run."""
        return -(-self.run // self.elements.depth)

    # ---- staging ------------------------------------------------------------------------------

    @cached_property
    def reach(self) -> Pair:
        """Rows and columns that the whole result looks at, padding included."""
        spans = zip(self.result, self.strides, self.kernel, self.dilations, strict=True)
        rows, columns = (covered(n, s, k, d) for n, s, k, d in spans)
        return rows, columns

    @cached_property
    def inside(self) -> Pair:
        """Whether all rows, and all columns, lie in the image."""
        rows, columns = (
            b == 0 and r <= n for b, r, n in zip(self.begin, self.reach, self.image, strict=True)
        )
        return rows, columns

    @cached_property
    def staged(self) -> bool:
        """True where rows are copied before they are used."""
        kind = self.elements.source
        ready = kind == self.stored or (kind == "int8" and self._tiles_of_channels <= _READERS)
        return not (ready and self.run % self.elements.depth == 0 and all(self.inside))

    @cached_property
    def _tiles_of_channels(self) -> int:
        """About how many tiles read what a pixel has."""
        return -(-self.blocks // 4)

    @cached_property
    def staging(self) -> Staging:
        """How rows are copied."""
        before = self.begin[1]
        # With strides the last columns of an image may be seen by no window.
        copied = min(self.image[1], self.reach[1] - before)
        row = [n * self.channels for n in (before, copied, self.reach[1] - before - copied)]
        return Staging(StagedRow(*row), self.elements.source, self.signed, self.paired)

    @cached_property
    def pitch(self) -> int:
        """Elements from one row of what the tile reads to the next."""
        return self.staging.row.length if self.staged else self.image[1] * self.channels

    # ---- AMX ----------------------------------------------------------------------------------

    @cached_property
    def amx(self) -> AmxShape | None:
        """How registers of AMX are divided up for tiles of this result; None for tiles of vectors.

        Few pixels are left to vectors, which wait for the weights as long.
        """
        steps = steps_at_once(self.steps)
        if not self.cpu.amx or self.floats or steps is None:
            return None
        if self.result[0] * self.result[1] < _PIXELS:
            return None
        most, blocks = most_rows(self.blocks), min(self.blocks, 2)
        if self.result[1] == 1:
            count = parts(min(self.result[0], ROWS * most), ROWS)
        elif self.result[1] <= ROWS:
            shared = self.tasks > 1 and self.blocks <= blocks
            count = Parts(self.result[1], 1 if shared else min(most, self.result[0]), 0)
        else:
            columns = parts(self.result[1], ROWS * most).size
            count = parts(columns, ROWS)
        heights = (count.size,) * count.wide + (count.size - 1,) * count.narrow
        return AmxShape(heights, blocks, steps)

    # ---- work ---------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> int:
        """Blocks of output channels in a group."""
        return -(-self.group_channels // self.cpu.lanes)

    @cached_property
    def pixels(self) -> int:
        """Pixels of an image that the weights are multiplied with."""
        rows, columns = self.result
        return rows // self.repeats[0] * (columns // self.repeats[1])

    @cached_property
    def counted(self) -> int:
        """Pixels of all images for counting operations: open numbers of them count as 1."""
        return (1 if self.open_rows else self.pixels) * (self.batch or 1)

    @cached_property
    def lanes(self) -> int:
        """Entries of the bias: one for every lane of every block."""
        return self.groups * self.blocks * self.cpu.lanes

    @cached_property
    def group_channels(self) -> int:
        """Output channels of a group."""
        return self.out_channels // self.groups

    @cached_property
    def tile_rows(self) -> int:
        """Rows of a tile: several where the result has few columns."""
        if self.amx is not None:
            pixels = sum(self.amx.heights)
            return max(1, min(self.result[0], pixels // self.result[1]))
        most = most_pixels(self.cpu, self.blocks)
        return max(1, min(self.result[0], most // self.result[1]))

    @cached_property
    def row_parts(self) -> Parts:
        """The rows of the result in those of tiles."""
        return parts(self.result[0], self.tile_rows)

    @cached_property
    def column_parts(self) -> Parts:
        """The columns of the result in those of tiles."""
        return parts(self.result[1], most_pixels(self.cpu, self.blocks))

    @cached_property
    def tile_blocks(self) -> int:
        """Blocks of output channels of a tile."""
        if self.amx is not None:
            return self.amx.blocks
        pixels = self.tile_rows * self.column_parts.size
        if self.paired:
            return 2 * blocks_of(self.cpu, 2 * pixels + 1, self.blocks // 2)
        return blocks_of(self.cpu, pixels, self.blocks)

    @cached_property
    def side_by_side(self) -> int:
        """Blocks of output channels whose weights of one step lie side by side.

        Those of a tile where pixels have a register each: one instruction loads two of weights.
        """
        codes = self.elements.sum == "int32" and self.cpu.bytes_in
        if self.cpu.steps_held == 1 or not codes or self.paired or self.repeats != (1, 1):
            return 1
        return self.tile_blocks

    @cached_property
    def asked_steps(self) -> int:
        """Steps for which a tile asks memory for a vector of the weights that come next; 0: none.

        Of few pixels, the first tile of some channels would wait for each line of their weights.
        Where a vector is less than a line this is not tried.
        """
        if self.groups > 1 or self.channel_units == 1:  # no channels come next
            return 0
        vector = self.cpu.lanes * self.elements.depth * self.elements.weight_bytes
        if self.open_rows or self.amx is not None or self.cpu.reads_ahead or vector != LINE:
            return 0
        if not 1 < self.pixel_tiles <= _AHEAD:
            return 0
        most = max(1, self.pixel_tiles // self.tile_blocks)
        return max(steps for steps in _SHARING if steps <= most and self.steps % steps == 0)

    @cached_property
    def pixel_tiles(self) -> int:
        """Tiles of pixels of a share of the rows."""
        rows, columns = self.row_parts, self.column_parts
        down = self.result[0] // self.row_shares if self.tile_rows == 1 else rows.wide + rows.narrow
        return down * (columns.wide + columns.narrow)

    @cached_property
    def place(self) -> PixelPlacement:
        """Where pixels are written to."""
        rows, columns = self.result
        return self.placement or PixelPlacement(0, columns, 1, rows * columns)

    @cached_property
    def row_shares(self) -> int:
        """Shares of the rows, each of which is staged alone."""
        if self.tile_rows > 1:
            return 1
        room = self.reach[0] * self.pitch * self.elements.bytes if self.staged else 0
        wanted = -(-room // self.cpu.room)
        if self.tasks > 1 and (self.result[0] >= 8 * self.tasks or self.channel_units == 1):
            # As many for each thread: one more would let all others wait.
            wanted = -(-max(wanted, 1) // self.tasks) * self.tasks
        return max(1, min(wanted, self.result[0]))

    @cached_property
    def channel_units(self) -> int:
        """What output channels can be shared out by: groups, or tiles of channels."""
        return self.groups if self.groups > 1 else -(-self.blocks // self.tile_blocks)

    @cached_property
    def channel_shares(self) -> int:
        """Shares of the output channels."""
        return min(self.tasks, self.channel_units) if self.row_shares < self.tasks else 1
