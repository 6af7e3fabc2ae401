"""Products of two activations, many at once: both operands are bytes that are known at run time.

``sum((a - za) (b - zb))`` is the plain sum of products, minus ``za`` times the sums of the columns
of b, minus ``zb`` times the sums of the rows of a, plus ``K za zb``. The second operand is packed
first, as weights are; the sums of its columns become the bias of the tiles, those of the rows of
the first operand are added to their pixels. CPUs that multiply 16-bit integers centre both
operands while they copy them. Strides are free, so transposes in front of and behind the product
are part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.epilogue import Extras, Requantize, Writer
from qdqbridge.relax.kernels.lanes import (
    Buffer,
    Prim,
    flat,
    intrinsic,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.micro import (
    Elements,
    Tile,
    blocks_of,
    channel_pieces,
    dots,
    elements_of,
    most_pixels,
    parts,
)
from qdqbridge.relax.kernels.panels import Panel, pack_panel, stage_matrix
from qdqbridge.relax.kernels.plain import Plain, PlainWriter
from qdqbridge.relax.kernels.scaled import Scaled, ScaledWriter
from qdqbridge.relax.kernels.script import T, prim_func

NUMBERS = 6
"""Entries of ``numbers``: zero point, smallest and largest code of the result; the zero points of
both operands, the second one less 128 where bytes are multiplied; K times both."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices in a tensor.

    Attributes:
        shape: Extents of the tensor; None for an open first one.
        batches: Stride of every batch axis; 0 where the matrix is the same for all.
        row: Elements from one row to the next.
        column: Elements from one column to the next.
        signed: True where int8 is stored.
    """

    shape: tuple[int | None, ...]
    batches: tuple[int, ...]
    row: int
    column: int
    signed: bool

    @property
    def dtype(self) -> str:
        """The element type of codes."""
        return "int8" if self.signed else "uint8"


@dataclass(frozen=True, slots=True)
class Batched:
    """A product of (rows, inner) and (inner, columns) for every batch.

    Attributes:
        cpu: The CPU.
        a: The first operand.
        b: The second operand.
        y: The result, whose columns lie side by side.
        batches: Extents of the batch axes; None for an open one.
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
    batches: tuple[int | None, ...]
    rows: int
    inner: int
    columns: int
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
    def steps(self) -> int:
        """Steps of a sum."""
        return -(-self.inner // self.elements.depth)

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.columns // self.cpu.lanes)

    @property
    def staged(self) -> bool:
        """True where the rows of the first operand are copied before they are used."""
        stored = "float32" if self.floats else self.a.dtype
        ready = stored == self.elements.source and self.inner % self.elements.depth == 0
        return not (ready and self.a.column == 1)


def build(description: Batched) -> Any:
    """Returns the PrimFunc ``(a, b, multiplier, numbers, y)``; of floats ``(a, b, y)``."""
    d = description

    def body() -> None:
        size = tirx.Var("n", "int64")
        a, b = (
            T.arg(
                name,
                T.buffer(_extents(matrices, size), "float32" if d.floats else matrices.dtype),
            )
            for name, matrices in (("a", d.a), ("b", d.b))
        )
        extras = Extras()
        if not d.floats:
            multiplier = T.arg("multiplier", T.buffer((1,), "float32"))
            extras = Extras(multiplier, T.arg("numbers", T.buffer((NUMBERS,), "int32")))
        y = T.arg("y", T.buffer(_extents(d.y, size), d.form.dtype))
        with T.sblock("root"):
            _Batched(d, [flat(buffer) for buffer in (a, b, y)], extras).write(size)

    return prim_func(body)


def _extents(matrices: Matrices, size: Prim) -> list[Any]:
    return [size if extent is None else extent for extent in matrices.shape]


class _Batched:
    def __init__(self, d: Batched, tensors: list[Buffer], extras: Extras) -> None:
        none = tirx.const(0, "int32")
        self.d, self.numbers = d, [none] * NUMBERS if d.floats else extras.numbers
        self.a, self.b, self.y = tensors
        if isinstance(d.form, Plain):
            self.writer: Writer | PlainWriter | ScaledWriter = PlainWriter(
                d.cpu, d.form, None, None, self.y
            )
        elif isinstance(d.form, Scaled):
            self.writer = ScaledWriter(d.cpu, d.form, extras, self.y)
        else:
            self.writer = Writer(d.cpu, d.form, extras, self.y)

    def write(self, size: Prim) -> None:
        """Writes the loop over the batches."""
        d, total = self.d, 1
        for extent in d.batches:
            total = total * (size if extent is None else extent)
        with turns(total, parallel=d.parallel) as batch:
            starts = self._starts(batch)
            packed, bias = self._second(starts[1])
            source, first, pitch = self._first(starts[0])
            offsets = self._offsets(source, first, pitch) if self._uneven else None
            self._tiles(source, first, pitch, packed, bias, offsets, starts[2])

    @property
    def _uneven(self) -> bool:
        return self.d.elements.source == "uint8" and self.d.shifted[1]

    def _starts(self, batch: Prim) -> list[Prim]:
        """Returns where the matrices of a batch begin."""
        d = self.d
        starts: list[Prim] = [tirx.const(0, "int32")] * 3
        for axis in range(len(d.batches) - 1, -1, -1):
            extent = d.batches[axis]
            index = batch if axis == 0 or extent is None else batch % extent
            batch = batch if axis == 0 or extent is None else batch // extent
            for i, matrices in enumerate((d.a, d.b, d.y)):
                if matrices.batches[axis]:
                    starts[i] = starts[i] + index * matrices.batches[axis]
        return starts

    def _first(self, start: Prim) -> tuple[Buffer, Prim, int]:
        """Returns the rows as tiles read them: buffer, first element, elements of a row."""
        d = self.d
        if not d.staged:
            return self.a, start, d.a.row
        panel = Panel(d.cpu, d.rows, d.inner, (d.a.row, d.a.column), d.a.signed, d.elements)
        room = stage_matrix(panel, self.a, start, self.numbers[3])
        return room, tirx.const(0, "int32"), d.steps * d.elements.depth

    def _second(self, start: Prim) -> tuple[Buffer, Buffer]:
        """Packs the second operand; returns it, and the bias of its columns."""
        d, lanes = self.d, self.d.cpu.lanes
        panel = Panel(d.cpu, d.inner, d.columns, (d.b.row, d.b.column), d.b.signed, d.elements)
        packed = pack_panel(panel, self.b, start, self.numbers[4])
        bias = T.alloc_buffer((d.blocks * lanes,), d.elements.sum)
        with turns(d.blocks) as block:
            if not (d.elements.source == "uint8" and d.shifted[0]):
                store(bias, block * lanes, number(0, d.elements.sum, lanes), lanes)
                return packed, bias
            sums = T.alloc_buffer((lanes,), "int32")
            store(sums, 0, number(0, "int32", lanes), lanes)
            ones = number(0x01010101, "int32", lanes)
            with turns(d.steps) as k:
                weights = load(packed, (block * d.steps + k) * (4 * lanes), 4 * lanes)
                store(sums, 0, dots(d.cpu, load(sums, 0, lanes), ones, weights), lanes)
            shifted = splat(self.numbers[3], lanes) * load(sums, 0, lanes)
            store(bias, block * lanes, splat(self.numbers[5], lanes) - shifted, lanes)
        return packed, bias

    def _offsets(self, source: Buffer, first: Prim, pitch: int) -> Buffer:
        """Returns what the zero point of the second operand adds to every row."""
        d, lanes = self.d, self.d.cpu.lanes
        length = d.steps * 4 if d.staged else d.inner
        offsets = T.alloc_buffer((d.rows,), "int32")
        sums = T.alloc_buffer((lanes,), "int32")
        rest = T.alloc_buffer((1,), "int32")
        whole, kind = length // (4 * lanes), typed("int32", lanes)
        ones = number(1, "int8", 4 * lanes)
        with turns(d.rows) as row:
            start = first + row * pitch
            store(sums, 0, number(0, "int32", lanes), lanes)
            store(rest, 0, tirx.const(0, "int32"), 1)
            if whole:
                with turns(whole) as k:
                    codes = tirx.reinterpret(kind, load(source, start + k * 4 * lanes, 4 * lanes))
                    total = dots(d.cpu, load(sums, 0, lanes), codes, ones)
                    store(sums, 0, total, lanes)
            if length % (4 * lanes):
                with turns(length % (4 * lanes)) as k:
                    code = load(source, start + whole * 4 * lanes + k, 1).astype("int32")
                    store(rest, 0, rest[0] + code, 1)
            total = intrinsic("llvm.vector.reduce.add", "int32", load(sums, 0, lanes)) + rest[0]
            store(offsets, row, tirx.const(0, "int32") - total * self.numbers[4], 1)
        return offsets

    def _tiles(
        self,
        source: Buffer,
        first: Prim,
        pitch: int,
        packed: Buffer,
        bias: Buffer,
        offsets: Buffer | None,
        result: Prim,
    ) -> None:
        d, lanes = self.d, self.d.cpu.lanes
        rows = parts(d.rows, most_pixels(d.cpu, d.blocks))
        blocks = blocks_of(d.cpu, rows.size, d.blocks)
        step = lanes * d.elements.depth
        for low, length, width, tail in channel_pieces(d.columns, lanes, blocks):
            with turns(length, low) as unit:
                block = unit * blocks
                for row, many, height in rows.pieces():
                    with turns(many) as i:
                        at = row + i * height
                        tile = Tile(d.cpu, height, width, d.elements)
                        extra = [] if offsets is None else [offsets[at + p] for p in range(height)]
                        tile.begin(bias, block * lanes, extra)
                        with turns(d.steps) as k:
                            base = first + at * pitch + k * d.elements.depth
                            starts = [base + p * pitch for p in range(height)]
                            weights = [
                                load(packed, ((block + b) * d.steps + k) * step, step)
                                for b in range(width)
                            ]
                            tile.step(source, starts, weights)
                        begin = result + at * d.y.row + block * lanes
                        places = [begin + p * d.y.row for p in range(height)]
                        self.writer.write(tile, places, block * lanes, tail)
