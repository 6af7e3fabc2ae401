"""Rows of float32 as digits of 8 bits: an integer times a scale of its own for every part of a row.

The scale is ``max |x| / 127``. One digit is what a ``DynamicBlockDense`` rounds to, bit for bit;
three are the 24 bits that a float32 has. Where an activation is infinite or no number, so is the
scale of its part, and with it the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.ops.dynamic import LAST_OF_BLOCK, SMALLEST
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    LINE,
    Buffer,
    Prim,
    ask,
    bound,
    fence,
    largest,
    load,
    nearest,
    number,
    splat,
    store,
    summed,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.weight_only.dots import Place
from qdqbridge.tvm.relax.kernels.weight_only.product import DIGIT, CodesProduct, half_unit

_AHEAD = 4
"""Lines of memory that come while the digits of a part of a row are made."""


class RowDigits:
    """Digits of some rows.

    Attributes:
        digits: Those of a part of a row side by side, the highest digit first.
        steps: The scale of each part.
        sums: Sums over a part of ``begun_digits``, times what the zero point of the weight needs.
    """

    def __init__(self, d: CodesProduct, x: Buffer, most: int) -> None:
        self.d, self.x = d, x
        self.digits = T.alloc_buffer((most * d.row_digits,), "int8")
        self.steps = T.alloc_buffer((most * d.parts,), "float32")
        self.sums = T.alloc_buffer((most * d.parts * len(d.begun_digits),), "int32")

    def write(
        self, first: Prim, count: Prim, at: Prim = 0, ahead: Place | None = None, *,
        parallel: bool = False,
    ) -> None:  # fmt: skip
        """Writes the digits of some rows.

        Args:
            first: The first of the rows.
            count: How many there are.
            at: Where the digits of the first one go.
            ahead: What is read next, and asked for meanwhile: memory does not wait for the digits.
            parallel: Spread the rows over threads.
        """
        with turns(count, parallel=parallel) as row, turns(self.d.parts) as part:
            if ahead is not None:
                stream, start = ahead
                for i in range(_AHEAD):
                    ask(stream, start + (part * _AHEAD + i) * LINE)
            self._part(first + row, at + row, part)

    def _part(self, source: Prim, row: Prim, part: Prim) -> None:
        """Writes the digits, the scale and the sums of one part of a row."""
        d, lanes = self.d, self.d.step
        value = bound(load(self.x, source * d.inner + part * lanes, lanes))
        bits = tirx.reinterpret(typed("int32", lanes), value)
        magnitude = tirx.bitwise_and(bits, number(0x7FFFFFFF, "int32", lanes))
        top = bound(tirx.reinterpret("float32", bound(largest(magnitude, lanes))))
        usual = tirx.all(top >= SMALLEST, top < float("inf"))
        nothing = tirx.const(0.0, "float32")
        inverse = tirx.Select(usual, tirx.const(float(LAST_OF_BLOCK), "float32") / top, nothing)
        inverse = bound(inverse)
        step = bound(tirx.Select(top < SMALLEST, nothing, top + (top - top)))
        last = bound(fence(tirx.const(float(LAST_OF_BLOCK), "float32")))  # TVM takes 1 / 127
        place = row * d.parts + part
        quotient = bound(step / last)
        highest = bound(value * splat(inverse, lanes))
        # by powers of two, which change no bit, after the division: no inverse overflows
        if d.digits > 1:
            quotient = quotient * tirx.const(half_unit(d.digits), "float32")
            highest = highest * number(float(1 << DIGIT * (d.digits - 1)), "float32", lanes)
        store(self.steps, place, quotient, 1)
        whole = bound(nearest(bound(highest), lanes))
        centre = 1 if d.centre is None else d.centre
        digits = self._digits(whole)
        for i, digit in enumerate(digits):
            held = d.place_of_digits(row, part, i)
            store(self.digits, held, digit.astype(typed("int8", lanes)), lanes)
        for i, begun in enumerate(d.begun_digits):
            total = bound(integers_of_digits([digits[digit] for digit in begun], lanes))
            store(self.sums, place * len(d.begun_digits) + i, summed(total, lanes) * -centre, 1)

    def _digits(self, whole: Prim) -> list[Prim]:
        """Returns balanced digits, the highest first."""
        lanes = self.d.step
        half, mask = (number(value, "int32", lanes) for value in (128, 255))
        found: list[Prim] = []
        for _ in range(self.d.digits - 1):
            digit = bound(tirx.bitwise_and(whole + half, mask) - half)
            whole = bound(tirx.shift_right(whole - digit, number(DIGIT, "int32", lanes)))
            found.insert(0, digit)
        return [whole, *found]


def integers_of_digits(digits: Sequence[Prim], lanes: int) -> Prim:
    """Returns the integers of some digits, the highest first."""
    total = digits[0]
    for digit in digits[1:]:
        total = tirx.shift_left(total, number(DIGIT, "int32", lanes)) + digit
    return total
