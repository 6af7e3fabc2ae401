"""Loops over the elements of a result whose operands broadcast, with as few axes as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    each_piece,
    flat,
    load,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import ceiling, total_of, turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func

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
    """Variables for the open extents of shapes that broadcast to one: axes at the end are theirs.

    Args:
        shapes: The shapes.
    """

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
