"""Work of several threads that end together: who has done his share takes from his neighbour's.

Even shares of what takes a fraction of a millisecond do not end at the same time, since memory does
not serve all cores alike. TVM has no atomic instructions, and this needs none: a task goes through
its share from the first piece on, and says that it takes a piece before it begins; then it takes
pieces of the next task's share from the last one back, and says that too, until they meet. A piece
is passed over only if the other one's count has it, and counts only grow: none is left out. What
one reads of the other may be old by a moment, so that both do the piece at which they meet; they
write the same there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, bound, flat, load, opaque, store
from qdqbridge.tvm.relax.kernels.codegen.loops import ceiling, choice, share, turns
from qdqbridge.tvm.relax.kernels.codegen.script import T

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
