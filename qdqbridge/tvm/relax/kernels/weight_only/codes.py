"""Products of float32 with weights of 4 or 8 bits in blocks, on dot products of bytes.

An activation is written as an integer times a scale of its own for every ``step`` neighbours of a
row, ``max |x| / 127``: as one digit of 8 bits, which is what a ``DynamicBlockDense`` is, bit for
bit, or as three of them, whose 24 bits are what a float32 has. The codes of the weight are read as
they lie in memory, so the product of a row is as fast as memory is. Everything up to the product
with both scales is exact; where an activation is infinite or no number, so is its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.files import lasting
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    flat,
    floats,
    load,
    number,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    SharedPieces,
    ceiling,
    choice,
    share,
    total_of,
    turns,
    when,
    within,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace, extents
from qdqbridge.tvm.relax.kernels.products.convolution import rows_of
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_bias
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    ROWS,
    Tile,
    blocks_of,
    channel_pieces,
    elements_of,
    most_pixels,
    parts,
)
from qdqbridge.tvm.relax.kernels.weight_only.amx_tiles import AmxCodesTiles
from qdqbridge.tvm.relax.kernels.weight_only.dots import TALL, RowDigits
from qdqbridge.tvm.relax.kernels.weight_only.product import FEW, NIBBLE, CodesProduct, half_unit
from qdqbridge.tvm.relax.kernels.weight_only.tiles import CodesTiles, Streams, TallTiles

# ---- Products of float32 with weights of 4 or 8 bits, which become floats in registers only ------
# Weights stay packed in memory, two codes of 4 bits to a byte; ``(code - zero_point) * scale`` is
# computed where a tile needs them. Scales belong to channels, or to blocks of ``size`` products of
# a channel.


Shape = tuple["int | None", ...]


@dataclass(frozen=True, slots=True)
class WeightOnly:
    """A product of rows of float32 with a matrix of codes.

    Attributes:
        operand: Shape of the activations; None for an open first extent.
        outcome: Shape of the result.
        batch: How often there are ``rows`` rows; None where that is open.
        rows: Rows of known number.
        inner: Products of a sum.
        units: Columns of the result.
        bits: Bits of a code, 4 or 8.
        size: Products that share a scale.
        tasks: How many threads the columns are shared out to.
    """

    cpu: Cpu
    operand: Shape
    outcome: Shape
    batch: int | None
    rows: int
    inner: int
    units: int
    bits: int
    size: int
    tasks: int

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.units // self.cpu.lanes)

    @property
    def each(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits


def build_weight_only(description: WeightOnly) -> Any:
    """Returns the PrimFunc ``(x, weights, scales, zero_points, bias, y)``."""
    d = description

    def body() -> None:
        batch = tirx.Var("n", "int64") if d.batch is None else d.batch
        given, taken = (
            [batch if extent is None else extent for extent in shape]
            for shape in (d.operand, d.outcome)
        )
        lanes = d.cpu.lanes
        shared = (d.blocks, d.inner // d.size, lanes)
        x = T.arg("x", T.buffer(given, "float32"))
        packed = T.buffer((d.blocks, d.inner // d.each, lanes), "uint8")
        tensors = [x, T.arg("weights", packed)]
        tensors += [T.arg(name, T.buffer(shared, "float32")) for name in ("scales", "zeros")]
        bias = T.arg("bias", T.buffer((d.blocks * lanes,), "float32"))
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            views = [flat(tensor) for tensor in tensors]
            _WeightOnly(d, views, bias, flat(y)).write(batch)

    return prim_func(body)


class _WeightOnly:
    def __init__(self, d: WeightOnly, views: list[Buffer], bias: Buffer, result: Buffer) -> None:
        self.d, self.bias = d, bias
        self.x, self.weights, self.scales, self.zeros = views
        self.writer = PlainWriter(d.cpu, Plain(), None, None, result)
        self.rows = parts(d.rows, most_pixels(d.cpu, d.blocks))
        self.wide = blocks_of(d.cpu, self.rows.size, d.blocks)

    def write(self, batch: Prim) -> None:
        """Writes the loops: shares of the columns, tiles of them, tiles of rows."""
        d = self.d
        units = -(-d.blocks // self.wide)
        tasks = min(d.tasks, units)
        with turns(batch * tasks, parallel=tasks > 1) as task:
            image = task // tasks * d.rows
            first, count = share(task % tasks, tasks, units)
            for low, length, width, tail in channel_pieces(d.units, d.cpu.lanes, self.wide):
                start, extent = within(first, count, low, length)
                with turns(extent, start) as unit:
                    for row, many, height in self.rows.pieces():
                        with turns(many) as i:
                            at = image + (row + i * height)
                            self._tile(unit * self.wide, width, tail, at, height)

    def _tile(self, block: Prim, width: int, tail: int, row: Prim, height: int) -> None:
        d, lanes = self.d, self.d.cpu.lanes
        tile = Tile(d.cpu, height, width, elements_of(d.cpu, floats=True))
        tile.begin(self.bias, block * lanes)
        groups = d.inner // d.size
        with turns(groups) as group, turns(d.size // d.each) as k:
            shared = [((block + b) * groups + group) * lanes for b in range(width)]
            step = group * (d.size // d.each) + k
            packed = [((block + b) * (d.inner // d.each) + step) * lanes for b in range(width)]
            codes = [bound(wide(load(self.weights, at, lanes), lanes)) for at in packed]
            for i in range(d.each):
                vectors = [
                    bound(self._real(self._code(code, i), at))
                    for code, at in zip(codes, shared, strict=True)
                ]
                column = step * d.each + i
                starts = [(row + p) * d.inner + column for p in range(height)]
                tile.step(self.x, starts, [vectors])
        starts = [(row + p) * d.units + block * lanes for p in range(height)]
        self.writer.write(tile, starts, block * lanes, tail)

    def _code(self, codes: Prim, index: int) -> Prim:
        """Returns the codes of a register's bytes that stand at ``index`` in them."""
        lanes = self.d.cpu.lanes
        if self.d.bits == 8:
            return codes
        if index:
            return tirx.shift_right(codes, number(4, "int32", lanes))
        return tirx.bitwise_and(codes, number(15, "int32", lanes))

    def _real(self, codes: Prim, shared: Prim) -> Prim:
        lanes = self.d.cpu.lanes
        centred = floats(codes, lanes) - load(self.zeros, shared, lanes)
        return centred * load(self.scales, shared, lanes)


