"""Copies of activations that the register tile can read without looking at borders.

Where an image is padded, stored as int8, or where the CPU multiplies 16-bit integers, the rows
that a task needs are copied first: with the zero point around them, as uint8 or widened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
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
from qdqbridge.tvm.relax.kernels.codegen.script import T

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
        row: A row.
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
