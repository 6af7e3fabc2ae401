"""Products of float32 with weights of 4 or 8 bits in blocks, on dot products of bytes.

An activation is written as an integer times a scale of its own for every ``step`` neighbours of a
row, ``max |x| / 127``: as one digit of 8 bits, which is what a ``DynamicBlockDense`` is, bit for
bit, or as three of them, whose 24 bits are what a float32 has. The codes of the weight are read as
they lie in memory, so the product of a row is as fast as memory is. Everything up to the product
with both scales is exact; where an activation is infinite or no number, so is its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.graph.graph import Node
from qdqbridge.ops.dynamic import DYNAMIC_BLOCK_DENSE, LAST_OF_BLOCK, SMALLEST
from qdqbridge.ops.matmul import DENSE
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.dense import AT_ONCE, rows_of
from qdqbridge.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.relax.kernels.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    flat,
    floats,
    fused,
    intrinsic,
    largest,
    load,
    nearest,
    number,
    splat,
    store,
    summed,
    typed,
)
from qdqbridge.relax.kernels.loops import ceiling, share, total_of, turns, within
from qdqbridge.relax.kernels.micro import channel_pieces
from qdqbridge.relax.kernels.operands import Open
from qdqbridge.relax.kernels.packing import per_lane
from qdqbridge.relax.kernels.plain import Plain, PlainWriter
from qdqbridge.relax.kernels.reals import is_real, real_bias
from qdqbridge.relax.kernels.script import T, prim_func, root
from qdqbridge.relax.kernels.weight_only import (
    BlockedCodes,
    along_lanes,
    blocked_codes,
    by_lanes,
)
from qdqbridge.relax.tensors import lasting

_STEPS = (32, 16)
"""Activations that share a scale: no more, so that sums of three digits stay within int32."""
_BLOCKS = (16, 32, 64, 128, 256)
"""Activations that share a scale where they are one digit: sums stay within 24 bits."""
_DIGIT, _NIBBLE = 8, 4
_HEIGHTS = (4, 2, 1)
"""Rows of tiles: their sums, and the codes of a chunk of two blocks of columns, are registers."""
_AHEAD = 8192
"""Bytes by which codes that meet one row are asked for before they are used."""
_CHAINS = 2
"""Sums of one row whose blocks are several chunks: a dot product waits for the one before it."""
_FEW = 8
"""Rows up to which one thread makes the digits, and a weight is read from one end to the other."""
_PAIRS = 32
"""Pairs of blocks of columns whose codes of some parts stay in the second-level cache."""
_ROOM = 1 << 17
"""Bytes of the digits of many rows that stay in the second-level cache: so many parts are gone
through for all columns before the next ones."""

Place = tuple[Buffer, Prim]
"""An element of a buffer."""


@dataclass(frozen=True, slots=True)
class CodesProduct:
    """A product of rows of float32 with a matrix of codes.

    Attributes:
        cpu: The CPU.
        operand: Shape of the activations; None for open extents.
        outcome: Shape of the result.
        units: Columns of the result.
        bits: Bits of a code, 4 or 8.
        size: Products that share a scale of the weight.
        step: Products that share a scale of the activation.
        digits: Digits of an activation, 1 or 3.
        centre: The zero point of all blocks; None where they have their own.
        asks: Whether what meets one row is asked for before it is used.
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

    def place(self, block: Prim, after: int, part: Prim, parts: int) -> Prim:
        """Returns where a part of a block comes among those of all pairs.

        Args:
            block: The block; the first one of a pair where one after it is meant.
            after: How many blocks after it, 0 or 1.
            part: The part.
            parts: How many parts a block has.
        """
        return (block // 2 * parts + part) * 2 + (block % 2 + after)

    @property
    def joint_digits(self) -> tuple[tuple[int, ...], ...]:
        """Digits whose sums are one integer: three, times codes beyond -8 .. 8, do not fit."""
        if self.digits == 1:
            return ((0,),)
        small = self.bits == _NIBBLE and self.centre == 1 << (_NIBBLE - 1)
        return ((0, 1, 2),) if small else ((0, 1), (2,))

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
        return min(self.step, _STEPS[0])

    @property
    def loads(self) -> int:
        """Registers of packed codes that a chunk of a row meets in a block of columns."""
        return self.chunk * self.bits // 32


def build(description: CodesProduct) -> Any:
    """Returns the PrimFunc ``(x, codes, scales, [zero points], bias, y)``."""
    d = description

    def body() -> None:
        lanes, groups = d.cpu.lanes, d.inner // d.size
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.operand))]
        given, taken = (
            [name if extent is None else extent for name, extent in zip(names, shape, strict=True)]
            for shape in (d.operand, d.outcome)
        )
        rows = total_of(given[:-1])
        x = T.arg("x", T.buffer(given, "float32"))
        packed = T.buffer((d.pairs, d.inner // d.chunk, 2 * d.loads, d.register), "uint8")
        codes = T.arg("codes", packed)
        each = (d.pairs, groups, 2, lanes)
        scales = T.arg("scales", T.buffer(each, "float32"))
        zeros = None
        if d.centre is None:
            zeros = T.arg("zeros", T.buffer(each, "uint8"))
        bias = T.arg("bias", T.buffer((d.blocks * lanes,), "float32"))
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            shared = [flat(codes), flat(scales), None if zeros is None else flat(zeros), bias]
            _CodesProduct(d, flat(x), shared, flat(y)).write(rows)

    return prim_func(body)


class _CodesProduct:
    def __init__(
        self, d: CodesProduct, x: Buffer, shared: Sequence[Buffer], result: Buffer
    ) -> None:
        self.d, self.x = d, x
        self.codes, self.scales, self.zeros, self.bias = shared
        self.writer = PlainWriter(d.cpu, Plain(), None, None, result)

    def write(self, rows: Prim) -> None:
        """Writes the loops: some rows at a time; their digits, and shares of the columns."""
        d = self.d
        most = min(rows, AT_ONCE) if isinstance(rows, int) else AT_ONCE
        self.digits = T.alloc_buffer((most * d.inner * d.digits,), "int8")
        self.steps = T.alloc_buffer((most * d.parts,), "float32")
        self.sums = T.alloc_buffer((most * d.parts * d.digits,), "int32")
        with turns((rows + (most - 1)) // most) as chunk:
            first = chunk * most
            count = rows if isinstance(rows, int) and rows == most else None
            count = bound(tirx.min(rows - first, most)) if count is None else count
            self._all_digits(first, count)
            tasks = min(d.tasks, d.pairs)
            size = self._part_size(most, count)
            whole = isinstance(size, int) and size == d.parts
            self.partial = None
            if not whole:
                shape: Any = (most * d.blocks * d.cpu.lanes,)
                self.partial = T.alloc_buffer(shape, "float32")
            with turns(ceiling(d.parts, size)) as i:
                begin = bound(i * size)
                some = size if whole else bound(tirx.min(d.parts - begin, size))
                self.range = begin, some
                with turns(tasks, parallel=tasks > 1) as task:
                    self._share(task, tasks, first, count)

    def _part_size(self, most: int, count: Prim) -> Prim:
        """Returns how many parts of rows are gone through at a time."""
        d = self.d
        each = d.size // d.step  # whole blocks of the weight
        fits = max(1, _ROOM // (most * d.step * d.digits) // each) * each
        if fits >= d.parts or (isinstance(count, int) and count <= _FEW):
            return d.parts
        return fits if isinstance(count, int) else bound(tirx.Select(count <= _FEW, d.parts, fits))

    # ---- digits -------------------------------------------------------------------------------

    def _all_digits(self, first: Prim, count: Prim) -> None:
        def some(*, parallel: bool) -> None:
            with turns(count, parallel=parallel) as row, turns(self.d.parts) as part:
                self._part(first + row, row, part)

        if self.d.tasks == 1 or (isinstance(count, int) and count <= _FEW):
            some(parallel=False)
            return
        with T.If(count <= _FEW):
            with T.Then():
                some(parallel=False)
            with T.Else():
                some(parallel=True)

    def _part(self, source: Prim, row: Prim, part: Prim) -> None:
        """Writes the digits, the scale and the sums of one part of a row."""
        d, lanes = self.d, self.d.step
        value = bound(load(self.x, source * d.inner + part * lanes, lanes))
        bits = tirx.reinterpret(typed("int32", lanes), value)
        magnitude = tirx.bitwise_and(bits, number(0x7FFFFFFF, "int32", lanes))
        top = bound(tirx.reinterpret("float32", bound(largest(magnitude, lanes))))
        usual = tirx.all(top >= SMALLEST, top < float("inf"))
        unit = float(1 << _DIGIT * (d.digits - 1))
        nothing = tirx.const(0.0, "float32")
        inverse = tirx.Select(usual, tirx.const(LAST_OF_BLOCK * unit, "float32") / top, nothing)
        inverse = bound(inverse)
        step = bound(tirx.Select(top < SMALLEST, nothing, top + (top - top)))
        last = bound(fence(tirx.const(float(LAST_OF_BLOCK), "float32")))  # TVM takes 1 / 127
        place = row * d.parts + part
        store(self.steps, place, step / last, 1)
        whole = bound(nearest(bound(value * splat(inverse, lanes)), lanes))
        centre = 1 if d.centre is None else d.centre
        for i, digit in enumerate(self._digits(whole)):
            at = place * d.digits + i
            store(self.digits, at * lanes, digit.astype(typed("int8", lanes)), lanes)
            store(self.sums, at, summed(digit, lanes) * -centre, 1)

    def _digits(self, whole: Prim) -> list[Prim]:
        """Returns balanced digits, the highest first."""
        lanes = self.d.step
        half, mask = (number(value, "int32", lanes) for value in (128, 255))
        found: list[Prim] = []
        for _ in range(self.d.digits - 1):
            digit = bound(tirx.bitwise_and(whole + half, mask) - half)
            whole = bound(tirx.shift_right(whole - digit, number(_DIGIT, "int32", lanes)))
            found.insert(0, digit)
        return [whole, *found]

    # ---- products -----------------------------------------------------------------------------

    def _share(self, task: Prim, tasks: int, first: Prim, count: Prim) -> None:
        """Writes one share of the columns, some of them for all rows, then the next ones."""
        d = self.d
        low, extent = share(task, tasks, d.pairs)
        for at, length, width, tail in channel_pieces(d.units, d.cpu.lanes, 2):
            begin, extent_ = within(low, extent, at, length)
            with turns(ceiling(extent_, _PAIRS)) as i:
                done = bound(i * _PAIRS)
                some = bound(tirx.min(extent_ - done, _PAIRS))
                self._rows((bound(begin + done), some, width, tail), first, count)

    def _rows(self, columns: tuple[Prim, Prim, int, int], first: Prim, count: Prim) -> None:
        """Writes the tiles of some pairs of blocks: high ones, and what is left."""
        begin, some, width, tail = columns
        done: Prim = 0
        for size in _HEIGHTS:
            many = (count - done) // size
            if not isinstance(many, int) or many:
                many = many if isinstance(many, int) else bound(many)
                with turns(many) as i, turns(some, begin) as unit:
                    self._tile(bound(unit * 2), width, tail, first, bound(done + i * size), size)
            done = done + many * size
            done = done if isinstance(done, int) else bound(done)

    def _tile(
        self, block: Prim, width: int, tail: int, first: Prim, row: Prim, height: int
    ) -> None:
        d, lanes = self.d, self.d.cpu.lanes
        totals = [self._register("float32", height) for _ in range(width)]
        columns = [(b, total, p) for b, total in enumerate(totals) for p in range(height)]

        def kept(b: int, p: int) -> Prim:
            return ((row + p) * d.blocks + block + b) * lanes

        def first_sums() -> None:
            for b, total, p in columns:
                start = load(self.bias, (block + b) * lanes, lanes)
                start = number(0.0, "float32", lanes) if d.digits == 1 else start
                store(total, p * lanes, start, lanes)

        def other_sums() -> None:
            for b, total, p in columns:
                store(total, p * lanes, load(self.partial, kept(b, p), lanes), lanes)

        self._either(self.range[0] == 0, first_sums, other_sums)
        if d.digits == 1:
            self._one_digit(totals, block, row, height)
        else:
            self._three_digits(totals, block, row, height)

        def results() -> None:
            for b, total, p in columns:
                start = (first + row + p) * d.units + (block + b) * lanes
                value = load(total, p * lanes, lanes)
                if d.digits == 1:  # DynamicBlockDense adds its bias last
                    value = value + load(self.bias, (block + b) * lanes, lanes)
                self.writer.put(value, start, tail if b == width - 1 else lanes)

        def sums_so_far() -> None:
            for b, total, p in columns:
                store(self.partial, kept(b, p), load(total, p * lanes, lanes), lanes)

        begin, some = self.range
        self._either(begin + some == d.parts, results, sums_so_far)

    def _either(self, last: Prim, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Writes either of two; the first where all parts are gone through at once."""
        if self.partial is None:
            one()
            return
        with T.If(last):
            with T.Then():
                one()
            with T.Else():
                other()

    def _one_digit(self, totals: Sequence[Buffer], block: Prim, row: Prim, height: int) -> None:
        """Adds the products of the rows, step by step as a ``DynamicBlockDense`` has them."""
        d, lanes = self.d, self.d.cpu.lanes
        chunks, blocks = d.step // d.chunk, range(len(totals))
        chains = _CHAINS if height == 1 and chunks > 1 else 1
        sums = [self._register("int32", height * chains) for _ in blocks]
        codes = [self._register("int32", d.chunk // 4) for _ in blocks]
        begin, some = self.range
        with turns(some, begin) as part:
            places = [bound(d.place(block, b, part, d.parts) * lanes) for b in blocks]

            def start(p: int) -> None:
                place = bound((row + p) * d.parts + part)
                for b in blocks:
                    store(sums[b], p * lanes, self._start(place, places[b]), lanes)
                    for chain in range(1, chains):
                        store(sums[b], chain * lanes, number(0, "int32", lanes), lanes)

            def finish(p: int) -> None:
                place = bound((row + p) * d.parts + part)
                for b, total in enumerate(totals):
                    whole = load(sums[b], p * lanes, lanes)
                    for chain in range(1, chains):
                        whole = whole + load(sums[b], chain * lanes, lanes)
                    real = floats(whole, lanes)
                    real = real * splat(load(self.steps, place, 1), lanes)
                    term = fence(bound(real * load(self.scales, places[b], lanes)))
                    store(total, p * lanes, load(total, p * lanes, lanes) + term, lanes)

            if chunks > 1:
                for p in range(height):
                    start(p)
            with turns(chunks) as i:
                chunk = bound(part * chunks + i)
                for b in blocks:
                    packed = bound(d.place(block, b, chunk, d.parts * chunks))
                    if height == 1 and d.asks:
                        for later in self._later(packed, places[b]):
                            _ask(*later)
                    self._load_codes(codes[b], packed)
                for p in range(height):
                    if chunks == 1:
                        start(p)
                    digits = bound((row + p) * d.inner + chunk * d.chunk)
                    own = [(each, p * lanes) for each in sums]
                    self._add_dots(own, codes, digits, chains=chains)
                    if chunks == 1:
                        finish(p)
            if chunks > 1:
                for p in range(height):
                    finish(p)

    def _start(self, place: Prim, at: Prim) -> Prim:
        """Returns what the zero points of a block of the weight add to its sums.

        Args:
            place: Index of the sum of the digits.
            at: Where the zero points of the block begin.
        """
        lanes = self.d.cpu.lanes
        start = splat(load(self.sums, place, 1), lanes)
        if self.zeros is None:
            return start
        return start * load(self.zeros, at, lanes).astype(typed("int32", lanes))

    def _add_dots(
        self,
        sums: Sequence[tuple[Buffer, int]],
        codes: Sequence[Buffer],
        digits: Prim,
        asked: Sequence[Place] = (),
        chains: int = 1,
    ) -> None:
        """Adds the exact products of the codes of a chunk, of every block, and digits of a row.

        Args:
            sums: Of every block, a buffer and the place of its sums there.
            codes: Of every block.
            digits: Where the digits begin.
            asked: What is asked for meanwhile, spread over the dot products.
            chains: How many sums of a block, one register behind another, take turns.
        """
        d, lanes = self.d, self.d.cpu.lanes
        name, kind = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", typed("int8", 4 * lanes)
        steps, runs = d.chunk // 4, max(1, len(asked))
        for run in range(runs):
            for later in asked[run : run + 1]:
                _ask(*later)
            first = steps * run // runs
            with T.unroll(steps * (run + 1) // runs - first) as i:
                chain = tirx.floormod(i, chains) * lanes
                four = load(self.digits, digits + 4 * (first + i), 4)
                spread = splat(tirx.reinterpret("int32", four), lanes)
                spread = bound(tirx.reinterpret(kind, spread))
                for (total, at), own in zip(sums, codes, strict=True):
                    code = tirx.reinterpret(kind, load(own, (first + i) * lanes, lanes))
                    before = load(total, at + chain, lanes)
                    after = intrinsic(name, typed("int32", lanes), before, code, spread)
                    store(total, at + chain, after, lanes)

    def _three_digits(self, totals: Sequence[Buffer], block: Prim, row: Prim, height: int) -> None:
        """Adds the products of the rows, with the accuracy of float32."""
        d, lanes, blocks = self.d, self.d.cpu.lanes, range(len(totals))
        sums = [[self._register("int32") for _ in range(d.digits)] for _ in blocks]
        codes = [self._register("int32", d.step // 4) for _ in blocks]
        groups, inside = d.inner // d.size, d.size // d.step
        begin, some = self.range
        with turns(some // inside, begin // inside) as group, turns(inside) as j:
            part = bound(group * inside + j)
            places = [bound(d.place(block, b, group, groups) * lanes) for b in blocks]
            asked: list[Place] = []
            for b in blocks:
                packed = bound(d.place(block, b, part, d.parts))
                if height == 1 and d.asks:
                    asked += self._later(packed, places[b])
                self._load_codes(codes[b], packed)
            for p in range(height):
                place = bound((row + p) * d.parts + part)
                for digit in range(d.digits):
                    at = place * d.digits + digit
                    for b in blocks:
                        store(sums[b][digit], 0, self._start(at, places[b]), lanes)
                    own = [(each[digit], 0) for each in sums]
                    later = _piece(asked, digit, d.digits)
                    self._add_dots(own, codes, bound(at * d.step), later)
                for b, total in enumerate(totals):
                    real = self._real(sums[b]) * splat(load(self.steps, place, 1), lanes)
                    before = load(total, p * lanes, lanes)
                    added = fused(real, load(self.scales, places[b], lanes), before)
                    store(total, p * lanes, added, lanes)

    def _register(self, dtype: str, count: int = 1) -> Buffer:
        shape: Any = (count * self.d.cpu.lanes,)
        return T.alloc_buffer(shape, dtype)

    def _later(self, part: Prim, group: Prim) -> list[Place]:
        """Returns codes and scales of later parts: memory does not wait for a row's products.

        Args:
            part: Index of what a chunk of a row meets.
            group: Where the scales of its block begin.
        """
        d = self.d
        size = d.loads * d.register
        first = part * size + _AHEAD
        found = [(self.codes, first + i * d.register) for i in range(d.loads)]
        group = group + _AHEAD // size * d.chunk // d.size * d.cpu.lanes
        return [*found, (self.scales, group)]

    def _load_codes(self, codes: Buffer, part: Prim) -> None:
        """Fills registers with codes: four neighbours of a sum in every lane."""
        d, lanes = self.d, self.d.cpu.lanes
        mask = number(0x0F0F0F0F, "int32", lanes)
        with T.unroll(d.loads) as i:
            packed = load(self.codes, (part * d.loads + i) * d.register, d.register)
            stored = tirx.reinterpret(typed("int32", lanes), packed)
            if d.bits != _NIBBLE:
                store(codes, i * lanes, stored, lanes)
            else:
                high = tirx.shift_right(stored, number(_NIBBLE, "int32", lanes))
                store(codes, i * (2 * lanes), tirx.bitwise_and(stored, mask), lanes)
                store(codes, i * (2 * lanes) + lanes, tirx.bitwise_and(high, mask), lanes)

    def _real(self, sums: Sequence[Buffer]) -> Prim:
        """Returns the sums of all digits as float32, in units of the lowest one."""
        lanes = self.d.cpu.lanes
        up = number(float(1 << _DIGIT), "float32", lanes)
        real: Prim = None
        for chain in self.d.joint_digits:
            total = load(sums[chain[0]], 0, lanes)
            for digit in chain[1:]:
                total = tirx.shift_left(total, number(_DIGIT, "int32", lanes))
                total = total + load(sums[digit], 0, lanes)
            value = floats(total, lanes)
            real = value if real is None else fused(real, up, value)
        return real


def _piece(asked: Sequence[Place], index: int, count: int) -> Sequence[Place]:
    """Returns one of ``count`` even pieces."""
    return asked[len(asked) * index // count : len(asked) * (index + 1) // count]


def _ask(buffer: Buffer, index: Prim) -> None:
    """Asks for a line of memory, up to the second-level cache: the first has few such requests."""
    hints = (tirx.const(hint, "int32") for hint in (0, 2, 1))  # to read, second level, data
    at = T.address_of(buffer[index])
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, *hints))


# ---- nodes ----------------------------------------------------------------------------------


def match(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of float32 with a weight of 4 or 8 bits in blocks.

    Of a Dense, and of a DynamicBlockDense.
    """
    rounded = DYNAMIC_BLOCK_DENSE.of(node)
    if node.op is not DENSE and rounded is None:
        return None
    size = 0 if rounded is None else rounded.block_size
    rows, weight = rows_of(node), blocked_codes(node.operand(1), size)
    if rows is None or weight is None or not place.cpu.bytes_in:
        return None
    if not is_real(node.operand(0)) or not is_real(node.output):
        return None
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
        centre, digits > 1 or not place.cpu.reads_ahead, place.threads,
    )  # fmt: skip
    unit = np.float32(2.0 ** (-_DIGIT * (digits - 1)))
    constants: list[Array] = [_packed(description, weight)]
    each = description.inner // weight.size
    constants.append(_paired(along_lanes(place.cpu, weight.scales * unit), each))
    if centre is None:
        constants.append(_paired(along_lanes(place.cpu, weight.zeros.astype(np.uint8)), each))
    constants.append(per_lane(place.cpu, bias, 1))
    return Kernel(
        f"dense_w{weight.bits}a{8 if digits == 1 else 32}_{inner}x{units}", description, build,
        (node.operand(0),), tuple(constants), (node.output,),
        2 * (1 if rows.open else rows.count) * inner * units,
    )  # fmt: skip


def _packed(d: CodesProduct, weight: BlockedCodes) -> Array:
    """Returns codes as (pairs, chunks, registers, bytes): four neighbours of a sum in every lane.

    Of 4 bits a byte has one code in its low bits and the one that is four further on in its high
    bits.
    """
    words = by_lanes(d.cpu, d.units, d.inner * d.bits // 32, _words(weight))
    packed = _paired(words, d.inner // d.chunk).view(np.uint8)
    return packed.reshape(d.pairs, -1, 2 * d.loads, d.register)


def _paired(array: Array, parts: int) -> Array:
    """Returns (blocks, n, lanes) as (pairs, parts, 2, n * lanes / parts); a block may be added."""
    blocks, count, lanes = array.shape
    size = count // parts * lanes
    found = lasting((-(-blocks // 2), parts, 2, size), array.dtype)
    found[-1] = 0
    for i in range(2):
        own = array[i::2].reshape(-1, parts, size)
        found[: len(own), :, i] = own
    return found


def _words(weight: BlockedCodes) -> Iterator[Array]:
    """Yields words of four bytes of codes; of 4 bits every second one in the high halves."""
    for part in weight.in_bytes():
        words = np.ascontiguousarray(part).view(np.uint32)
        if weight.bits == _NIBBLE:  # codes 0 .. 7 become 0 4 1 5 2 6 3 7
            for mask, shift in ((0x0000FF00, 8), (0x00F000F0, 4)):
                swap = (words ^ (words >> np.uint32(shift))) & np.uint32(mask)
                words = words ^ swap ^ (swap << np.uint32(shift))
        yield words
