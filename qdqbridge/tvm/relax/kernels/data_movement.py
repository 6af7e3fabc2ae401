"""Nodes that only move codes, as copies between strided views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Operator, typed
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    EXPAND,
    SPACE_TO_DEPTH,
    STEPS,
    TILE,
    TRANSPOSE,
)
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.selection import PAD, SLICE, SPLIT
from qdqbridge.core.ops.shapes import sliced
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.codes import CODES, bytes_of, extents, one_batch
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    flat,
    load,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    GRAIN,
    Open,
    batch_of,
    known,
    strides_over,
    turns,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import REGISTER, permuted
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, strides_of
from qdqbridge.tvm.relax.kernels.lookup import TABLE

# ---- Codes that are laid out anew: copies between strided views, transposed in registers

_TILE = 16
"""Rows and columns of the largest tile that is transposed in registers."""


@dataclass(frozen=True, slots=True)
class CopiedBox:
    """A box of the result, and the view of an operand that it is copied from.

    Attributes:
        source: Index of the operand.
        extents: Extents of the box; None for an open first extent.
        taken: For every axis, elements of the operand from one index to the next; 0 repeats.
        given: The same of the result.
        origin: Where the view begins in the operand.
        place: Where the box begins in the result.
        mapped: Index of the table that codes go through, or -1.
        target: Index of the result.
    """

    source: int
    extents: Open
    taken: tuple[int, ...]
    given: tuple[int, ...]
    origin: int = 0
    place: int = 0
    mapped: int = -1
    target: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Results that are put together of boxes.

    Attributes:
        operands: Shapes of the operands as their tensors have them.
        outcomes: Shapes of the results.
        dtype: Element type of all.
        parts: The boxes.
        filled: Whether the first result is filled with a code first.
        tables: Number of tables.
        permutes: True to look up in registers (AVX-512 VBMI).
        tasks: How many threads the work is to be spread over.
    """

    operands: tuple[Open, ...]
    outcomes: tuple[Open, ...]
    dtype: str
    parts: tuple[CopiedBox, ...]
    filled: bool
    tables: int
    permutes: bool
    tasks: int


def build_strided_copies(move: Move) -> Any:
    """Returns a PrimFunc of the operands, the code to fill with, the tables, and the results."""

    def body() -> None:
        batch = batch_of(*move.operands, *move.outcomes)
        operands = [
            T.arg(f"x{i}", T.buffer(known(shape, batch), move.dtype))
            for i, shape in enumerate(move.operands)
        ]
        code = T.arg("code", T.buffer((1,), move.dtype)) if move.filled else None
        tables = [T.arg(f"table{i}", T.buffer((TABLE,), move.dtype)) for i in range(move.tables)]
        outcomes = [
            T.arg(f"y{i}", T.buffer(known(shape, batch), move.dtype))
            for i, shape in enumerate(move.outcomes)
        ]
        with root():
            sources, results = ([flat(buffer) for buffer in all_] for all_ in (operands, outcomes))
            if code is not None:
                _fill(move.outcomes[0], results[0], code[0], batch)
            for part in move.parts:
                table = tables[part.mapped] if part.mapped >= 0 else None
                copy = _BoxCopy(move, part, sources[part.source], results[part.target], table)
                copy.write(batch)

    return prim_func(body)


def _fill(shape: Open, result: Buffer, code: Prim, batch: Prim) -> None:
    rows = batch if None in shape else 1
    count = math.prod(extent or 1 for extent in shape)
    with turns(rows) as row:
        each_piece(
            count,
            REGISTER,
            lambda start, lanes: store(result, row * count + start, splat(code, lanes), lanes),
        )


@dataclass(frozen=True, slots=True)
class _CopiedAxis:
    extent: int | None
    taken: int
    given: int


