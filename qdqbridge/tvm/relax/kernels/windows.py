"""Operators over windows of channels-last images of 8-bit codes: pools and Resize."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.layout import channels_first
from qdqbridge.core.ops.attributes import PoolAttrs, ResizeAttrs
from qdqbridge.core.ops.pooling import MAX_POOL, window_counts
from qdqbridge.core.ops.reduction import reduction_of
from qdqbridge.core.ops.resize import interpolated_axes
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.dialect.resize import linear_sides, nearest_indices
from qdqbridge.tvm.relax.kernels import normalization
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    BYTES,
    CodesForm,
    TargetCodes,
    arguments,
    bytes_of,
    extents,
    form_of,
    numbers,
    storage,
)
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    fence,
    flat,
    floats,
    load,
    number,
    splat,
    store,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import Open, batch_of, known, turns, worth_sharing
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, along, image_of
from qdqbridge.tvm.relax.kernels.normalization import LARGEST, SMALLEST, SUM, Reduce

# ---- pooling -------------------------------------------------------------------------------------
# MaxPool and AveragePool of channels-last images of 8-bit codes, vectors along the channels.


Pair = tuple[int, int]
_UNROLLED = 25
"""Elements of a window that are written out; a larger one is a loop."""


@dataclass(frozen=True, slots=True)
class PoolKernel:
    """Windows over (batch, rows, columns, channels).

    Attributes:
        largest: True for the largest code of a window, False for the average.
        operand: Shape of the operand as its tensor has it; None for an open first extent.
        outcome: Shape of the result as its tensor has it.
        dtype: Element type of the operand.
        form: The codes of the result; of what is picked, only the type counts.
        image: Rows and columns of an image.
        kernel: Rows and columns of a window.
        begin: Rows above and columns left of an image.
        result: Rows and columns of the result.
        uniform: True where every window averages over as many elements.
        tasks: How many threads the work is to be spread over.
    """

    largest: bool
    operand: Open
    outcome: Open
    dtype: str
    form: CodesForm
    image: Pair
    channels: int
    kernel: Pair
    strides: Pair
    dilations: Pair
    begin: Pair
    result: Pair
    uniform: bool
    tasks: int


def build_pooling(pool: PoolKernel) -> Any:
    """Returns a PrimFunc of ``x``, the constants of an average, and the result.

    The constants of an average are ``multipliers``, float32 of every window or of all, and
    the integers of :func:`~.codes.numbers`.
    """

    def body() -> None:
        batch = batch_of(pool.operand)
        x = T.arg("x", T.buffer(known(pool.operand, batch), pool.dtype))
        numbers: tuple[Buffer, ...] = ()
        if not pool.largest:
            windows = 1 if pool.uniform else pool.result[0] * pool.result[1]
            multipliers = T.arg("multipliers", T.buffer((windows,), "float32"))
            numbers = multipliers, T.arg("integers", T.buffer((4,), "int32"))
        y = T.arg("y", T.buffer(known(pool.outcome, batch), pool.form.dtype))
        with root():
            source, result = flat(x), flat(y)
            images = known(pool.operand, batch)[0]
            shared = worth_sharing(pool.tasks, pool.outcome, 2)
            lines = turns(images * pool.result[0], parallel=shared)
            with lines as line, turns(pool.result[1]) as column:
                _Window(pool, source, result, line, column).write(numbers)

    return prim_func(body)


class _Window:
    """One window: all channels of one pixel of the result."""

    def __init__(
        self, pool: PoolKernel, source: Buffer, result: Buffer, line: Prim, column: Prim
    ) -> None:
        self.pool, self.source, self.result = pool, source, result
        self.image, row = line // pool.result[0], line % pool.result[0]
        self.place = bound(line * pool.result[1] + column)
        self.first = [
            bound(where * stride - begin)
            for where, stride, begin in zip((row, column), pool.strides, pool.begin, strict=True)
        ]

    def write(self, numbers: tuple[Buffer, ...]) -> None:
        """Writes all channels."""
        pool = self.pool
        write = self._largest if pool.largest else self._average(*numbers)
        each_piece(pool.channels, pool.form.lanes, write)

    def _taps(self, visit: Callable[[Prim, Prim], None]) -> None:
        """Calls ``visit(start, inside)`` for every element of the window.

        ``start`` is the nearest element of the image, ``inside`` tells if it is the one meant.
        """
        pool = self.pool
        rows, columns = pool.kernel
        if rows * columns <= _UNROLLED:
            # Written out, the tests of taps that are always inside fold away.
            for i, j in itertools.product(range(rows), range(columns)):
                visit(*self._tap(i, j))
            return
        with turns(rows) as i, turns(columns) as j:
            visit(*self._tap(i, j))

    def _tap(self, i: Prim, j: Prim) -> tuple[Prim, Prim]:
        pool = self.pool
        where = [
            first + tap * dilation
            for first, tap, dilation in zip(self.first, (i, j), pool.dilations, strict=True)
        ]
        held = [
            tirx.max(tirx.min(at, extent - 1), 0)
            for at, extent in zip(where, pool.image, strict=True)
        ]
        # Every tap reads inside of the image, and what is not meant is chosen away: no branch per
        # element.
        inside = tirx.all(*(a == b for a, b in zip(where, held, strict=True)))
        pixel = (self.image * pool.image[0] + held[0]) * pool.image[1] + held[1]
        return bound(pixel * pool.channels), inside

    def _largest(self, offset: Prim, lanes: int) -> None:
        """Outside of the image is the smallest code, which never wins."""
        pool, dtype = self.pool, self.pool.dtype
        lowest = number(0 if dtype == "uint8" else -128, dtype, lanes)
        best = T.alloc_buffer((lanes,), dtype)
        store(best, 0, lowest, lanes)

        def visit(start: Prim, inside: Prim) -> None:
            code = load(self.source, start + offset, lanes)
            code = tirx.Select(splat(inside, lanes), code, lowest)
            store(best, 0, tirx.max(load(best, 0, lanes), code), lanes)

        self._taps(visit)
        start = self.place * pool.channels + offset
        store(self.result, start, load(best, 0, lanes), lanes)

    def _average(self, multipliers: Buffer, integers: Buffer) -> Callable[[Prim, int], None]:
        """Outside of the image is the zero point, which adds nothing."""
        pool = self.pool
        windows = pool.result[0] * pool.result[1]
        own = tirx.const(0, "int32") if pool.uniform else self.place % windows
        target = TargetCodes(pool.form, multipliers, integers, 0, 1)

        def write(offset: Prim, lanes: int) -> None:
            zero_point = splat(load(integers, 0, 1), lanes)
            sums = T.alloc_buffer((lanes,), "int32")
            taps = pool.kernel[0] * pool.kernel[1]
            # All zero points are taken off at once, since taps outside of the image add one as
            # well.
            store(sums, 0, zero_point * number(-taps, "int32", lanes), lanes)

            def visit(start: Prim, inside: Prim) -> None:
                code = wide(load(self.source, start + offset, lanes), lanes)
                code = tirx.Select(splat(inside, lanes), code, zero_point)
                store(sums, 0, load(sums, 0, lanes) + code, lanes)

            self._taps(visit)
            multiplier = splat(load(multipliers, own, 1), lanes)
            value = floats(load(sums, 0, lanes), lanes) * multiplier
            start = self.place * pool.channels + offset
            store(self.result, start, target.rounded(value, lanes), lanes)

        return write


# ---- Nodes that average, add, or pick the largest or smallest code of windows or whole axes

_REACH = 1 << 30
"""Rounded averages below it fit int32 with a zero point added."""
_RANKS = (3, 4)


def match_window(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of MaxPool and AveragePool over one or two spatial axes."""
    attributes, largest = node.attributes, node.op is MAX_POOL
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    form = _form(node, place, moved=largest)
    # Vectors lie along the channels, which have to be neighbours.
    if not isinstance(attributes, PoolAttrs) or not place.channels_last or form is None:
        return None
    if shape is None or outcome is None or len(shape) not in _RANKS:
        return None
    averaged = () if largest else _averaged(node, _populations(attributes, shape))
    if averaged is None:
        return None
    # Padding at the ends follows from the extents of operand and result; only that before counts.
    pool = PoolKernel(
        largest, shape, outcome, _dtype(node), form, image_of(shape), shape[-1] or 0,
        along(attributes.kernel_shape, 1), along(attributes.strides, 1),
        along(attributes.dilations, 1), along(attributes.pads[: len(attributes.pads) // 2], 0),
        image_of(outcome), bool(averaged) and averaged[0].size == 1, place.threads,
    )  # fmt: skip
    name = f"{'max' if largest else 'average'}_pool_{pool.kernel[0]}x{pool.kernel[1]}"
    return Kernel(name, pool, build_pooling, (node.operand(0),), averaged, (node.output,))


_KINDS = {"mean": SUM, "sum": SUM, "max": LARGEST, "min": SMALLEST}
"""Of a reduction, by TVM's name."""


def match_axes(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a reduction over neighbouring axes."""
    kind = _KINDS.get(node.op.tvm)
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    form = _form(node, place, moved=kind != SUM)
    if kind is None or shape is None or outcome is None or form is None:
        return None
    first = 1 if place.channels_last else 2
    axes = tuple(sorted(reduction_of(node, range(first, first + len(shape) - 2)).axes))
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)) or None in (shape[i] for i in axes):
        return None
    rows, count, inner = (
        math.prod(extent or 1 for extent in part)
        for part in (shape[: axes[0]], shape[axes[0] : axes[-1] + 1], shape[axes[-1] + 1 :])
    )
    number = np.asarray([1 if node.op.tvm == "sum" else count])
    averaged = _averaged(node, number, terms=count) if kind == SUM else ()
    if averaged is None:
        return None
    reduce = Reduce(kind, shape, outcome, _dtype(node), form, rows, count, inner, place.threads)
    name = node.op.name.lower()
    return Kernel(
        name, reduce, normalization.build_reduction, (node.operand(0),), averaged, (node.output,)
    )


def _form(node: Node, place: KernelPlace, *, moved: bool) -> CodesForm | None:
    """Returns the form of the result where it and the operand are 8-bit codes."""
    source, result = node.operand(0).quant, node.output.quant
    if source is None or result is None or source.params.storage_dtype not in BYTES:
        return None
    if moved:
        dtype = BYTES[source.params.storage_dtype]
        same = source.params.same_mapping(result.params)
        plain = CodesForm(place.cpu, dtype, multiplies=False, shifted=False, clamped=False)
        return plain if same else None
    params = bytes_of(node.output)
    return (
        None if params is None or bytes_of(node.operand(0)) is None else form_of(params, place.cpu)
    )


def _dtype(node: Node) -> str:
    return BYTES[node.operand(0).type.dtype]


def _averaged(
    node: Node, counts: NDArray[Any], *, terms: int = 1
) -> tuple[NDArray[Any], ...] | None:
    """Returns the multipliers of sums, and zero points; None where int32 could be too small."""
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    assert source is not None and result is not None
    scale = np.float64(source.scale)
    # In float64 and rounded once, as the contract has it.
    exact = scale / (np.float64(result.scale) * counts.astype(np.float64))
    multipliers = exact.astype(np.float32)
    largest = 255 * max(int(counts.max()), terms)
    if largest >= 1 << 31 or largest * float(multipliers.max()) >= _REACH:
        return None
    return np.ascontiguousarray(multipliers), numbers(result, source)[1]


def _populations(attributes: PoolAttrs, shape: Open) -> NDArray[np.int64]:
    """Returns how many elements every window averages over; one number where all agree."""
    image = np.zeros((1, 1, *(extent or 1 for extent in shape[1:-1])), np.uint8)
    counts = window_counts(attributes, image).reshape(-1)
    return counts[:1] if (counts == counts[0]).all() else counts


# ---- Resize of channels-last images of 8-bit codes: nearest copies pixels, linear mixes four -----


Table = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Resample:
    """A Resize of (batch, rows, columns, channels).

    Attributes:
        linear: True to mix neighbours along both axes, False to copy the nearest pixel.
        operand: Shape of the operand; None for an open first extent.
        outcome: Shape of the result.
        dtype: Element type of the operand.
        form: The codes of the result; of copies, only the type counts.
        tasks: How many threads the work is to be spread over.
    """

    linear: bool
    operand: Open
    outcome: Open
    dtype: str
    form: CodesForm
    tasks: int

    @property
    def image(self) -> tuple[int, int, int]:
        """Rows, columns and channels of the operand."""
        rows, columns, channels = self.operand[1:]
        return rows or 0, columns or 0, channels or 0

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return self.outcome[1] or 0, self.outcome[2] or 0


def build_resampling(resample: Resample) -> Any:
    """Returns a PrimFunc of ``x``, the tables of rows and columns, numbers, and the result.

    ``nearest``: ``rows`` and ``columns``, the pixel that each comes from (int32). ``linear``: for
    rows, then columns, the lower and upper neighbours (int32, one after the other) and their
    weights (float32); then :func:`~.codes.numbers`.
    """
    r, sides = resample, 2 if resample.linear else 1

    def body() -> None:
        batch = batch_of(r.operand)
        x = T.arg("x", T.buffer(known(r.operand, batch), r.dtype))
        tables: list[Buffer] = []
        for name, extent in zip(("rows", "columns"), r.result, strict=True):
            tables.append(T.arg(name, T.buffer((sides * extent,), "int32")))
            if r.linear:
                tables.append(T.arg(f"{name}_weights", T.buffer((sides * extent,), "float32")))
        target = arguments(r.form) if r.linear else None
        y = T.arg("y", T.buffer(known(r.outcome, batch), r.form.dtype))
        with root():
            write = (
                _NearestCopy(r, flat(x), flat(y), tables)
                if target is None
                else _Mix(r, flat(x), flat(y), tables, target)
            )
            images = known(r.operand, batch)[0]
            shared = worth_sharing(r.tasks, r.outcome, 4 if r.linear else 1)
            lines = turns(images * r.result[0], parallel=shared)
            with lines as line, turns(r.result[1]) as column:
                write.pixel(line // r.result[0], line % r.result[0], column)

    return prim_func(body)


class _NearestCopy:
    """Copies the nearest pixel."""

    def __init__(
        self, resample: Resample, source: Buffer, result: Buffer, tables: list[Buffer]
    ) -> None:
        self.r, self.source, self.result, self.tables = resample, source, result, tables

    def pixel(self, image: Prim, row: Prim, column: Prim) -> None:
        """Writes all channels of a pixel."""
        rows, columns, channels = self.r.image
        place = bound(((image * self.r.result[0] + row) * self.r.result[1] + column) * channels)
        own = load(self.tables[0], row, 1), load(self.tables[1], column, 1)
        start = bound(((image * rows + own[0]) * columns + own[1]) * channels)

        def piece(offset: Prim, lanes: int) -> None:
            store(self.result, place + offset, load(self.source, start + offset, lanes), lanes)

        each_piece(channels, 64, piece)


class _Mix:
    """Mixes four pixels, in the order of :mod:`qdqbridge.tvm.qnn.dialect.resize`."""

    def __init__(
        self,
        resample: Resample,
        source: Buffer,
        result: Buffer,
        tables: list[Buffer],
        target: TargetCodes,
    ) -> None:
        self.r, self.source, self.result, self.tables = resample, source, result, tables
        self.codes, self.target = target.source(), target

    def pixel(self, image: Prim, row: Prim, column: Prim) -> None:
        """Writes all channels of a pixel."""
        channels = self.r.image[2]
        place = bound(((image * self.r.result[0] + row) * self.r.result[1] + column) * channels)
        corners = [
            self._corner(image, row + i * self.r.result[0], column + j * self.r.result[1])
            for i in (0, 1)
            for j in (0, 1)
        ]

        def piece(offset: Prim, lanes: int) -> None:
            total: Prim = None
            for start, weight in corners:
                value = self.codes.real(load(self.source, start + offset, lanes), lanes)
                term = fence(splat(weight, lanes) * value)
                total = term if total is None else total + term
            codes = self.target.quantized(bound(total), lanes)
            store(self.result, place + offset, codes, lanes)

        each_piece(channels, self.r.form.lanes, piece)

    def _corner(self, image: Prim, row: Prim, column: Prim) -> tuple[Prim, Prim]:
        """Returns where a neighbour begins, and its weight."""
        rows, columns, channels = self.r.image
        where, weights, across, across_weights = self.tables
        own = load(where, row, 1), load(across, column, 1)
        start = bound(((image * rows + own[0]) * columns + own[1]) * channels)
        return start, bound(load(across_weights, column, 1) * load(weights, row, 1))


# ---- nodes ----------------------------------------------------------------------------------


def match_resize(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Resize of images, nearest or linear, within their borders."""
    found = _images(node, place)
    if found is None:
        return None
    attributes, shape, outcome = found
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    assert source is not None and result is not None
    if attributes.mode == "linear":
        if interpolated_axes(attributes, _first(shape)) != (2, 3):
            return None
        form = form_of(result, place.cpu)
        constants = _linear_constants(attributes, _first(shape)) + numbers(result, source)
    else:
        tables = nearest_pixels(node, place)
        if tables is None:
            return None
        form = CodesForm(place.cpu, storage(source), multiplies=False, shifted=False, clamped=False)
        constants = [np.ascontiguousarray(table, np.int32) for table in tables]
    resample = Resample(
        attributes.mode == "linear", shape, outcome, storage(source), form, place.threads
    )
    name = f"resize_{attributes.mode}_{outcome[1]}x{outcome[2]}"
    return Kernel(
        name, resample, build_resampling, (node.operand(0),), tuple(constants), (node.output,)
    )


def nearest_pixels(node: Node, place: KernelPlace) -> tuple[Table, Table] | None:
    """Returns which row, and which column, of an image those of a nearest Resize are copies of.

    Returns:
        None where the node is none of images of bytes, or changes codes.
    """
    found = _images(node, place)
    if found is None or found[0].mode == "linear":
        return None
    attributes, shape, _ = found
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    assert source is not None and result is not None
    own = codes(source)
    if source.storage_dtype is not result.storage_dtype:
        return None
    if not np.array_equal(quantize(dequantize(own, source), result), own):
        return None
    image = _first(shape)
    rows, columns = (nearest_indices(attributes, image[axis], axis) for axis in (2, 3))
    return rows, columns


def _images(node: Node, place: KernelPlace) -> tuple[ResizeAttrs, Open, Open] | None:
    """Returns the logical attributes, and both shapes, of a Resize of images of bytes alone."""
    x, attributes = node.operand(0), _logical(node, place)
    shape, outcome = extents(x.type.shape), extents(node.output.type.shape)
    if attributes is None or shape is None or outcome is None or len(shape) != 4:
        return None
    if bytes_of(x) is None or bytes_of(node.output) is None:
        return None
    return (attributes, shape, outcome) if outcome[::3] == shape[::3] else None


def _first(shape: Open) -> tuple[int, int, int, int]:
    """Returns the shape of the first image, channels-first."""
    return 1, shape[3] or 1, shape[1] or 1, shape[2] or 1


def _logical(node: Node, place: KernelPlace) -> ResizeAttrs | None:
    """Returns the attributes of a Resize over the axes of a channels-first image."""
    rank, attributes = node.operand(0).rank, node.attributes
    if not place.channels_last or rank != 4 or node.operand(0).is_constant:
        return None
    logical = permuted_attributes(attributes, channels_first(rank))
    assert isinstance(logical, ResizeAttrs)
    crops = logical.coordinate_transformation_mode == "tf_crop_and_resize"
    return None if crops or logical.mode == "cubic" or logical.antialias else logical


def _linear_constants(attributes: ResizeAttrs, image: tuple[int, ...]) -> list[Table]:
    """Returns neighbours and weights of rows, then of columns."""
    found: list[Table] = []
    for axis in (2, 3):
        indices, weights = linear_sides(attributes, image[axis], axis)
        found.append(np.concatenate(indices).astype(np.int32))
        found.append(np.concatenate(weights).astype(np.float32))
    return found
