"""Fourier transforms; a complex tensor is a real one with a last axis of two more."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op


def real_transform(c: SubgraphConversion, op: Op) -> None:
    """RFFT2D over the last two axes, padded or cut to the lengths; half of the last one."""
    rows, columns = c.numbers(op, 1)
    rank, x = c.rank(op.inputs[0]), c.real(op.inputs[0])
    given = c.shape(op.inputs[0])[-2:]
    for axis, (extent, length) in enumerate(zip(given, (rows, columns), strict=True), rank - 2):
        if extent < 0:
            raise UnknownForm("it transforms an open extent")
        x = _fitted(c, x, axis, extent, length, rank)
    one = c.to.constant(np.asarray([rank], np.int64))
    x = c.to.node("Unsqueeze", [x, one])
    last = c.to.constant(np.int64(rank - 1))
    x = c.to.node("DFT", [x, "", last], label=c.label(op), onesided=1)
    if rows > 1:
        x = c.to.node("DFT", [x, "", c.to.constant(np.int64(rank - 2))], label=c.label(op))
    c.put_stored(op, x)


def _fitted(c: SubgraphConversion, x: str, axis: int, extent: int, length: int, rank: int) -> str:
    if extent == length:
        return x
    if extent > length:
        bounds = [c.to.constant(np.asarray([n], np.int64)) for n in (0, length, axis)]
        return c.to.node("Slice", [x, *bounds])
    amounts = np.zeros(2 * rank, np.int64)
    amounts[rank + axis] = length - extent
    return c.to.node("Pad", [x, c.to.constant(amounts)])


def part(index: int) -> Row:
    """Returns the row of REAL and IMAG."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        place = c.to.constant(np.int64(index))
        x = c.stored(op.inputs[0])
        c.put_stored(op, c.to.node("Gather", [x, place], label=c.label(op), axis=-1))

    return convert


def magnitude(c: SubgraphConversion, op: Op) -> None:
    """COMPLEX_ABS."""
    axes = c.to.constant(np.asarray([-1], np.int64))
    x = c.stored(op.inputs[0])
    c.put_stored(op, c.to.node("ReduceL2", [x, axes], label=c.label(op), keepdims=0))


ROWS: Mapping[str, Row] = {
    "COMPLEX_ABS": magnitude,
    "IMAG": part(1),
    "REAL": part(0),
    "RFFT2D": real_transform,
}
