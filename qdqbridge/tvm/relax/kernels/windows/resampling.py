"""Resize of channels-last images of 8-bit codes: nearest copies pixels, linear mixes four."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.layout.constraints import channels_first
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import interpolated_axes
from qdqbridge.tvm.qnn.dialect.interpolation import linear_sides, nearest_indices
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open, batch_of, known, worth_sharing
from qdqbridge.tvm.relax.kernels.codegen.codes import (
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
    load,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace

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
