"""Products of two activations, many at once: both operands are bytes that are known at run time.

``sum((a - za) (b - zb))`` is the plain sum of products, minus ``za`` times the sums of the columns
of b, minus ``zb`` times the sums of the rows of a, plus ``K za zb``. The second operand is packed
first, as weights are; the sums of its columns become the bias of the tiles, those of the rows of
the first operand are added to their pixels. CPUs that multiply 16-bit integers centre both
operands while they copy them. Strides are free, so transposes in front of and behind the product
are part of it. Extents that only the run knows, and strides that follow from these, are expressions
of the extents of the tensors; sums of integers have no order, so that results are those of known
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqbridge.core.graph.types import Dim
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    flat,
    load,
    number,
    splat,
    store,
    summed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import ceiling, overlapping, total_of, turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import (
    Plain,
    PlainWriter,
    Scaled,
    ScaledWriter,
)
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Extras, Requantize, Writer
from qdqbridge.tvm.relax.kernels.kernel import Stride
from qdqbridge.tvm.relax.kernels.tiles.packing import Panel, pack_panel, stage_matrix
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    Elements,
    Tile,
    blocks_of,
    channel_pieces,
    elements_of,
    most_pixels,
    parts,
)

NUMBERS = 6
"""Entries of ``numbers``: zero point, smallest and largest code of the result; the zero points of
both operands, the second one less 128 where bytes are multiplied; the product of both."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices in a tensor.

    Attributes:
        shape: Extents of the tensor; open ones by name.
        batches: Stride of every batch axis; 0 where the matrix is the same for all.
        row: Elements from one row to the next.
        column: Elements from one column to the next.
        signed: True where int8 is stored.
    """

    shape: tuple[Dim, ...]
    batches: tuple[Stride, ...]
    row: Stride
    column: Stride
    signed: bool

    @property
    def dtype(self) -> str:
        """The element type of codes."""
        return "int8" if self.signed else "uint8"


@dataclass(frozen=True, slots=True)
class Batched:
    """A product of (rows, inner) and (inner, columns) for every batch.

    Attributes:
        a: The first operand.
        b: The second operand.
        y: The result, whose columns lie side by side.
        batches: Extents of the batch axes.
        rows: Rows of the result.
        inner: Products of a sum.
        columns: Columns of the result.
        shifted: Whether the first operand has a zero point, and the second.
        form: How sums become codes or floats, or what is done with sums of floats.
        parallel: True to spread the batches over threads.
    """

    cpu: Cpu
    a: Matrices
    b: Matrices
    y: Matrices
    batches: tuple[Dim, ...]
    rows: Dim
    inner: Dim
    columns: Dim
    shifted: tuple[bool, bool]
    form: Requantize | Plain | Scaled
    parallel: bool

    @property
    def floats(self) -> bool:
        """True where both operands and the result are float32."""
        return isinstance(self.form, Plain)

    @property
    def elements(self) -> Elements:
        """Element types."""
        return elements_of(self.cpu, floats=self.floats)

    @property
    def staged(self) -> bool:
        """True where the rows of the first operand are copied before they are used."""
        stored = "float32" if self.floats else self.a.dtype
        depth = self.elements.depth
        whole = depth == 1 or (isinstance(self.inner, int) and self.inner % depth == 0)
        kind = self.elements.source
        ready = stored == kind or (kind == "int8" and stored == "uint8")
        return not (ready and whole and self.a.column == 1)


def build_batched_matmul(description: Batched) -> Any:
    """Returns the PrimFunc ``(a, b, multiplier, numbers, y)``; of floats ``(a, b, y)``."""
    d = description

    def body() -> None:
        names: dict[str, Prim] = {}
        for extent in (*d.a.shape, *d.b.shape):
            if isinstance(extent, str) and extent not in names:
                names[extent] = tirx.Var(f"n{len(names)}", "int64")

        def argument(name: str, matrices: Matrices, dtype: str) -> Buffer:
            shape = [resolved(extent, names) for extent in matrices.shape]
            return T.arg(name, T.buffer(shape, dtype))

        a, b = (
            argument(name, matrices, "float32" if d.floats else matrices.dtype)
            for name, matrices in (("a", d.a), ("b", d.b))
        )
        extras = Extras()
        if not d.floats:
            multiplier = T.arg("multiplier", T.buffer((1,), "float32"))
            extras = Extras(multiplier, T.arg("numbers", T.buffer((NUMBERS,), "int32")))
        y = argument("y", d.y, d.form.dtype)
        with root():
            _Batched(d, [flat(buffer) for buffer in (a, b, y)], extras, names).write()

    return prim_func(body)


def resolved(stride: Stride | Dim, names: Mapping[str, Prim]) -> Prim:
    """Returns an extent, or a stride: a number, or an expression of the open extents."""
    if isinstance(stride, int):
        return stride
    factors = (stride,) if isinstance(stride, str) else stride
    return total_of([names[f] if isinstance(f, str) else f for f in factors])


@dataclass(frozen=True, slots=True, eq=False)
class _MatrixSteps:
    """Elements from one matrix, row and column of a tensor to the next."""

    batches: tuple[Prim, ...]
    row: Prim
    column: Prim

    @classmethod
    def of(cls, matrices: Matrices, names: Mapping[str, Prim]) -> _MatrixSteps:
        batches = tuple(resolved(stride, names) for stride in matrices.batches)
        return cls(batches, resolved(matrices.row, names), resolved(matrices.column, names))


class _Batched:
    def __init__(
        self, d: Batched, tensors: list[Buffer], extras: Extras, names: Mapping[str, Prim]
    ) -> None:
        none = tirx.const(0, "int32")
        self.d, self.numbers = d, [none] * NUMBERS if d.floats else extras.numbers
        self.a, self.b, self.y = tensors
        self.steps_of = [_MatrixSteps.of(matrices, names) for matrices in (d.a, d.b, d.y)]
        self.rows, self.inner, self.columns = (
            resolved(extent, names) for extent in (d.rows, d.inner, d.columns)
        )
        self.batches = [resolved(extent, names) for extent in d.batches]
        self.steps = ceiling(self.inner, d.elements.depth)
        self.blocks = ceiling(self.columns, d.cpu.lanes)
        self.extras = extras
        self.writer = self._writer(self.y)

    def _writer(self, result: Buffer) -> Writer | PlainWriter | ScaledWriter:
        d = self.d
        if isinstance(d.form, Plain):
            return PlainWriter(d.cpu, d.form, None, None, result)
        if isinstance(d.form, Scaled):
            return ScaledWriter(d.cpu, d.form, self.extras, result)
        return Writer(d.cpu, d.form, self.extras, result)

    def write(self) -> None:
        """Writes the loop over the batches."""
        with turns(total_of(self.batches), parallel=self.d.parallel) as batch:
            starts = self._starts(batch)
            packed, bias = self._second(starts[1])
            source, first, pitch = self._first(starts[0])
            offsets = self._offsets(source, first, pitch) if self._uneven else None
            operands = _Operands(source, first, pitch, packed, bias, offsets)
            if isinstance(self.rows, int) and isinstance(self.columns, int):
                self._tiles(operands, starts[2], self.rows, self.columns)
            else:
                self._open_tiles(operands, starts[2])

    @property
    def _uneven(self) -> bool:
        return self.d.elements.bytes == 1 and self.d.shifted[1]

    def _starts(self, batch: Prim) -> list[Prim]:
        """Returns where the matrices of a batch begin."""
        starts: list[Prim] = [tirx.const(0, "int32")] * 3
        for axis in range(len(self.batches) - 1, -1, -1):
            extent = self.batches[axis]
            index = batch if axis == 0 else batch % extent
            batch = batch if axis == 0 else batch // extent
            for i, steps in enumerate(self.steps_of):
                stride = steps.batches[axis]
                if not isinstance(stride, int) or stride:
                    starts[i] = starts[i] + index * stride
        return (
            starts if all(isinstance(e, int) for e in self.batches[1:]) else [*map(bound, starts)]
        )

    def _first(self, start: Prim) -> tuple[Buffer, Prim, Prim]:
        """Returns the rows as tiles read them: buffer, first element, elements of a row."""
        d, steps = self.d, self.steps_of[0]
        if not d.staged:
            return self.a, start, steps.row
        strides = steps.row, steps.column
        panel = Panel(d.cpu, self.rows, self.inner, strides, d.a.signed, d.elements)
        room = stage_matrix(panel, self.a, start, self.numbers[3])
        return room, tirx.const(0, "int32"), self.steps * d.elements.depth

    def _second(self, start: Prim) -> tuple[Buffer, Buffer]:
        """Packs the second operand; returns it, and the bias of its columns."""
        d, lanes, own = self.d, self.d.cpu.lanes, self.steps_of[1]
        strides = own.row, own.column
        panel = Panel(d.cpu, self.inner, self.columns, strides, d.b.signed, d.elements)
        packed = pack_panel(panel, self.b, start, self.numbers[4])
        bias = T.alloc_buffer((self.blocks * lanes,), d.elements.sum)
        with turns(self.blocks) as block:
            if not (d.elements.bytes == 1 and d.shifted[0]):
                store(bias, block * lanes, number(0, d.elements.sum, lanes), lanes)
                return packed, bias
            sums = T.alloc_buffer((lanes,), "int32")
            store(sums, 0, number(0, "int32", lanes), lanes)
            # A product with ones is a sum: the instruction that multiplies adds several rows at a
            # time.
            size, centre = lanes * d.elements.depth, d.cpu.dot.centre
            ones = d.cpu.dot.in_lanes(number(1, d.elements.source, size), lanes)
            with turns(self.steps) as k:
                weights = load(packed, (block * self.steps + k) * size, size)
                store(sums, 0, d.cpu.dot.added(load(sums, 0, lanes), ones, weights), lanes)
            shift = self.numbers[3] - centre if centre else self.numbers[3]
            shifted = splat(shift, lanes) * load(sums, 0, lanes)
            both = self.numbers[5] * self._count(self.inner)
            store(bias, block * lanes, splat(both, lanes) - shifted, lanes)
        return packed, bias

    @staticmethod
    def _count(extent: Prim) -> Prim:
        return extent if isinstance(extent, int) else extent.astype("int32")

    def _offsets(self, source: Buffer, first: Prim, pitch: Prim) -> Buffer:
        """Returns what the zero point of the second operand adds to every row."""
        d, lanes = self.d, self.d.cpu.lanes
        size = lanes * d.elements.depth
        length = self.steps * d.elements.depth if d.staged else self.inner
        offsets = T.alloc_buffer((self.rows,), "int32")
        sums = T.alloc_buffer((lanes,), "int32")
        rest = T.alloc_buffer((1,), "int32")
        whole = length // size
        ones = number(1, d.elements.weight, size)
        # what is taken off before it is multiplied: of all, or of what registers take
        less = self._count(self.inner if str(source.dtype) == "int8" else whole * size)
        less = tirx.const(0, "int32") + less * d.cpu.dot.centre
        with turns(self.rows) as row:
            start = first + row * pitch
            store(sums, 0, number(0, "int32", lanes), lanes)
            store(rest, 0, less, 1)
            if not isinstance(whole, int) or whole:
                with turns(whole) as k:
                    codes = load(source, start + k * size, size)
                    if str(source.dtype) != d.elements.source:
                        codes = d.cpu.dot.taken(codes, size)
                    codes = d.cpu.dot.in_lanes(codes, lanes)
                    store(sums, 0, d.cpu.dot.added(load(sums, 0, lanes), codes, ones), lanes)
            left = length % size
            if not isinstance(left, int) or left:
                with turns(left) as k:
                    code = load(source, start + whole * size + k, 1).astype("int32")
                    store(rest, 0, rest[0] + code, 1)
            total = summed(load(sums, 0, lanes), lanes) + rest[0]
            store(offsets, row, tirx.const(0, "int32") - total * self.numbers[4], 1)
        return offsets

    def _tiles(self, operands: _Operands, result: Prim, rows: int, columns: int) -> None:
        """Writes the tiles of a result of known extents."""
        d, lanes = self.d, self.d.cpu.lanes
        high = parts(rows, most_pixels(d.cpu, self.blocks))
        blocks = blocks_of(d.cpu, high.size, self.blocks)
        for low, length, width, tail in channel_pieces(columns, lanes, blocks):
            with turns(length, low) as unit:
                for row, many, height in high.pieces():
                    with turns(many) as i:
                        at = row + i * height
                        self._tile(operands, result, (at, height), (unit * blocks, width), tail)

    def _open_tiles(self, operands: _Operands, result: Prim) -> None:
        """Writes the tiles of a result of open extents: of two blocks, then of one and its part."""
        lanes = self.d.cpu.lanes
        most = most_pixels(self.d.cpu, 2)
        pairs = self.columns // (2 * lanes)
        with turns(pairs) as unit:
            self._open_rows(operands, result, unit * 2, 2, most)
        if not isinstance(self.columns, int) or self.columns % (2 * lanes):
            with turns(self.blocks - pairs * 2, pairs * 2) as block:
                self._open_rows(operands, result, block, 1, most)

    def _open_rows(
        self, operands: _Operands, result: Prim, block: Prim, width: int, most: int
    ) -> None:
        """Writes the tiles of some blocks."""
        block = bound(block)

        def tile(row: Prim, height: int) -> None:
            self._some(operands, result, (row, height), (block, width))

        overlapping(self.rows, (most, _LOW, 1), tile)

    def _some(
        self, operands: _Operands, result: Prim, rows: tuple[Prim, int], blocks: tuple[Prim, int]
    ) -> None:
        """Writes a tile of a result of open extents; of a lone block what columns there are."""
        lanes, (block, width) = self.d.cpu.lanes, blocks
        if width > 1:
            self._tile(operands, result, rows, blocks, lanes)
            return
        row, height = rows
        room: Any = T.alloc_buffer((height * lanes,), self.d.form.dtype)
        self._tile(operands, None, rows, blocks, lanes, room)
        first = result + block * lanes
        with turns(tirx.min(self.columns - block * lanes, lanes)) as column:
            for p in range(height):
                at = first + (row + p) * self.steps_of[2].row + column
                store(self.y, at, load(room, p * lanes + column, 1), 1)

    def _tile(
        self, operands: _Operands, result: Prim, rows: tuple[Prim, int], blocks: tuple[Prim, int],
        tail: int, room: Buffer = None,
    ) -> None:  # fmt: skip
        """Writes a tile to the result, or the rows of one block to a buffer of its own."""
        d, lanes = self.d, self.d.cpu.lanes
        (at, height), (block, width) = rows, blocks
        step = lanes * d.elements.depth
        tile = Tile(d.cpu, height, width, d.elements)
        offsets = operands.offsets
        extra = [] if offsets is None else [offsets[at + p] for p in range(height)]
        tile.begin(operands.bias, block * lanes, extra)
        pitch = operands.pitch
        done: Prim = 0
        for size in (d.cpu.steps_held, 1) if d.cpu.steps_held > 1 else (1,):
            many = (self.steps - done) // size
            if isinstance(many, int) and not many:
                continue
            with turns(many) as turn:
                k = turn * size + done
                base = operands.first + at * pitch + k * d.elements.depth
                starts = [base + p * pitch for p in range(height)]
                weights = [
                    [
                        load(operands.packed, ((block + b) * self.steps + (k + own)) * step, step)
                        for b in range(width)
                    ]
                    for own in range(size)
                ]
                tile.step(operands.source, starts, weights)
            done = done + many * size
        if room is not None:
            places = [tirx.const(p * lanes, "int32") for p in range(height)]
            self._writer(room).write(tile, places, block * lanes, lanes)
            return
        stride = self.steps_of[2].row
        begin = result + at * stride + block * lanes
        places = [begin + p * stride for p in range(height)]
        self.writer.write(tile, places, block * lanes, tail)


_LOW = 4
"""Rows of the tiles of few rows, where the highest tile would have many more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Operands:
    """Both operands of a product as tiles read them.

    Attributes:
        source: Where the rows of the first one lie.
        first: Where these begin there.
        pitch: Elements from one row to the next.
        packed: The second operand.
        bias: What the sums of its columns begin with.
        offsets: What is added to all sums of a row; None for nothing.
    """

    source: Buffer
    first: Prim
    pitch: Prim
    packed: Buffer
    bias: Buffer
    offsets: Buffer | None