def merged(part: CopiedBox) -> list[_CopiedAxis]:
    """Returns the axes of a box in the order of the result, neighbours merged where they can be.

    An open extent stays alone, and first.
    """
    axes = [
        _CopiedAxis(*entry)
        for entry in zip(part.extents, part.taken, part.given, strict=True)
        if entry[0] != 1
    ]
    # In the result's order: it is written from one end to the other, and read in jumps.
    closed = sorted((a for a in axes if a.extent is not None), key=lambda a: -a.given)
    found: list[_CopiedAxis] = []
    for axis in closed:
        before = found[-1] if found else None
        extent = axis.extent or 1
        if before is not None and (before.taken, before.given) == (
            axis.taken * extent,
            axis.given * extent,
        ):
            found[-1] = _CopiedAxis((before.extent or 1) * extent, axis.taken, axis.given)
        else:
            found.append(axis)
    return [*[a for a in axes if a.extent is None], *found]


class _BoxCopy:
    """Writes one box."""

    def __init__(
        self, move: Move, part: CopiedBox, source: Buffer, result: Buffer, table: Buffer | None
    ) -> None:
        self.move, self.part, self.table = move, part, table
        self.source, self.result = source, result
        self.axes = merged(part)

    def write(self, batch: Prim) -> None:
        """Writes the loops and what is inside of them."""
        closed = [axis for axis in self.axes if axis.extent is not None]
        inner, write = self._inner(closed)
        outer = [axis for axis in self.axes if axis not in inner]
        size = math.prod(axis.extent or 1 for axis in self.axes)
        # To wake threads takes longer than to copy less than that.
        shared = self.move.tasks > 1 and size >= 2 * GRAIN
        taken: Prim = tirx.const(self.part.origin, "int32")
        given: Prim = tirx.const(self.part.place, "int32")
        with ExitStack() as loops:
            for i, axis in enumerate(outer):
                extent = batch if axis.extent is None else axis.extent
                turn = loops.enter_context(turns(extent, parallel=shared and not i))
                taken, given = taken + turn * axis.taken, given + turn * axis.given
            write(bound(taken), bound(given))

    def _inner(
        self, axes: list[_CopiedAxis]
    ) -> tuple[list[_CopiedAxis], Callable[[Prim, Prim], None]]:
        """Returns the axes that are worked on in vectors, and what writes them."""
        last = axes[-1] if axes else _CopiedAxis(1, 1, 1)
        extent = last.extent or 1
        if last.given == 1 and last.taken in (0, 1):
            return [last], lambda taken, given: self._row(taken, given, extent, last.taken)
        rows = next((axis for axis in axes[:-1] if axis.taken == 1), None)
        if last.given == 1 and rows is not None and self.table is None:
            count = rows.extent or 1
            if extent <= _FEW and rows.given == extent:
                return [rows, last], lambda taken, given: self._woven(taken, given, rows, last)
            if count <= _FEW and last.taken == count:
                return [rows, last], lambda taken, given: self._unwoven(taken, given, rows, last)
            return [rows, last], lambda taken, given: self._tiles(taken, given, rows, last)
        return [last], lambda taken, given: self._single(taken, given, last)

    def _row(self, taken: Prim, given: Prim, count: int, step: int) -> None:
        """Copies neighbours to neighbours, or one element to all of them."""

        def piece(start: Prim, lanes: int) -> None:
            if step == 0:
                value = splat(self._mapped(load(self.source, taken, 1)), lanes)
                store(self.result, given + start, value, lanes)
                return
            if self.table is None or (self.move.permutes and lanes == REGISTER):
                value = load(self.source, taken + start, lanes)
                if self.table is not None:
                    value = permuted(self.table, value, self.move.dtype)
                store(self.result, given + start, value, lanes)
                return
            for lane in range(lanes):
                value = self._mapped(load(self.source, taken + start + lane, 1))
                store(self.result, given + start + lane, value, 1)

        # Without an instruction that looks up 64 codes at once they are looked up one by one.
        slow = self.table is not None and not self.move.permutes
        each_piece(count, 8 if slow else REGISTER, piece)

    def _mapped(self, code: Prim) -> Prim:
        if self.table is None:
            return code
        return load(self.table, tirx.reinterpret("uint8", code).astype("int32"), 1)

    def _single(self, taken: Prim, given: Prim, axis: _CopiedAxis) -> None:
        with turns(axis.extent or 1) as i:
            code = self._mapped(load(self.source, taken + i * axis.taken, 1))
            store(self.result, given + i * axis.given, code, 1)

    # ---- transposes: ``rows`` are neighbours in the operand, ``last`` in the result ------------

    def _woven(self, taken: Prim, given: Prim, rows: _CopiedAxis, last: _CopiedAxis) -> None:
        """Few elements lie side by side in the result: vectors of the operand are interleaved."""
        count = last.extent or 1

        def piece(start: Prim, lanes: int) -> None:
            vectors = [
                load(self.source, taken + start + i * last.taken, lanes) for i in range(count)
            ]
            value = interleaved(vectors, lanes)
            store(self.result, given + start * count, value, lanes * count)

        each_piece(rows.extent or 1, REGISTER // 2, piece)

    def _unwoven(self, taken: Prim, given: Prim, rows: _CopiedAxis, last: _CopiedAxis) -> None:
        """Few elements lie side by side in the operand: a vector of them is taken apart."""
        count = rows.extent or 1

        def piece(start: Prim, lanes: int) -> None:
            value = bound(load(self.source, taken + start * count, lanes * count))
            for i in range(count):
                chosen = [lane * count + i for lane in range(lanes)]
                part = tirx.Shuffle([value], chosen) if lanes * count > 1 else value
                store(self.result, given + start + i * rows.given, part, lanes)

        each_piece(last.extent or 1, REGISTER // 2, piece)

    def _tiles(self, taken: Prim, given: Prim, rows: _CopiedAxis, last: _CopiedAxis) -> None:
        """Square tiles; the last one of a row or column may overlap the one before."""
        down, across = rows.extent or 1, last.extent or 1
        # A power of two, as the rounds of the transposition want it.
        size = 1 << (min(down, across, _TILE).bit_length() - 1)
        with turns(-(-down // size)) as i, turns(-(-across // size)) as j:
            row = bound(tirx.min(i * size, down - size))
            column = bound(tirx.min(j * size, across - size))
            start = taken + row * rows.taken + column * last.taken
            vectors = [load(self.source, start + k * last.taken, size) for k in range(size)]
            place = given + row * rows.given + column * last.given
            for k, vector in enumerate(transposed(vectors)):
                store(self.result, place + k * rows.given, vector, size)


_FEW = 4
"""Elements that lie side by side, up to which vectors are interleaved or taken apart."""


def interleaved(vectors: Sequence[Prim], lanes: int) -> Prim:
    """Returns the first lanes of all vectors, then the second ones, and so on."""
    if len(vectors) == 1:
        return vectors[0]
    order = [row * lanes + lane for lane in range(lanes) for row in range(len(vectors))]
    return tirx.Shuffle(list(vectors), order)


def transposed(vectors: Sequence[Prim]) -> list[Prim]:
    """Returns the columns of a square of as many vectors as they have lanes, a power of two.

    Every round interleaves the lower, then the upper halves of two vectors that are half of all
    apart, which x86 does in one instruction each.
    """
    count = len(vectors)
    current = [bound(vector) for vector in vectors]
    for _ in range(count.bit_length() - 1):
        following: list[Prim] = []
        for i in range(count // 2):
            pair = [current[i], current[i + count // 2]]
            for half in (0, count // 2):
                order = [row * count + half + lane for lane in range(count // 2) for row in (0, 1)]
                following.append(bound(tirx.Shuffle(pair, order)))
        current = following
    return current


Table = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Box:
    """What a node copies.

    Attributes:
        parts: The boxes.
        fill: The code that is everywhere else; None where nothing is.
        tables: What codes go through.
    """

    parts: Sequence[CopiedBox]
    fill: int | None = None
    tables: Sequence[Table] = field(default_factory=list[Table])


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Shapes of operands and results, as they are stored."""

    operands: tuple[Open, ...]
    results: tuple[Open, ...]
    last: bool

    @property
    def taken(self) -> Open:
        """Shape of the first operand."""
        return self.operands[0]

    @property
    def result_shape(self) -> Open:
        """Shape of the first result."""
        return self.results[0]


def match_data_movement(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a node that lays out codes anew."""
    joins = node.op is CONCAT
    inputs = node.inputs if joins else node.inputs[:1]
    values = [value for value in inputs if value is not None]
    found = [extents(value.type.shape) for value in (*values, *node.outputs)]
    known = tuple(shape for shape in found if shape)
    kinds = {value.type.dtype for value in (*values, *node.outputs)}
    if len(known) < len(found) or len(kinds) > 1 or not kinds <= set(CODES):
        return None
    if any(value.is_constant for value in values) or not one_batch(*values, *node.outputs):
        return None
    shapes = _Shapes(known[: len(values)], known[len(values) :], place.channels_last)
    box = _BOXES[node.op](node, shapes)
    if box is None:
        return None
    dtype = CODES[node.output.type.dtype]
    move = Move(
        shapes.operands, shapes.results, dtype, tuple(box.parts), box.fill is not None,
        len(box.tables), place.cpu.permutes, place.threads,
    )  # fmt: skip
    fill = [] if box.fill is None else [np.asarray([box.fill], dtype)]
    constants = (*fill, *box.tables)
    return Kernel(
        node.op.name.lower(),
        move,
        build_strided_copies,
        tuple(values),
        constants,
        tuple(node.outputs),
    )


def _transpose(node: Node, attributes: TransposeAttrs, shapes: _Shapes) -> _Box | None:
    del node
    own = strides_of(shapes.taken)
    taken = tuple(own[axis] for axis in attributes.perm)
    if None in shapes.result_shape and attributes.perm[0] != 0:
        return None
    return _Box([CopiedBox(0, shapes.result_shape, taken, strides_of(shapes.result_shape))])


def _slice(node: Node, attributes: SliceAttrs, shapes: _Shapes) -> _Box | None:
    del node
    taken, origin = list(strides_of(shapes.taken)), 0
    for start, end, axis, step in zip(
        attributes.starts, attributes.ends, attributes.axes, attributes.steps, strict=True
    ):
        extent = shapes.taken[axis]
        if extent is None:
            return None
        origin += sliced(extent, start, end, step).start * taken[axis]
        taken[axis] *= step
    return _Box(
        [CopiedBox(0, shapes.result_shape, tuple(taken), strides_of(shapes.result_shape), origin)]
    )


def _split_copy_boxes(node: Node, attributes: SplitAttrs, shapes: _Shapes) -> _Box | None:
    del node
    taken, parts, origin = strides_of(shapes.taken), list[CopiedBox](), 0
    for i, (shape, size) in enumerate(zip(shapes.results, attributes.sizes, strict=True)):
        parts.append(CopiedBox(0, shape, taken, strides_of(shape), origin, target=i))
        origin += size * taken[attributes.axis]
    return None if shapes.taken[attributes.axis] is None else _Box(parts)


def _concat_boxes(node: Node, attributes: AxisAttrs, shapes: _Shapes) -> _Box | None:
    """Operands with other parameters than the result go through a table."""
    axis, result = attributes.axis, node.output.quant
    given, parts, tables, place = (
        strides_of(shapes.result_shape),
        list[CopiedBox](),
        list[Table](),
        0,
    )
    for i, shape in enumerate(shapes.operands):
        extent, value = shape[axis], node.operand(i)
        if extent is None or result is None or value.quant is None:
            return None
        part = CopiedBox(i, shape, strides_of(shape), given, 0, place)
        place += extent * given[axis]
        if not _kept(value.quant.params, result.params):
            source, target = bytes_of(value), bytes_of(node.output)
            if source is None or target is None:
                return None
            part = replace(part, mapped=len(tables))
            tables.append(quantize(dequantize(codes(source), source), target))
        parts.append(part)
    return _Box(parts, None, tables)


def _kept(source: QuantParams, result: QuantParams) -> bool:
    """True where codes stay what they are."""
    inside = source.qmin >= result.qmin and source.qmax <= result.qmax
    return source.same_mapping(result) and inside


def _pad_boxes(node: Node, attributes: PadAttrs, shapes: _Shapes) -> _Box | None:
    """Negative pads cut elements off."""
    quant = node.output.quant  # a clamp before it does not reach what is put around
    rank = len(shapes.taken)
    before, after = attributes.pads[:rank], attributes.pads[rank:]
    if attributes.mode != "constant" or quant is None or not quant.params.per_tensor:
        return None
    if None in shapes.taken and (before[0] or after[0]):
        return None
    taken, given = strides_of(shapes.taken), strides_of(shapes.result_shape)
    box = tuple(
        None if extent is None else extent + min(first, 0) + min(last, 0)
        for extent, first, last in zip(shapes.taken, before, after, strict=True)
    )
    if any(extent is not None and extent < 1 for extent in box):
        return None
    origin = sum(max(-pad, 0) * stride for pad, stride in zip(before, taken, strict=True))
    place = sum(max(pad, 0) * stride for pad, stride in zip(before, given, strict=True))
    code = quantize(np.asarray(attributes.value, np.float32), quant.params)
    return _Box([CopiedBox(0, box, taken, given, origin, place)], int(code))


def _expand(node: Node, attributes: ExpandAttrs, shapes: _Shapes) -> _Box | None:
    """The run alone tells whether an open extent that becomes a known one is repeated."""
    del node, attributes
    own = shapes.result_shape[len(shapes.result_shape) - len(shapes.taken) :]
    if any(a is None and b is not None for a, b in zip(shapes.taken, own, strict=True)):
        return None
    taken = tuple(strides_over(shapes.result_shape, shapes.taken))
    return _Box([CopiedBox(0, shapes.result_shape, taken, strides_of(shapes.result_shape))])


def _tile(node: Node, attributes: TileAttrs, shapes: _Shapes) -> _Box | None:
    """Every axis is two: the repetitions, and the elements of one."""
    del node
    repeats = attributes.repeats
    if None in shapes.taken and repeats[0] != 1:
        return None
    axes: list[tuple[int | None, int, int]] = []
    own, result = strides_of(shapes.taken), strides_of(shapes.result_shape)
    for extent, repeat, taken, given in zip(shapes.taken, repeats, own, result, strict=True):
        axes += [(repeat, 0, given * (extent or 1)), (extent, taken, given)]
    return _Box([_part(axes)])


def _part(axes: Sequence[tuple[int | None, int, int]]) -> CopiedBox:
    """Returns a box of axes with their extent and strides; an open extent comes first."""
    ordered = sorted(axes, key=lambda axis: axis[0] is not None)
    extents_, taken, given = zip(*ordered, strict=True)
    return CopiedBox(0, extents_, taken, given)


def _block_boxes(node: Node, attributes: DepthSpaceAttrs, shapes: _Shapes) -> _Box | None:
    steps, size = STEPS[node.op.name, attributes.mode], attributes.block_size
    steps = steps.channels_last() if shapes.last else steps
    extents = steps.extents(shapes.taken, size)
    taken = _strides_by_letter(steps.split, strides_of(shapes.taken), extents)
    given = _strides_by_letter(steps.joined, strides_of(shapes.result_shape), extents)
    return _Box([_part([(extents[each], taken[each], given[each]) for each in "ndhywx"])])


def _strides_by_letter(
    groups: Sequence[str], strides: Sequence[int], extents: Mapping[str, int | None]
) -> dict[str, int]:
    """Returns the stride of each axis that an axis of a tensor is split into."""
    found: dict[str, int] = {}
    for group, last in zip(groups, strides, strict=True):
        step = last
        for letter in reversed(group):
            found[letter] = step
            step *= extents[letter] or 1
    return found


_BOXES: Mapping[Operator, Callable[[Node, _Shapes], _Box | None]] = dict((
    typed(TRANSPOSE, _transpose), typed(SLICE, _slice), typed(SPLIT, _split_copy_boxes),
    typed(CONCAT, _concat_boxes), typed(PAD, _pad_boxes), typed(EXPAND, _expand), typed(TILE,
        _tile),
    typed(DEPTH_TO_SPACE, _block_boxes), typed(SPACE_TO_DEPTH, _block_boxes),
))  # fmt: skip
OPERATORS = tuple(row.name for row in _BOXES)
"""Operators that :func:`match_data_movement` knows."""
