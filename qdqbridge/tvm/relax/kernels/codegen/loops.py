"""Loops of TIR: none where there is one turn, and some with bounds that are expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    flat,
    load,
    opaque,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func


@contextmanager
def turns(extent: Prim, start: Prim = 0, *, parallel: bool = False) -> Generator[Prim]:
    """Opens a loop; yields its variable, or the only value that it would have.

    Args:
        extent: Number of turns.
        start: The first value.
        parallel: Spread the turns over threads.
    """
    if isinstance(extent, int) and extent == 1:
        yield tirx.const(start, "int32") if isinstance(start, int) else start
        return
    kind: Any = T.parallel if parallel else T.serial
    with kind(extent) as i:
        yield i if isinstance(start, int) and start == 0 else i + start


def total_of(extents: Iterable[Prim]) -> Prim:
    """Returns the product of extents, of which some may be open; 1 of none."""
    total: Prim = 1
    for extent in extents:
        total = extent * total
    return total


def ceiling(extent: Prim, size: int) -> Prim:
    """Returns in how many parts of ``size`` an extent is, the last one perhaps smaller."""
    return -(-extent // size) if isinstance(extent, int) else (extent + (size - 1)) // size


def overlapping(count: Prim, sizes: Sequence[int], body: Callable[[Prim, int], None]) -> None:
    """Emits ``body(start, size)`` over an open count, in as few pieces of given sizes as suffice.

    They are of the largest size, and the last one of the smallest that what is left fits in; it
    begins among what is done, which is done again. Of a count below the largest size, pieces of
    the largest one that is not above it cover it.

    Args:
        count: How many there are.
        sizes: Sizes of pieces, falling to 1.
        body: Emits a piece.
    """
    count = tirx.const(count, "int64") if isinstance(count, int) else count
    most = sizes[0]
    whole, rest = bound(count // most), bound(count % most)
    enough = whole > 0
    for size, smaller in pairwise((*sizes, 0)):
        last = tirx.all(enough, rest > smaller, rest <= size).astype("int64")
        if size == most:
            number, regular = whole + last, tirx.const(True, "bool")
        else:
            larger = sizes[sizes.index(size) - 1]
            covers = tirx.all(count >= size, count < larger, whole < 1)
            number = last + covers.astype("int64") * ((count + (size - 1)) // size)
            regular = whole < 1
        with turns(number) as i:
            start = tirx.Select(regular, i * size, count - size)
            body(bound(tirx.min(start, count - size)), size)


def halves(most: int) -> tuple[int, ...]:
    """Returns a size and the powers of two below it, falling to 1."""
    return most, *(1 << power for power in range((most - 1).bit_length() - 1, -1, -1))


def each(extent: Prim, body: Callable[[Prim], None], start: Prim = 0) -> None:
    """Emits ``body(index)`` from a start on, once per turn; in a loop where these are open."""
    if isinstance(extent, int) and isinstance(start, int):
        for index in range(start, start + extent):
            body(index)
        return
    with turns(extent, start) as index:
        body(index)


def when(condition: Prim, body: Callable[[], None]) -> None:
    """Emits a body where a condition holds, which may be known already."""
    if isinstance(condition, bool):
        if condition:
            body()
        return
    with T.If(condition), T.Then():
        body()


def choice(condition: Prim, one: Prim, other: Prim) -> Prim:
    """Returns one int64 where a condition holds, which may be known already, else the other."""
    wide = [
        tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")
        for value in (one, other)
    ]
    if isinstance(condition, bool):
        return wide[0] if condition else wide[1]
    return tirx.Select(condition, *wide)


def share(task: Prim, tasks: int, extent: int) -> tuple[Prim, Prim]:
    """Returns the first element and the number of elements of one of several even shares."""
    if tasks == 1:
        return tirx.const(0, "int32"), extent
    first = task * extent // tasks
    return first, (task + 1) * extent // tasks - first


def within(first: Prim, count: Prim, low: int, length: int) -> tuple[Prim, Prim]:
    """Returns the part of a range that lies in ``low .. low + length``: start and extent."""
    if isinstance(count, int):
        return tirx.const(low, "int32"), length
    start = tirx.max(first, low)
    return start, tirx.max(tirx.min(first + count, low + length) - start, 0)


# ---- shared pieces -------------------------------------------------------------------------------
# Work of several threads that end together: who has done his share takes from his neighbour's.
#
# Even shares of what takes a fraction of a millisecond do not end at the same time, since memory
# does not serve all cores alike. TVM has no atomic instructions, and this needs none: a task goes
# through its share from the first piece on, and says that it takes a piece before it begins; then
# it takes pieces of the next task's share from the last one back, and says that too, until they
# meet. A piece is passed over only if the other one's count has it, and counts only grow: none is
# left out. What one reads of the other may be old by a moment, so that both do the piece at which
# they meet; they write the same there.


_LINE = 8
"""Elements from one count to the next: cores do not share a line of memory."""


class SharedPieces:
    """``range(extent)`` in pieces.

    Args:
        cpu: The CPU, which has a barrier.
        tasks: How many tasks share them out.
        extent: The end of the range.
    """

    def __init__(self, cpu: Cpu, tasks: int, extent: int) -> None:
        assert tasks == 1 or cpu.barrier is not None
        self._barrier = cpu.barrier
        self.tasks, self.extent = tasks, extent
        self._taken: Buffer | None = None
        if tasks > 1:  # of each share: by its task, by the one before
            self._taken = flat(T.alloc_buffer((2 * tasks * _LINE,), "int64"))

    def begin(self) -> None:
        """Nothing is taken any more; to be called before the tasks begin."""
        if self._taken is not None:
            with turns(2 * self.tasks) as i:
                store(self._taken, i * _LINE, tirx.const(0, "int64"), 1)

    def _wait(self) -> None:
        """Waits until what is written is seen by all."""
        if self._barrier is not None:
            name, numbers = self._barrier
            arguments = [tirx.const(number, "int32") for number in numbers]
            T.evaluate(tirx.call_llvm_intrin("void", name, *arguments))

    @contextmanager
    def of(self, task: Prim, size: Prim) -> Generator[tuple[Prim, Prim]]:
        """Opens the loop over the pieces of a task; yields first element and length.

        Every task does so once after ``begin``, with the same arguments.

        Args:
            size: How many elements a piece has; the last one of a share may have fewer.
        """
        if self._taken is None:
            with turns(ceiling(self.extent, size)) as i:
                first = bound(i * size)
                yield first, bound(tirx.min(self.extent - first, size))
            return
        following = bound((task + 1) % self.tasks)
        first, count = (bound(value) for value in share(task, self.tasks, self.extent))
        next_, more = (bound(value) for value in share(following, self.tasks, self.extent))
        pieces = bound(ceiling(count, size))
        others = bound(ceiling(more, size))
        with turns(pieces + others) as turn:
            own = bound(turn < pieces)
            i = bound(choice(own, turn, turn - pieces))
            whole = bound(choice(own, pieces, others))
            mine = bound(choice(own, 2 * task, 2 * following + 1) * _LINE)
            theirs = bound(choice(own, 2 * task + 1, 2 * following) * _LINE)
            left = bound(i + load(self._taken, theirs, 1) < whole)
            with turns(opaque(choice(left, 1, 0))):  # TVM's passes take longer for a condition
                store(self._taken, mine, i + 1, 1)
                # seen by the other one before the piece begins; and LLVM reads his count every time
                self._wait()
                begin = bound(choice(own, first + i * size, next_ + (whole - 1 - i) * size))
                end = choice(own, first + count, next_ + more)
                yield opaque(begin), opaque(tirx.min(end - begin, size))


# ---- broadcasting --------------------------------------------------------------------------------
# Loops over the elements of a result whose operands broadcast, with as few axes as possible.


GRAIN = 1 << 14
"""Elements that a thread should at least have to do: starting one takes some microseconds."""
Open = tuple["int | None", ...]
"""Extents; None for those that are known at run time only."""
Body = Callable[[Prim, list[Prim], int], None]
"""Writes a piece: its start in the result, its starts in the operands, and its lanes."""


def batch_of(*shapes: Open) -> Prim:
    """Returns a variable for the open first extents of shapes; 1 where there is none."""
    return tirx.Var("n", "int64") if any(None in shape for shape in shapes) else 1


def known(shape: Open, batch: Prim) -> list[Any]:
    """Returns a shape with the variable for its open extent."""
    return [batch if extent is None else extent for extent in shape]


class OpenExtents:
    """Variables for the open extents of shapes that broadcast to one: the last axes are theirs."""

    def __init__(self, *shapes: Open) -> None:
        axes = {a - len(shape) for shape in shapes for a, e in enumerate(shape) if e is None}
        self._names = {axis: tirx.Var(f"n{i}", "int64") for i, axis in enumerate(sorted(axes))}

    def of(self, shape: Open) -> list[Any]:
        """Returns a shape with variables for its open extents."""
        return [self._names[a - len(shape)] if e is None else e for a, e in enumerate(shape)]

    @property
    def product(self) -> Prim:
        """The product of all of them; 1 where there is none."""
        return total_of(self._names.values())


def worth_sharing(tasks: int, shape: Open, cost: int = 1) -> bool:
    """True where a result is large enough for several threads; an open one is taken to be.

    Args:
        tasks: How many threads there are.
        shape: Of the result.
        cost: What an element takes, in elements of a copy.
    """
    count = math.prod(extent or 1 for extent in shape)
    return tasks > 1 and (None in shape or count * cost >= 2 * GRAIN)


@dataclass(frozen=True, slots=True)
class Loops:
    """Axes of a result, neighbours merged where every operand goes through them alike.

    Attributes:
        extents: Extents of the merged axes; where the last ones are known and many, they stand
            apart from open ones before them.
        strides: For every operand, its stride along every axis; 0 where it is repeated.
    """

    extents: tuple[Prim, ...]
    strides: tuple[tuple[Prim, ...], ...]

    @classmethod
    def over(
        cls, shape: Open, operands: Sequence[Open], extents: OpenExtents | None = None
    ) -> Loops:
        """Returns the loops of operands (C-contiguous, NumPy's rule) over a result."""
        resolved = (extents or OpenExtents(shape)).of(shape)
        full = [[1] * (len(shape) - len(own)) + list(own) for own in operands]
        last = max((a + 1 for a, e in enumerate(shape) if e is None), default=0)
        apart = math.prod(resolved[last:]) >= _ROW
        merged: list[tuple[Prim, tuple[bool, ...]]] = []
        for axis, extent in enumerate(resolved):
            if isinstance(extent, int) and extent == 1:
                continue
            repeated = tuple(own[axis] == 1 for own in full)
            if merged and merged[-1][1] == repeated and not (apart and axis == last):
                merged[-1] = merged[-1][0] * extent, repeated
            else:
                merged.append((extent, repeated))
        merged = merged or [(1, (False,) * len(operands))]
        strides = [_strides([(extent, own[i]) for extent, own in merged])
                   for i in range(len(operands))]  # fmt: skip
        return cls(tuple(extent for extent, _ in merged), tuple(strides))

    def emit(self, lanes: int, tasks: int, body: Body) -> None:
        """Emits the loops.

        Args:
            lanes: Elements that are worked on at once.
            tasks: How many threads the work is to be spread over.
            body: Writes a piece.
        """
        *outer, inner = self.extents
        rows = total_of(outer)
        opened = not (isinstance(rows, int) and isinstance(inner, int))
        if tasks == 1 or (not opened and rows * inner < 2 * GRAIN):
            self._rows(rows, lanes, body, parallel=False)
        elif not isinstance(inner, int) and not outer:
            with turns(ceiling(inner, GRAIN), parallel=True) as task:
                begin = task * GRAIN
                count = tirx.min(inner - begin, GRAIN)
                self._row(tirx.const(0, "int32"), begin, count, lanes, body)
        elif opened or rows * GRAIN >= inner:
            self._rows(rows, lanes, body, parallel=True)
        else:
            self._parts(rows, lanes, body)

    def _rows(self, rows: Prim, lanes: int, body: Body, *, parallel: bool) -> None:
        """A task per row."""
        with turns(rows, parallel=parallel) as row:
            self._row(row, tirx.const(0, "int32"), self.extents[-1], lanes, body)

    def _parts(self, rows: int, lanes: int, body: Body) -> None:
        """Few long rows: a task per part of a row; the last part may overlap the one before."""
        inner = self.extents[-1]
        parts = -(-inner // GRAIN)
        part = -(-inner // (parts * lanes)) * lanes
        with turns(rows * parts, parallel=True) as task:
            begin = tirx.min(task % parts * part, inner - part)
            self._row(task // parts, begin, part, lanes, body)

    def _row(self, row: Prim, begin: Prim, count: Prim, lanes: int, body: Body) -> None:
        """Writes ``count`` elements of a row."""
        starts = [self._start(own, row) for own in self.strides]
        first = row * self.extents[-1] + begin

        def piece(i: Prim, width: int) -> None:
            own = [
                start + (begin + i) * strides[-1]
                for start, strides in zip(starts, self.strides, strict=True)
            ]
            body(first + i, own, width)

        each_piece(count, lanes, piece)

    def _start(self, strides: Sequence[Prim], row: Prim) -> Prim:
        """Returns where an operand begins in a row, given the number of the row."""
        start: Prim = tirx.const(0, "int32")
        for axis in range(len(self.extents) - 2, 0, -1):
            extent = self.extents[axis]
            start = start + row % extent * strides[axis]
            row = row // extent
        return start + row * strides[0] if len(self.extents) > 1 else start

    def read(self, operand: int, buffer: Buffer, start: Prim, lanes: int) -> Prim:
        """Returns the elements of an operand that belong to a piece of the result."""
        if isinstance(self.strides[operand][-1], int) and self.strides[operand][-1] == 0:
            return splat(load(buffer, start, 1), lanes)
        return load(buffer, start, lanes)


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an element-wise kernel.

    Attributes:
        name: Of the argument.
        shape: Its extents as they broadcast to the result's.
        dtype: Its element type.
        vector: True where it is handed over as a vector of its elements.
    """

    name: str
    shape: Open
    dtype: str
    vector: bool = False


Formula = Callable[[list[Prim], int], Prim]
"""Returns elements of a result, of as many lanes, from those of the operands."""


def elementwise(
    operands: Sequence[Operand],
    result: tuple[Open, str],
    lanes: int,
    tasks: int,
    formula: Callable[[], Formula],
) -> Any:
    """Returns the PrimFunc of operands, the arguments of a formula, and the result.

    Args:
        operands: The operands, in the order of the arguments.
        result: Extents and element type of the result.
        lanes: Elements that are worked on at once.
        tasks: How many threads the work is to be spread over.
        formula: Declares arguments of its own, and returns what is computed with them.
    """

    def body() -> None:
        shape, dtype = result
        extents = OpenExtents(shape, *(operand.shape for operand in operands))
        taken = [_argument(operand, extents) for operand in operands]
        compute = formula()
        y = T.arg("y", T.buffer(extents.of(shape), dtype))
        sources, target = [flat(buffer) for buffer in taken], flat(y)
        loops = Loops.over(shape, [operand.shape for operand in operands], extents)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            values = [loops.read(i, source, own[i], lanes) for i, source in enumerate(sources)]
            store(target, start, compute(values, lanes), lanes)

        loops.emit(lanes, tasks, piece)

    return prim_func(body)


def _argument(operand: Operand, extents: OpenExtents) -> Buffer:
    shape = extents.of(operand.shape)
    return T.arg(
        operand.name, T.buffer([math.prod(shape)] if operand.vector else shape, operand.dtype)
    )


_ROW = 64
"""Known elements at the end of open shapes from which on they are a loop of their own."""


def _strides(axes: Sequence[tuple[Prim, bool]]) -> tuple[Prim, ...]:
    """Returns the strides of an operand: extents of the result's axes, and where it is repeated."""
    strides: list[Prim] = []
    step: Prim = 1
    for extent, repeated in reversed(axes):
        strides.append(0 if repeated else step)
        step = step if repeated else extent * step
    return tuple(reversed(strides))


def strides_over(shape: Open, operand: Open) -> list[int]:
    """Returns the strides of an operand over the axes of the result that it broadcasts to."""
    full = [1] * (len(shape) - len(operand)) + list(operand)
    steps, step = [0] * len(full), 1
    for axis in range(len(full) - 1, -1, -1):
        extent = full[axis]
        steps[axis] = 0 if extent == 1 else step
        step *= 1 if extent is None else extent
    return steps
