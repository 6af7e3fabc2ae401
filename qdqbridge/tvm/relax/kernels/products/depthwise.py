"""Depthwise convolution of channels-last images: one dot product along the rows of the kernel.

A lane of a dot product sums ``depth`` products, but a channel of a depthwise convolution meets no
other one. So ``depth`` rows of the image are interleaved first, ``[column][channel][row]``: then a
lane holds the same channel in several rows, one dot product takes several rows of the kernel, and
the same vector serves every column of the kernel and every row of the result that looks at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.shapes import covered
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    flat,
    load,
    number,
    splat,
    store,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns, worth_sharing
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.fused_operators import LARGE
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import ENDS, Extras, Requantize, Writer
from qdqbridge.tvm.relax.kernels.epilogues.requantization import (
    integer_bias,
    requantization,
    sum_scale,
)
from qdqbridge.tvm.relax.kernels.kernel import (
    Array,
    Kernel,
    KernelPlace,
    along,
    centred_weight,
    codes_of,
    extents,
    image_of,
)
from qdqbridge.tvm.relax.kernels.lookup import TABLE, table_of
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane
from qdqbridge.tvm.relax.kernels.tiles.register_tile import Tile, parts

Pair = tuple[int, int]
_SUMS = 8
"""Accumulators of a tile: enough to hide the latency of the dot product."""


@dataclass(frozen=True)
class Depthwise:
    """A convolution of (batch, rows, columns, channels), every channel alone.

    Attributes:
        operand: Shape of the activations as their tensor has it; None for an open first extent.
        outcome: Shape of the result as its tensor has it.
        batch: Images; None where that is known at run time only.
        image: Rows and columns of an image.
        signed: True where activations are int8.
        kernel: Rows and columns of the kernel.
        begin: Rows above and columns left of an image.
        result: Rows and columns of the result.
        form: How sums become codes.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    operand: tuple[int | None, ...]
    outcome: tuple[int | None, ...]
    batch: int | None
    image: Pair
    channels: int
    signed: bool
    kernel: Pair
    strides: Pair
    dilations: Pair
    begin: Pair
    result: Pair
    form: Requantize
    tasks: int

    @cached_property
    def height(self) -> int:
        """Rows of the result that are computed together."""
        # Neighbouring rows of the result share no row of the image then, so that nothing is won.
        if self.dilations[0] > 1:
            return 1
        most = min(4, self.result[0])
        return min(range(1, most + 1), key=lambda rows: (self._cost(rows), rows))

    def _cost(self, rows: int) -> float:
        """Dot products and interleaving per pixel of the result, for a number of rows."""
        groups = len(self.groups_of(rows))
        return (len(self.uses_of(rows)) * self.kernel[1] + 2 * groups * self.strides[1]) / rows

    def groups_of(self, rows: int) -> list[list[int]]:
        """Returns the rows of the image, counted from the first, that are interleaved together."""
        span = (rows - 1) * self.strides[0] + self.kernel[0]
        offsets = [i * self.dilations[0] for i in range(span)]
        depth = self.cpu.depth
        return [offsets[i : i + depth] for i in range(0, span, depth)]

    def uses_of(self, rows: int) -> list[Pair]:
        """Returns which row of the result looks at which group of interleaved rows."""
        first = [row * self.strides[0] for row in range(rows)]
        depth, last = self.cpu.depth, self.kernel[0] - 1
        return [
            (row, group)
            for row in range(rows)
            for group in range(len(self.groups_of(rows)))
            if group * depth <= first[row] + last and (group + 1) * depth > first[row]
        ]

    @cached_property
    def groups(self) -> list[list[int]]:
        """:meth:`groups_of` the rows that are computed together."""
        return self.groups_of(self.height)

    @cached_property
    def uses(self) -> list[Pair]:
        """:meth:`uses_of` the rows that are computed together."""
        return self.uses_of(self.height)

    @cached_property
    def columns(self) -> int:
        """Columns that the result looks at, padding included."""
        return (self.result[1] - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1

    @cached_property
    def blocks(self) -> int:
        """Blocks of channels, one per lane."""
        return -(-self.channels // self.cpu.lanes)

    @cached_property
    def pitch(self) -> int:
        """Elements of one column of interleaved rows."""
        return len(self.groups) * self.blocks * self.cpu.lanes * self.cpu.depth

    @cached_property
    def dtype(self) -> str:
        """Element type of interleaved rows."""
        return self.cpu.dot.source


def build_depthwise(description: Depthwise) -> Any:
    """Returns the PrimFunc ``(x, weights, bias, multiplier, ends, [table,] y)``."""
    d = description
    batch = tirx.Var("n", "int64") if d.batch is None else d.batch
    lanes = d.blocks * d.cpu.lanes

    def body() -> None:
        given, taken = (
            [batch if extent is None else extent for extent in shape]
            for shape in (d.operand, d.outcome)
        )
        x = T.arg("x", T.buffer(given, "int8" if d.signed else "uint8"))
        shape = (d.blocks, len(d.uses), d.kernel[1], d.cpu.lanes, d.cpu.depth)
        weights = T.arg("weights", T.buffer(shape, d.cpu.dot.weight))
        bias = T.arg("bias", T.buffer((lanes,), "int32"))
        multiplier = T.arg("multiplier", T.buffer((lanes,), "float32"))
        ends = T.arg("ends", T.buffer((ENDS + 1,), "int32"))
        table = T.arg("table", T.buffer((TABLE,), d.form.table)) if d.form.table else None
        y = T.arg("y", T.buffer(taken, d.form.dtype))
        with root():
            views = [flat(buffer) for buffer in (x, weights, y)]
            extras = Extras(multiplier=multiplier, numbers=ends, table=table)
            writer = Writer(d.cpu, d.form, extras, views[2])
            _Depthwise(d, views[0], views[1], bias, ends[ENDS], writer).write(batch)

    return prim_func(body)


class _Sums(Tile):
    """Accumulators of which every lane has activations of its own."""

    def add(self, pixel: int, activations: Prim, weights: Prim) -> None:
        """Adds the products of one group of rows in one column of the kernel."""
        sums, lanes = self._sums[pixel][0], self.cpu.lanes
        store(sums, 0, self.cpu.dot.added(load(sums, 0, lanes), activations, weights), lanes)


class _Depthwise:
    """Writes the loops around the tiles."""

    def __init__(
        self, d: Depthwise, x: Buffer, weights: Buffer, bias: Buffer, code: Prim, writer: Writer
    ) -> None:
        self.d, self.x, self.weights, self.bias = d, x, weights, bias
        self.code, self.writer = code, writer
        self.rows: Buffer = None

    def write(self, batch: Prim) -> None:
        """Writes all tasks: images, and groups of rows of the result."""
        d = self.d
        shares = -(-d.result[0] // d.height)
        with turns(batch * shares, parallel=worth_sharing(d.tasks, d.outcome, 2)) as task:
            image = task // shares
            # The last rows overlap those before them and are computed twice: all tiles have one
            # height.
            row = tirx.min(task % shares * d.height, d.result[0] - d.height)
            self.rows = T.alloc_buffer((d.columns * d.pitch,), d.dtype)
            self._interleave(image, row * d.strides[0] - d.begin[0])
            place = (image * d.result[0] + row) * d.result[1]
            self._blocks(place)

    # ---- interleaving -------------------------------------------------------------------------

    def _interleave(self, image: Prim, top: Prim) -> None:
        """Copies the rows from ``top`` on, ``depth`` of them side by side, padding around them."""
        d = self.d
        before = min(d.begin[1], d.columns)
        copied = max(0, min(d.image[1], d.columns - before))
        self._blank(0, before)
        self._blank(before + copied, d.columns - before - copied)
        with turns(copied) as column:
            for group, offsets in enumerate(d.groups):
                self._column(image, top, group, offsets, column, before)

    def _blank(self, first: int, count: int) -> None:
        """Fills columns with the zero point."""
        start, value = first * self.d.pitch, self.d.cpu.dot.zero_point(self.code)

        def piece(offset: Prim, lanes: int) -> None:
            store(self.rows, start + offset, splat(value, lanes), lanes)

        each_piece(count * self.d.pitch, 64, piece)

    def _column(
        self, image: Prim, top: Prim, group: int, offsets: list[int], column: Prim, before: int
    ) -> None:
        """Copies one column of the rows of a group."""
        d = self.d
        size = d.blocks * d.cpu.lanes * d.cpu.depth
        target = (column + before) * d.pitch + group * size
        rows = [top + offset for offset in offsets]
        inside = [bound(tirx.all(row >= 0, row < d.image[0])) for row in rows]
        # A row outside of the image is read from inside of it, and the zero point taken in its
        # place: a choice of vectors, not a branch in the innermost loop.
        held = [tirx.max(tirx.min(row, d.image[0] - 1), 0) for row in rows]
        starts = [
            bound(((image * d.image[0] + row) * d.image[1] + column) * d.channels) for row in held
        ]

        def piece(offset: Prim, lanes: int) -> None:
            vectors = [
                tirx.Select(
                    splat(there, lanes),
                    self._carried(load(self.x, start + offset, lanes), lanes),
                    splat(self.code.astype("uint8"), lanes),
                )
                for start, there in zip(starts, inside, strict=True)
            ]
            # Bytes of the dot product that no row fills.
            vectors += [number(0, "uint8", lanes)] * (d.cpu.depth - len(vectors))
            order = [row * lanes + lane for lane in range(lanes) for row in range(d.cpu.depth)]
            count = lanes * d.cpu.depth
            mixed = d.cpu.dot.taken(tirx.Shuffle(vectors, order), count)
            mixed = mixed.astype(typed(d.dtype, count))
            store(self.rows, target + offset * d.cpu.depth, mixed, count)

        each_piece(d.channels, 4 * d.cpu.lanes, piece)

    def _carried(self, value: Prim, lanes: int) -> Prim:
        if not self.d.signed:
            return value
        # The dot product takes unsigned activations: code + 128, whose zero point is larger by 128
        # as well, stands for the same number.
        unsigned = tirx.reinterpret(typed("uint8", lanes), value)
        return tirx.bitwise_xor(unsigned, number(128, "uint8", lanes))

    # ---- tiles --------------------------------------------------------------------------------

    def _blocks(self, place: Prim) -> None:
        """Goes over the blocks of channels; the last one may have fewer channels than lanes."""
        d = self.d
        tail = d.channels - (d.blocks - 1) * d.cpu.lanes
        whole = d.blocks if tail == d.cpu.lanes else d.blocks - 1
        if whole:
            with turns(whole) as block:
                self._columns(block, place, d.cpu.lanes)
        if whole < d.blocks:
            self._columns(tirx.const(whole, "int32"), place, tail)

    def _columns(self, block: Prim, place: Prim, tail: int) -> None:
        d = self.d
        for column, many, width in parts(d.result[1], _SUMS // min(d.height, _SUMS)).pieces():
            with turns(many) as i:
                self._tile(block, place, column + i * width, width, tail)

    def _tile(self, block: Prim, place: Prim, column: Prim, width: int, tail: int) -> None:
        """One tile: begin with the bias, go over the columns it looks at, requantize."""
        d = self.d
        tile = _Sums(d.cpu, d.height * width, 1)
        tile.begin(self.bias, block * d.cpu.lanes)
        size = d.cpu.lanes * d.cpu.depth
        weights = self._weights(block)
        for group in range(len(d.groups)):
            base = column * (d.strides[1] * d.pitch) + (group * d.blocks + block) * size
            for at in range(covered(width, d.strides[1], d.kernel[1], d.dilations[1])):
                taps = self._taps(at, width)
                if taps:
                    vector = load(self.rows, base + at * d.pitch, size)
                    lanes = bound(d.cpu.dot.in_lanes(vector, d.cpu.lanes))
                    for pixel, tap in taps:
                        for use, (row, own) in enumerate(d.uses):
                            if own == group:
                                tile.add(row * width + pixel, lanes, weights[use, tap])
        starts = [
            (place + row * d.result[1] + column + pixel) * d.channels + block * d.cpu.lanes
            for row in range(d.height)
            for pixel in range(width)
        ]
        self.writer.write(tile, starts, block * d.cpu.lanes, tail)

    def _taps(self, reach: int, width: int) -> list[Pair]:
        """Returns the pixels of a tile that look at a column, with their columns of the kernel."""
        d = self.d
        found: list[Pair] = []
        for pixel in range(width):
            tap, rest = divmod(reach - pixel * d.strides[1], d.dilations[1])
            if not rest and 0 <= tap < d.kernel[1]:
                found.append((pixel, tap))
        return found

    def _weights(self, block: Prim) -> dict[Pair, Prim]:
        """Returns the weights of a block of channels, by use of a group and column."""
        d = self.d
        size, taps = d.cpu.lanes * d.cpu.depth, d.kernel[1]
        return {
            (use, tap): load(self.weights, ((block * len(d.uses) + use) * taps + tap) * size, size)
            for use in range(len(d.uses))
            for tap in range(taps)
        }


# ---- Nodes that are depthwise convolutions, and their weights in the order of the interleaved
# rows

_RANKS = (3, 4)
_LEAST = 4
"""Channels from which lanes are filled well enough."""


def match_depthwise(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of which every channel stands alone, with a constant weight."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    if not isinstance(attributes, ConvAttrs) or x is None or not place.channels_last:
        return None
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    weight = centred_weight(node)
    if weight is None or shape is None or outcome is None or len(shape) not in _RANKS:
        return None
    channels = weight.shape[0]
    if attributes.group != channels or weight.shape[1] != 1 or shape[-1] != channels:
        return None
    scale = sum_scale(x, node.operand(1))
    result = requantization(node.output, scale)
    whole, bias = integer_bias(node, scale, channels)
    if result is None or not whole or channels < _LEAST:
        return None
    weight = weight.astype(np.int32)
    wide = weight.reshape(channels, *([1] if len(shape) == 3 else []), *weight.shape[2:])
    form = result.form
    assert isinstance(form, Requantize)
    sums = _sums(wide, x.zero_point, bias, place.cpu.dot.centre)
    if sums is None or not result.holds(sums[1]) or not _fits(wide, place):
        return None
    d = Depthwise(
        place.cpu, shape, outcome, shape[0], image_of(shape), channels, x.signed,
        (wide.shape[1], wide.shape[2]), along(attributes.strides, 1),
        along(attributes.dilations, 1),
        along(attributes.pads[: len(attributes.pads) // 2], 0), image_of(outcome), form,
        place.threads,
    )  # fmt: skip
    multiplier = per_lane(place.cpu, np.broadcast_to(result.multiplier, (channels,)), 1)
    ends = np.asarray((*result.ends, x.zero_point), np.int32)
    constants = pack(d, wide), per_lane(place.cpu, sums[0], 1), multiplier, ends
    work = 2 * (shape[0] or 1) * math.prod(d.result) * wide.size
    name = f"depthwise_{d.kernel[0]}x{d.kernel[1]}_s{d.strides[0]}_{channels}"
    name += f"_{d.result[0]}x{d.result[1]}"
    return Kernel(
        name, d, build_depthwise, (node.operand(0),), constants, (node.output,), work, extend
    )


def extend(kernel: Kernel, node: Node) -> Kernel | None:
    """Returns the kernel of a depthwise convolution that also computes a function of its codes.

    Args:
        kernel: The kernel, without such a function.
        node: The node that alone reads its result.
    """
    d = kernel.description
    assert isinstance(d, Depthwise)
    found = table_of(node) if d.cpu.permutes and not d.form.table and not d.form.signed else None
    if found is None or found[0] is not kernel.outputs[0]:
        return None
    if math.prod(extent or 1 for extent in d.outcome) < LARGE:
        return None
    form = replace(d.form, table=str(found[1].dtype))
    return replace(
        kernel, name=f"{kernel.name}_{node.op.name.lower()}", description=replace(d, form=form),
        constants=(*kernel.constants, found[1]), outputs=(node.output,),
    )  # fmt: skip


def pack(d: Depthwise, weight: Array) -> Array:
    """Returns weights of (channels, rows, columns) as (blocks, uses, columns, lanes, depth)."""
    channels, rows, columns = weight.shape
    depth = d.cpu.depth
    found = np.zeros((len(d.uses), columns, channels, depth), weight.dtype)
    for use, (row, group) in enumerate(d.uses):
        for i in range(depth):
            tap = group * depth + i - row * d.strides[0]
            if 0 <= tap < rows:
                found[use, :, :, i] = weight[:, tap].T
    lanes = padded(found, 2, d.cpu.lanes)
    split = lanes.reshape(len(d.uses), columns, d.blocks, d.cpu.lanes, depth)
    packed = split.transpose(2, 0, 1, 3, 4)
    return np.ascontiguousarray(packed, d.cpu.dot.weight)


def _sums(
    weight: Array, zero_point: int, bias: Array | None, centre: int
) -> tuple[Array, int] | None:
    """Returns what sums begin with, and a bound of all sums; None where int32 is too small."""
    flat = weight.reshape(len(weight), -1).astype(np.int64)
    start = -zero_point * flat.sum(axis=1)
    if bias is not None:
        start = start + bias.astype(np.int64)
    largest = int((255 * np.abs(flat).sum(axis=1) + np.abs(start)).max())
    if largest >= 1 << 31:
        return None
    return (start + centre * flat.sum(axis=1)).astype(np.int32), largest


def _fits(weight: Array, place: KernelPlace) -> bool:
    """True where weights have the type that the dot product takes."""
    return place.cpu.dot.weight != "int8" or (weight.min() >= -128 and weight.max() <= 127)