# ---- nodes ----------------------------------------------------------------------------------


def match_weight_only_dense(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Dense of float32 with a quantized weight of 4 or 8 bits."""
    weight = blocked_codes(node.operand(1))
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    if weight is None or shape is None or result is None or node.op is not DENSE:
        return None
    if not is_real(node.operand(0)) or not is_real(node.output):
        return None
    units, inner = weight.shape
    bias = real_bias(node, units)
    if bias is None or (shape[0] is None and len(shape) == 1):
        return None
    description = WeightOnly(
        place.cpu, shape, result, None if shape[0] is None else 1,
        math.prod(extent for extent in shape[:-1] if extent is not None), inner, units,
        weight.bits, weight.size, place.threads,
    )  # fmt: skip
    cpu = place.cpu
    constants = (
        _packed(cpu, weight), along_lanes(cpu, weight.scales), along_lanes(cpu, weight.zeros),
        per_lane(cpu, bias, 1),
    )  # fmt: skip
    return Kernel(
        f"dense_w{weight.bits}_{description.rows}x{inner}x{units}", description, build_weight_only,
        (node.operand(0),), constants, (node.output,),
        2 * description.rows * (description.batch or 1) * inner * units,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class BlockedCodes:
    """A weight of (units, inner) as unsigned codes, and its parameters for every block.

    Attributes:
        source: The stored integers.
        half: What makes a code of a stored integer when it is added.
        scales: float32, (units, blocks).
        zeros: float32, (units, blocks).
        size: Products in a block.
    """

    source: Constant
    half: int
    scales: Array
    zeros: Array
    bits: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Units, and products of a sum."""
        units, inner = self.source.shape
        return units, inner

    def in_bytes(self) -> Iterator[Array]:
        """Yields codes of some rows after others, two of 4 bits in a byte, the first one low."""
        units, inner = self.shape
        each = 8 // self.bits
        held = self.source.packed() if self.bits == _NIBBLE else None
        flip = np.uint8(0x88 if self.half else 0)
        for start in range(0, units, _ROWS):
            rows = slice(start, min(start + _ROWS, units))
            if held is not None:
                yield held.reshape(units, inner // each)[rows] ^ flip
                continue
            codes = (self.source.numpy()[rows].astype(np.int16) + self.half).astype(np.uint8)
            yield codes if each == 1 else codes[:, 0::2] | (codes[:, 1::2] << _NIBBLE)
        self.source.release()


_NIBBLE = 4
_ROWS = 256
"""Rows of a weight that are packed at a time: whole blocks of lanes, and what caches hold."""


def blocked_codes(value: Value, block: int = 0) -> BlockedCodes | None:
    """Returns a constant weight of 4 or 8 bits as codes; None for other weights.

    Args:
        value: The weight.
        block: Products that share a scale where the weight has no blocks itself; 0: all of a row.
    """
    quant, constant = value.quant, value.constant
    if quant is None or constant is None or value.rank != 2:
        return None
    params = quant.params
    dtype = params.storage_dtype
    if not dtype.is_integer or dtype.bits not in (4, 8):
        return None
    units, inner = constant.shape
    size = block if block and not params.blocked else _size(params, inner)
    if not units or not size or inner % size or size % (8 // dtype.bits):
        return None
    # Kernels know codes without a sign only; codes and zero points move by the same number, so that
    # their difference stays.
    half = 1 << (dtype.bits - 1) if dtype.is_signed else 0
    blocks = (units, inner // size)
    grid = (-1, 1) if params.axis == 0 and not params.blocked else params.scale.shape
    scales = params.scale.astype(np.float32, copy=False).reshape(grid)
    zeros = (params.zero_point + half).astype(np.float32).reshape(grid)
    return BlockedCodes(
        constant, half, np.broadcast_to(scales, blocks), np.broadcast_to(zeros, blocks),
        dtype.bits, size,
    )  # fmt: skip


def _size(params: QuantParams, inner: int) -> int | None:
    """Returns how many products share a scale; None where scales do not follow the channels."""
    if params.blocked:
        return params.block_size if params.axis == 1 else None
    return inner if params.axis in (None, 0) else None


def _packed(cpu: Cpu, weight: BlockedCodes) -> Array:
    """Returns codes as (blocks, bytes of a sum, lanes), the first code in the low bits."""
    units, inner = weight.shape
    return by_lanes(cpu, units, inner * weight.bits // 8, weight.in_bytes())


def along_lanes(cpu: Cpu, array: Array) -> Array:
    """Returns (units, n) as (blocks, n, lanes)."""
    return by_lanes(cpu, len(array), array.shape[1], [array])


def by_lanes(cpu: Cpu, units: int, width: int, parts: Iterable[Array]) -> Array:
    """Returns rows, whole blocks of lanes at a time, as (blocks, width, lanes), zeros behind."""
    found: Array | None = None
    done = 0
    for part in parts:
        if found is None:
            found = lasting((-(-units // cpu.lanes), width, cpu.lanes), part.dtype)
            found[units // cpu.lanes :] = 0
        rows = padded(part, 0, cpu.lanes).reshape(-1, cpu.lanes, width)
        found[done : done + len(rows)] = rows.transpose(0, 2, 1)
        done += len(rows)
    assert found is not None
    return found


# ---- loops ---------------------------------------------------------------------------------------
# The loops of a product with codes: what of rows, parts and columns stays in caches meanwhile.


_PIECES = 8
"""Pieces of a share that meet few rows: every one begins to read anew, few are handed over (two
threads, Zen 4: 0.83 of memory, with 2 pieces 0.80, with 16 0.82)."""
_PAIRS_OF_FEW = 32
"""Pairs of blocks of columns of such a piece, at most."""


def build_codes_product(description: CodesProduct) -> Any:
    """Returns the PrimFunc ``(x, codes and scales, [zero points], bias, y)``."""
    d = description

    def body() -> None:
        lanes = d.cpu.lanes
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.operand))]
        given, taken = (
            [name if extent is None else extent for name, extent in zip(names, shape, strict=True)]
            for shape in (d.operand, d.outcome)
        )
        rows = total_of(given[:-1])
        x = T.arg("x", T.buffer(given, "float32"))
        packed = T.buffer((d.pairs, d.groups, d.group_registers, d.register), "uint8")
        stream = T.arg("codes_and_scales", packed)
        zeros = None
        if d.centre is None:
            zeros = T.arg("zeros", T.buffer((d.pairs, d.groups, 1, 2, lanes), "uint8"))
        bias = T.arg("bias", T.buffer((d.blocks * lanes,), "float32"))
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            shared = [flat(stream), None if zeros is None else flat(zeros), bias]
            _CodesProduct(d, flat(x), shared, flat(y)).write(rows)

    return prim_func(body)


class _CodesProduct:
    def __init__(
        self, d: CodesProduct, x: Buffer, shared: Sequence[Buffer], result: Buffer
    ) -> None:
        self.d, self.x, self.shared = d, x, shared
        self.writer = PlainWriter(d.cpu, Plain(), None, None, result)

    def write(self, rows: Prim) -> None:
        """Writes the loops: some rows at a time; their digits, and shares of the columns."""
        d = self.d
        most = min(rows, d.at_once) if isinstance(rows, int) else d.at_once
        tasks = min(d.tasks, d.pairs)
        room = self._room(rows, most, tasks)
        digits = RowDigits(d, self.x, room)
        self.tiles = CodesTiles(d, digits, self.shared, self.writer)
        self.tall = TallTiles(self.tiles)
        self.amx = AmxCodesTiles(self.tiles) if d.amx else None
        self.pieces = SharedPieces(d.cpu, tasks, d.pairs)
        self.few = min(self.tiles.dots.read_through, room // tasks) if tasks > 1 else 0
        with turns((rows + (most - 1)) // most) as chunk:
            first = chunk * most
            count = rows if isinstance(rows, int) and rows == most else None
            count = bound(tirx.min(rows - first, most)) if count is None else count
            few, several = (count <= self.few, count > self.few) if self.few else (False, True)
            when(several, lambda: digits.write(first, count, parallel=tasks > 1))
            self.part_size = self._part_size(most, count)
            if not self._whole:
                pairs = min(self._piece(self.tiles.dots.pairs), ceiling(d.pairs, tasks))
                kept = pairs * 2 * d.cpu.lanes
                self.tiles.keep(T.alloc_buffer((tasks * most * kept,), "float32"), most, kept)
            self.pieces.begin()
            with turns(tasks, parallel=tasks > 1) as task:
                self._share(task, few, digits, first, count, most)

    @property
    def _whole(self) -> bool:
        """Whether all parts of rows are gone through at once, however many rows there are."""
        return isinstance(self.part_size, int) and self.part_size == self.d.parts

    def _room(self, rows: Prim, most: int, tasks: int) -> int:
        """Returns how many rows of digits there is room for: of few rows, those of every task."""
        if not isinstance(rows, int):
            return max(most, tasks)
        copies = most * tasks
        return copies if most <= FEW and copies <= self.d.at_once else most

    def _part_size(self, most: int, count: Prim) -> Prim:
        """Returns how many parts of rows are gone through at a time."""
        d, dots = self.d, self.tiles.dots
        fits, few = dots.parts_at_once(most), dots.read_through
        if fits >= d.parts or (isinstance(count, int) and count <= few):
            return d.parts
        return fits if isinstance(count, int) else bound(tirx.Select(count <= few, d.parts, fits))

    def _piece(self, most: int) -> int:
        """Returns how many pairs of blocks the pieces of a share have, evenly, about so many.

        Where several are read in turn, all but the last piece of a share have no other ones.
        """
        own, streams = ceiling(self.d.pairs, self.pieces.tasks), self.d.streams
        return ceiling(ceiling(own, ceiling(own, most)), streams) * streams

    def _share(
        self, task: Prim, few: Prim, digits: RowDigits, first: Prim, count: Prim, most: int
    ) -> None:
        """Writes one share of the columns, some of them for all rows at a time, and helps others.

        Of few rows every task makes the digits itself: they come from no other core's cache.
        """
        d = self.d
        many = count >= ROWS if self.amx is not None else False
        if most > 1 and many is not True:
            self.tiles.make_room()
        if self.amx is not None:
            self.amx.begin(many)
        tasks = self.pieces.tasks
        own = self.tiles.own = bound(choice(few, task * count, 0)) if self.few else 0

        def make() -> None:
            pair, _ = share(task, tasks, d.pairs)
            start = bound(d.group_start(pair.astype("int64"), 0))
            digits.write(first, count, own, (self.shared[0], start))

        when(few, make)
        pieces = _PIECES if tasks > 1 else 1  # alone, a task hands nothing over
        pairs = min(ceiling(ceiling(d.pairs, tasks), pieces), _PAIRS_OF_FEW)
        read_through = count <= self.tiles.dots.read_through
        size = choice(read_through, self._piece(pairs), self._piece(self.tiles.dots.pairs))
        with (
            self.pieces.of(task, size) as (low, extent),
            turns(ceiling(d.parts, self.part_size)) as i,
        ):
            part = bound(i * self.part_size)
            parts = d.parts if self._whole else bound(tirx.min(d.parts - part, self.part_size))
            self.tiles.begin_parts(task, low, (part, parts))
            for at, length, width, tail in channel_pieces(d.units, d.cpu.lanes, 2):
                begin, some = within(low, extent, at, length)
                columns = bound(begin), bound(some), width, tail
                rows = partial(self._any_rows, columns, first, count, many)
                when(True if isinstance(some, int) else some > 0, rows)
        if self.amx is not None:
            self.amx.end(many)

    def _any_rows(
        self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim, many: Prim
    ) -> None:
        """Writes the tiles of some pairs of blocks, on AMX where there are many rows."""
        begin, some, width, tail = columns

        def on_amx() -> None:
            assert self.amx is not None
            with turns(some, begin) as unit:
                self.amx.write(bound(unit * 2), width, tail, first, count)

        when(many, on_amx)
        few = not many if isinstance(many, bool) else tirx.Not(many)
        when(few, partial(self._rows, columns, first, count))

    def _rows(self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim) -> None:
        """Writes the tiles of some pairs of blocks: high ones, and what is left."""
        done: Prim = 0
        for size in self.tiles.dots.heights:
            many = (count - done) // size
            if not isinstance(many, int) or many:
                many = many if isinstance(many, int) else bound(many)
                with turns(many) as i:
                    self.tiles.begin_rows(done + i * size, size)
                    self._tiles(columns, first, bound(done + i * size), size)
            done = done + many * size
            done = done if isinstance(done, int) else bound(done)

    def _tiles(
        self, columns: tuple[Prim, Prim, int, int], first: Prim, row: Prim, size: int
    ) -> None:
        """Writes tiles of some rows: of one, several pairs in turn where that is faster."""
        begin, some, width, tail = columns
        if size == TALL and self.d.digits > 1:
            with turns(some, begin) as unit:
                self.tall.write(bound(unit * 2), width, tail, first, row)
            return
        streams = self.d.streams if size == 1 and width == 2 and tail == self.d.cpu.lanes else 1
        each = some // streams
        if streams > 1 and not (isinstance(each, int) and not each):
            each = each if isinstance(each, int) else bound(each)
            with turns(each, begin) as unit:
                several = Streams(streams, each * 2)
                self.tiles.write(bound(unit * 2), width, tail, first, row, size, several)
            begin, some = bound(begin + each * streams), bound(some - each * streams)
        with turns(some, begin) as unit:
            self.tiles.write(bound(unit * 2), width, tail, first, row, size)


# ---- Products of float32 with weights of 4 or 8 bits in blocks, on dot products of bytes ---------


_STEPS = (32, 16)
"""Activations that share a scale: no more, so that sums of three digits stay within int32."""
_BLOCKS = (16, 32, 64, 128, 256)
"""Activations that share a scale where they are one digit: sums stay within 24 bits."""


def match_block_dense(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of float32 with a weight of 4 or 8 bits in blocks.

    Of a Dense, and of a DynamicBlockDense.
    """
    rounded = DYNAMIC_BLOCK_DENSE.of(node)
    if node.op is not DENSE and rounded is None:
        return None
    size = 0 if rounded is None else rounded.block_size
    rows, weight = rows_of(node), blocked_codes(node.operand(1), size)
    if rows is None or weight is None or place.cpu.dot.code_bits < weight.bits:
        return None
    if not is_real(node.operand(0)) or not is_real(node.output):
        return None
    if not size and place.cpu.lanes == 1:
        return None  # three digits take longer than a product of floats
    steps = [step for step in _BLOCKS if step == size] if size else _STEPS
    step = next((step for step in steps if weight.size % step == 0), None)
    units, inner = weight.shape
    bias = real_bias(node, units)
    if step is None or bias is None:
        return None
    digits = 1 if size else 3
    centre = int(weight.zeros.flat[0]) if (weight.zeros == weight.zeros.flat[0]).all() else None
    description = CodesProduct(
        place.cpu, rows.operand, rows.outcome, units, weight.bits, weight.size, step, digits,
        centre, not place.cpu.reads_ahead, place.threads,
    )  # fmt: skip
    unit = np.float32(half_unit(digits))
    constants: list[Array] = [_stream(description, weight, unit)]
    if centre is None:
        constants.append(_in_pairs(description, weight.zeros.astype(np.uint8)))
    constants.append(per_lane(place.cpu, bias, 1))
    return Kernel(
        f"dense_w{weight.bits}a{8 if digits == 1 else 32}_{inner}x{units}", description,
        build_codes_product,
        (node.operand(0),), tuple(constants), (node.output,),
        2 * (1 if rows.open else rows.count) * inner * units,
    )  # fmt: skip


def _stream(d: CodesProduct, weight: BlockedCodes, unit: np.float32) -> Array:
    """Returns codes and scales as (pairs, groups, registers, bytes), in the order of reading.

    A register has four neighbours of a sum in every lane. Of 4 bits a byte has one code in its low
    bits and the one that is four further on in its high bits.
    """
    found = lasting((d.pairs, d.groups, d.group_registers, d.register), np.dtype(np.uint8))
    words = found.view(np.uint32)
    codes = words[:, :, :-2].reshape(d.pairs, d.groups, d.group_codes, 2, d.cpu.lanes)
    assert np.shares_memory(codes, words)
    done = 0
    for part in _words(weight):
        some = _in_pairs(d, part)
        codes[done : done + len(some)] = some
        done += len(some)
    words.view(np.float32)[:, :, -2:] = _in_pairs(d, weight.scales * unit)[:, :, 0]
    return found


def _in_pairs(d: CodesProduct, rows: Array) -> Array:
    """Returns (units, groups * n) as (pairs, groups, n, 2, lanes); a block of 0 may be added."""
    several = padded(rows, 0, 2 * d.cpu.lanes)
    shape = (-1, 2, d.cpu.lanes, d.groups, rows.shape[1] // d.groups)
    return several.reshape(shape).transpose(0, 3, 4, 1, 2)


def _words(weight: BlockedCodes) -> Iterator[Array]:
    """Yields words of four bytes of codes; of 4 bits every second one in the high halves."""
    for part in weight.in_bytes():
        words = np.ascontiguousarray(part).view(np.uint32)
        if weight.bits == NIBBLE:  # codes 0 .. 7 become 0 4 1 5 2 6 3 7
            for mask, shift in ((0x0000FF00, 8), (0x00F000F0, 4)):
                swap = (words ^ (words >> np.uint32(shift))) & np.uint32(mask)
                words = words ^ swap ^ (swap << np.uint32(shift))
        yield words
