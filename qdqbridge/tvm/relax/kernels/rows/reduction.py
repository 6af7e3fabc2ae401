"""Sums, means, largest and smallest codes over neighbouring axes, with or without axes behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open, batch_of, known, worth_sharing
from qdqbridge.tvm.relax.kernels.codegen.codes import CodesForm, TargetCodes
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    each_piece,
    flat,
    floats,
    load,
    number,
    splat,
    store,
    typed,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root

SUM, LARGEST, SMALLEST = "sum", "largest", "smallest"


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of (rows, count, inner) over its middle axis.

    Attributes:
        kind: ``sum`` (of which a mean is one with another multiplier), ``largest``, ``smallest``.
        operand: Shape of the operand as its tensor has it; None for an open first extent.
        outcome: Shape of the result as its tensor has it.
        dtype: Element type of the operand.
        form: The codes of the result; of what is picked, only the type counts.
        rows: Rows of an image; of the whole operand where no extent is open.
        count: Elements that are reduced to one.
        inner: Elements that lie between two of these.
        tasks: How many threads the work is to be spread over.
    """

    kind: str
    operand: Open
    outcome: Open
    dtype: str
    form: CodesForm
    rows: int
    count: int
    inner: int
    tasks: int


def build_reduction(reduce: Reduce) -> Any:
    """Returns a PrimFunc of ``x``, the constants of a sum, and the result.

    The constants of a sum are ``multiplier`` (float32) and the integers of
    :func:`~.codes.numbers`.
    """

    def body() -> None:
        batch = batch_of(reduce.operand)
        x = T.arg("x", T.buffer(known(reduce.operand, batch), reduce.dtype))
        numbers: tuple[Buffer, ...] = ()
        if reduce.kind == SUM:
            multiplier = T.arg("multiplier", T.buffer((1,), "float32"))
            numbers = multiplier, T.arg("integers", T.buffer((4,), "int32"))
        y = T.arg("y", T.buffer(known(reduce.outcome, batch), reduce.form.dtype))
        with root():
            writer = _ReducedRows(reduce, flat(x), flat(y), numbers)
            shared = worth_sharing(reduce.tasks, reduce.operand)
            with turns(batch * reduce.rows, parallel=shared) as row:
                if reduce.inner == 1:
                    writer.across(row)
                else:
                    writer.along(row)

    return prim_func(body)


class _ReducedRows:
    """Writes one row of (count, inner)."""

    def __init__(
        self, reduce: Reduce, source: Buffer, result: Buffer, numbers: tuple[Buffer, ...]
    ) -> None:
        self.reduce, self.source, self.result, self.numbers = reduce, source, result, numbers

    def along(self, row: Prim) -> None:
        """Vectors go along the inner elements; every lane is reduced alone."""
        reduce = self.reduce
        first = row * (reduce.count * reduce.inner)

        def piece(offset: Prim, lanes: int) -> None:
            held = self._begun(lanes)
            with turns(reduce.count) as i:
                self._add(held, load(self.source, first + i * reduce.inner + offset, lanes), lanes)
            value = self._finished(load(held, 0, lanes), lanes)
            store(self.result, row * reduce.inner + offset, value, lanes)

        each_piece(reduce.inner, reduce.form.lanes, piece)

    def across(self, row: Prim) -> None:
        """Vectors go along the reduced elements; their lanes are reduced in the end."""
        reduce = self.reduce
        lanes = min(reduce.form.lanes, 1 << (reduce.count.bit_length() - 1))
        held, first = self._begun(lanes), row * reduce.count
        whole, rest = divmod(reduce.count, lanes)
        with turns(whole) as i:
            self._add(held, load(self.source, first + i * lanes, lanes), lanes)
        single = self._begun(1)
        with turns(lanes) as i:
            self._join(single, load(held, i, 1))
        if rest:
            with turns(rest) as i:
                self._add(single, load(self.source, first + whole * lanes + i, 1), 1)
        store(self.result, row, self._finished(load(single, 0, 1), 1), 1)

    def _begun(self, lanes: int) -> Buffer:
        """Returns memory for a vector that holds nothing yet."""
        least = {SUM: 0, LARGEST: -(1 << 31), SMALLEST: (1 << 31) - 1}[self.reduce.kind]
        held = T.alloc_buffer((lanes,), "int32")
        store(held, 0, number(least, "int32", lanes), lanes)
        return held

    def _add(self, held: Buffer, code: Prim, lanes: int) -> None:
        store(held, 0, self._both(load(held, 0, lanes), wide(code, lanes)), lanes)

    def _join(self, held: Buffer, value: Prim) -> None:
        store(held, 0, self._both(load(held, 0, 1), value), 1)

    def _both(self, a: Prim, b: Prim) -> Prim:
        if self.reduce.kind == SUM:
            return a + b
        return tirx.max(a, b) if self.reduce.kind == LARGEST else tirx.min(a, b)

    def _finished(self, held: Prim, lanes: int) -> Prim:
        """Returns the codes of the result."""
        form, count = self.reduce.form, self.reduce.count
        if self.reduce.kind != SUM:
            return held.astype(typed(form.dtype, lanes))
        multiplier, integers = self.numbers
        total = held - splat(load(integers, 0, 1), lanes) * number(count, "int32", lanes)
        value = floats(total, lanes) * splat(load(multiplier, 0, 1), lanes)
        target = TargetCodes(form, multiplier, integers, 0, 1)
        return target.rounded(value, lanes)
