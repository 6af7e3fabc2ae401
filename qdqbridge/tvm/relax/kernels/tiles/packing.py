"""Weights as the register tile reads them, and biases with the zero points folded in.

Weights of (groups, channels, runs, length), a run being activations that lie side by side, are
packed as (groups, blocks, runs, steps, lanes, depth), zeros filling the last block and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.files import lasting
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import ceiling, each, turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.tiles.register_tile import Elements

Array = NDArray[Any]
_PIECE = 1 << 20
"""Weights that are worked on at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Weights, and what belongs to their channels.

    Attributes:
        weights: (groups, blocks, parts * runs, steps, lanes, depth), int8 or int16.
        bias: int32, one entry per lane of every block, ``bias - (zx - centre) * sum(w)``, the
            centre being that of the dot product.
        parts: More than 1 where a weight is the sum of several bytes; the activations are read
            again for each.
    """

    weights: Array
    bias: Array
    parts: int


def steps(cpu: Cpu, length: int) -> int:
    """Returns the number of steps of a run."""
    return -(-length // cpu.depth)


def padded(array: Array, axis: int, multiple: int) -> Array:
    """Returns an array with zeros up to a multiple along an axis."""
    missing = -array.shape[axis] % multiple
    if not missing:
        return array
    around = [(0, missing if i == axis % array.ndim else 0) for i in range(array.ndim)]
    return np.pad(array, around)


def pack(cpu: Cpu, weights: Array, zero_point: int, bias: Array | None) -> Packed | None:
    """Packs weights, some channels after the other, so that copies stay small.

    Args:
        weights: Centred integers of at most 9 bits, (groups, channels, runs, length).
        zero_point: Of the activations, as they are stored (uint8).
        bias: int32 or int64 of (groups * channels), or None.

    Returns:
        None where a sum of products could leave int32.
    """
    groups, channels, runs, length = weights.shape
    sums = weights.sum(axis=(2, 3), dtype=np.int64)
    start = np.zeros(sums.shape, np.int64) if bias is None else bias.reshape(sums.shape)
    start = start.astype(np.int64) - zero_point * sums
    largest = 255 * _magnitudes(weights) + np.abs(start)
    if largest.max(initial=0) >= 1 << 31:
        return None
    start = start + cpu.dot.centre * sums  # modulo 2**32, as sums are
    parts = _int8_summand_count(weights) if cpu.bytes_in else 1
    blocks, count = -(-channels // cpu.lanes), steps(cpu, length)
    shape = groups, blocks, parts * runs, count, cpu.lanes, cpu.depth
    packed = lasting(shape, np.dtype(cpu.dot.weight))
    for group, first, some in _pieces(weights, cpu.lanes):
        into = packed[group, first // cpu.lanes :]
        for part, own in enumerate(_bytes(some, parts) if cpu.bytes_in else [some]):
            wide = padded(padded(own, 0, cpu.lanes), 2, cpu.depth)
            split = wide.reshape(-1, cpu.lanes, runs, count, cpu.depth).transpose(0, 2, 3, 1, 4)
            into[: len(split), part * runs : (part + 1) * runs] = split
    return Packed(packed, per_lane(cpu, start.astype(np.int32), groups), parts)


def in_tiles(weights: Array, width: int) -> Array:
    """Returns packed weights with those of ``width`` blocks side by side in every step."""
    if width == 1:
        return weights
    several = padded(weights, 1, width)
    groups, blocks, runs, count, lanes, depth = several.shape
    split = several.reshape(groups, blocks // width, width, runs, count, lanes, depth)
    found = lasting((groups, blocks // width, runs, count, width, lanes, depth), weights.dtype)
    found[:] = split.transpose(0, 1, 3, 4, 2, 5, 6)
    return found


def _pieces(weights: Array, lanes: int) -> Iterator[tuple[int, int, Array]]:
    """Yields every group's channels, some at a time: group, first channel, and them as int32."""
    groups, channels, runs, length = weights.shape
    count = lanes * max(1, _PIECE // (lanes * runs * length))
    for group in range(groups):
        for first in range(0, channels, count):
            yield group, first, weights[group, first : first + count].astype(np.int32)


def _magnitudes(weights: Array) -> Array:
    """Returns the sum of the absolute weights of every channel, (groups, channels)."""
    found = np.zeros(weights.shape[:2], np.int64)
    for group, first, some in _pieces(weights, 1):
        found[group, first : first + len(some)] = np.abs(some).sum(axis=(1, 2), dtype=np.int64)
    return found


def per_lane(cpu: Cpu, vector: Array, groups: int) -> Array:
    """Returns a vector of (groups * channels), or of one entry, as one entry per packed lane."""
    per_group = vector.reshape(groups, -1)
    return np.ascontiguousarray(padded(per_group, 1, cpu.lanes).reshape(-1))


def _int8_summand_count(weights: Array) -> int:
    """Returns of how many bytes the weights are the sum."""
    low, high = int(weights.min(initial=0)), int(weights.max(initial=0))
    return max(-(low // 128), -(-high // 127), 1)


def _bytes(weights: Array, parts: int) -> Iterator[Array]:
    """Yields the arrays of bytes whose sum weights of 9 bits are."""
    for _ in range(parts):
        part = np.clip(weights, -128, 127)
        yield part
        weights = weights - part


def reach(packed: Packed, weights: Array) -> int:
    """Returns a bound of the magnitude of every sum."""
    total = _magnitudes(weights).max(initial=0)
    return int(255 * total + np.abs(packed.bias.astype(np.int64)).max(initial=0))


# ---- Matrices that are known at run time, copied as the register tile reads them
#
# Where bytes are multiplied, the second operand has to be int8: codes of uint8 less 128. Where
# 16-bit integers are, both operands are centred. Elements beyond a matrix's inner extent are
# zero.


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A matrix of bytes.

    Attributes:
        rows: Its rows; for the second operand of a product the inner extent.
        columns: Its columns; for the first operand the inner extent.
        strides: Elements from one row to the next, and from one column. Extents and strides that
            only the run knows are expressions.
        signed: True where int8 is stored.
        elements: Element types of the product.
    """

    cpu: Cpu
    rows: Prim
    columns: Prim
    strides: tuple[Prim, Prim]
    signed: bool
    elements: Elements

    def contiguous(self, axis: int) -> bool:
        """True where the elements along an axis certainly lie side by side."""
        stride = self.strides[axis]
        return isinstance(stride, int) and stride == 1

    def value(self, stored: Prim, lanes: int, zero_point: Prim, *, second: bool) -> Prim:
        """Returns stored values as they are multiplied."""
        if self.elements.sum == "float32":
            return stored
        if self.cpu.bytes_in:
            return self._as(stored, "int8" if second else self.elements.source, lanes)
        wide = self._as(stored, "uint8", lanes).astype(typed("int16", lanes))
        centre = zero_point + 128 if second else zero_point
        return wide - splat(centre.astype("int16"), lanes)

    def _as(self, stored: Prim, kind: str, lanes: int) -> Prim:
        own = "int8" if self.signed else "uint8"
        codes = tirx.reinterpret(typed("uint8", lanes), stored) if self.signed else stored
        if own != kind:
            codes = tirx.bitwise_xor(codes, number(128, "uint8", lanes))
        return codes if kind == "uint8" else tirx.reinterpret(typed("int8", lanes), codes)


def stage_matrix(panel: Panel, source: Buffer, start: Prim, zero_point: Prim) -> Buffer:
    """Copies the first operand of a product; returns it, its rows being whole steps.

    Args:
        source: The tensor that it lies in, flat.
        start: Where it begins.
        zero_point: As a code of uint8.
    """
    depth, dtype = panel.elements.depth, panel.elements.source
    pitch = ceiling(panel.columns, depth) * depth
    room = T.alloc_buffer((panel.rows * pitch,), dtype)
    with turns(panel.rows) as row:
        begin, at = bound(start + row * panel.strides[0]), bound(row * pitch)

        def piece(column: Prim, count: int) -> None:
            stored = load(source, begin + column * panel.strides[1], count)
            store(room, at + column, panel.value(stored, count, zero_point, second=False), count)

        each_piece(panel.columns, 64 if panel.contiguous(1) else 1, piece)
        each(
            pitch - panel.columns,
            lambda column: store(room, at + column, tirx.const(0, dtype), 1),
            panel.columns,
        )
    return room


def pack_panel(panel: Panel, source: Buffer, start: Prim, zero_point: Prim) -> Buffer:
    """Packs the second operand of a product: (blocks, steps, lanes, depth).

    Args:
        panel: The matrix.
        source: The tensor that it lies in, flat.
        start: Where it begins.
        zero_point: As a code of int8.
    """
    cpu, depth = panel.cpu, panel.elements.depth
    steps, blocks = ceiling(panel.rows, depth), ceiling(panel.columns, cpu.lanes)
    room = T.alloc_buffer((blocks * steps * cpu.lanes * depth,), panel.elements.weight)
    pack = _Pack(panel, source, start, zero_point, room, steps)
    whole: Prim = panel.columns // cpu.lanes if panel.contiguous(1) else 0
    if not isinstance(whole, int) or whole:
        with turns(whole) as block:
            with turns(panel.rows // depth) as step:
                pack.interleave(block, step, depth)
            rest = panel.rows % depth
            if isinstance(rest, int):
                if rest:
                    pack.interleave(block, tirx.const(steps - 1, "int32"), rest)
            else:  # one of these, or none
                for rows in range(1, depth):
                    with turns((rest == rows).astype("int32")):
                        pack.interleave(block, steps - 1, rows)
    if not isinstance(panel.columns, int) or panel.columns - whole * cpu.lanes:
        with turns(panel.columns - whole * cpu.lanes, whole * cpu.lanes) as column:
            pack.column(column)
    return room


class _Pack:
    def __init__(
        self, panel: Panel, source: Buffer, start: Prim, zero_point: Prim, room: Buffer, steps: Prim
    ) -> None:
        self.panel, self.source, self.start = panel, source, start
        self.zero_point, self.room, self.steps = zero_point, room, steps
        self.dtype = panel.elements.weight

    def interleave(self, block: Prim, step: Prim, rows: int) -> None:
        """Packs one step of a block whose columns lie side by side, of as many as depth rows."""
        panel, cpu = self.panel, self.panel.cpu
        lanes, depth = cpu.lanes, panel.elements.depth
        vectors: list[Prim] = []
        for i in range(rows):
            at = self.start + (step * depth + i) * panel.strides[0] + block * lanes
            stored = load(self.source, at, lanes)
            vectors.append(panel.value(stored, lanes, self.zero_point, second=True))
        vectors += [number(0, self.dtype, lanes)] * (depth - rows)
        order = [row * lanes + lane for lane in range(lanes) for row in range(depth)]
        target = (block * self.steps + step) * (lanes * depth)
        store(self.room, target, tirx.Shuffle(vectors, order), lanes * depth)

    def column(self, column: Prim) -> None:
        """Packs one column, whose elements lie side by side or not."""
        panel, cpu = self.panel, self.panel.cpu
        lanes, depth = cpu.lanes, panel.elements.depth
        base = column // lanes * (self.steps * lanes * depth) + column % lanes * depth
        first = self.start + column * panel.strides[1]
        whole, rest = panel.rows // depth, panel.rows % depth
        size = depth if panel.contiguous(0) else 1

        def element(row: Prim) -> None:
            stored = load(self.source, first + (whole * depth + row) * panel.strides[0], 1)
            value = panel.value(stored, 1, self.zero_point, second=True)
            store(self.room, base + whole * (lanes * depth) + row, value, 1)

        def nothing(row: Prim) -> None:
            at = base + whole * (lanes * depth) + row
            store(self.room, at, tirx.const(0, self.dtype), 1)

        if not isinstance(whole, int) or whole:
            with turns(whole) as step:
                for i in range(0, depth, size):
                    stored = load(self.source, first + (step * depth + i) * panel.strides[0], size)
                    value = panel.value(stored, size, self.zero_point, second=True)
                    store(self.room, base + step * (lanes * depth) + i, value, size)
        each(rest, element)
        each((depth - rest) % depth, nothing, rest)
