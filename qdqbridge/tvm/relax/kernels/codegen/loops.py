"""Loops of TIR: none where there is one turn, and some with bounds that are expressions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, bound, flat, load, opaque, store
from qdqbridge.tvm.relax.kernels.codegen.script import T


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
            task: The task.
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
