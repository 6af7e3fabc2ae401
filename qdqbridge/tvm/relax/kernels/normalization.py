"""Layer, RMS, instance and group normalization: rows of codes of 8 or 16 bits.

What is computed, and in which order, is :mod:`qdqbridge.tvm.qnn.dialect.normalization`'s: exact
integer sums of codes and squares, float64 per row, float32 per element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs
from qdqbridge.core.ops.normalization import RMS_NORMALIZATION
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    CodesForm,
    TargetCodes,
    arguments,
    form_of,
    numbers,
    storage,
    words_of,
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
    summed,
    typed,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    Open,
    OpenExtents,
    batch_of,
    known,
    turns,
    worth_sharing,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, any_open

_MOMENTS = 5
"""Entries of ``moments``."""


@dataclass(frozen=True, slots=True)
class Normalize:
    """Rows of codes that are normalized.

    Attributes:
        centred: False for RMSNormalization, which subtracts no mean.
        shape: Extents of operand and result; open ones are None.
        dtype: Element type of the operand.
        form: The codes of the result.
        rows: Rows; those of one element of the open extents.
        count: Elements of a row.
        channels: Channels of a row, which have one factor each; 0 where every element has its own.
        sums: Types in which lanes are added up, and the sums of lanes.
        shifts: False where nothing is added behind the factors.
        tasks: How many threads the work is to be spread over.
    """

    centred: bool
    shape: Open
    dtype: str
    form: CodesForm
    rows: int
    count: int
    channels: int
    sums: tuple[str, str]
    shifts: bool
    tasks: int


def build_quantized_norm(normalize: Normalize) -> Any:
    """Returns a PrimFunc of ``x, gamma, beta, moments``, :func:`~.codes.numbers` and the result.

    ``gamma`` and ``beta`` (only with ``shifts``) are float32, of a row or of all channels.
    ``moments`` are float64: n, n * n, the square of the scale of ``x``, epsilon, and the scale.
    """

    def body() -> None:
        extents = OpenExtents(normalize.shape)
        shape = extents.of(normalize.shape)
        x = T.arg("x", T.buffer(shape, normalize.dtype))
        names = ("gamma", "beta") if normalize.shifts else ("gamma",)
        factors = shape[1] if normalize.channels else normalize.count
        affine = [T.arg(name, T.buffer((factors,), "float32")) for name in names]
        moments = T.arg("moments", T.buffer((_MOMENTS,), "float64"))
        target = arguments(normalize.form)
        y = T.arg("y", T.buffer(shape, normalize.form.dtype))
        with root():
            writer = _NormalizedRow(normalize, flat(x), flat(y), affine, moments, target)
            shared = worth_sharing(normalize.tasks, normalize.shape, 2)
            with turns(extents.product * normalize.rows, parallel=shared) as row:
                writer.write(row)

    return prim_func(body)


class _NormalizedRow:
    """Writes one row."""

    def __init__(
        self,
        normalize: Normalize,
        source: Buffer,
        result: Buffer,
        affine: list[Buffer],
        moments: Buffer,
        target: TargetCodes,
    ) -> None:
        self.normalize, self.source, self.result = normalize, source, result
        self.affine, self.moments, self.target = affine, moments, target
        self.zero_point = target.source().zero_point

    def write(self, row: Prim) -> None:
        """Writes a row."""
        normalize, start = self.normalize, row * self.normalize.count
        mean, inverse = self._statistics(*self._sums(start))
        if not normalize.channels:
            self._part(start, normalize.count, (mean, inverse), None)
            return
        count = normalize.count // normalize.channels
        groups = (normalize.shape[1] or 1) // normalize.channels
        with turns(normalize.channels) as channel:
            index = row % groups * normalize.channels + channel
            self._part(start + channel * count, count, (mean, inverse), index)

    def _part(self, start: Prim, count: int, row: tuple[Prim, Prim], channel: Prim | None) -> None:
        """Writes ``count`` elements, all with the factors of a channel, or each with its own."""
        normalize, (mean, inverse) = self.normalize, row

        def factor(index: int, offset: Prim, lanes: int) -> Prim:
            if channel is None:
                return load(self.affine[index], offset, lanes)
            return splat(load(self.affine[index], channel, 1), lanes)

        def piece(offset: Prim, lanes: int) -> None:
            value = floats(self._code(start + offset, lanes), lanes)
            if normalize.centred:
                value = value - splat(mean, lanes)
            value = value * splat(inverse, lanes) * factor(0, offset, lanes)
            if normalize.shifts:
                # The contract rounds the product before the sum; without a fence LLVM makes one FMA
                # of both.
                value = fence(value) + factor(1, offset, lanes)
            store(self.result, start + offset, self.target.quantized(bound(value), lanes), lanes)

        each_piece(count, normalize.form.lanes, piece)

    def _code(self, start: Prim, lanes: int) -> Prim:
        """Returns centred codes."""
        code = wide(load(self.source, start, lanes), lanes)
        return bound(code - splat(self.zero_point, lanes))

    def _sums(self, start: Prim) -> tuple[Prim, Prim]:
        """Returns the sum of a row and that of its squares."""
        full, (kind, whole) = self.normalize.form.lanes, self.normalize.sums
        vectors = [T.alloc_buffer((full,), kind) for _ in range(2)]
        singles = [T.alloc_buffer((1,), whole) for _ in range(2)]
        for vector, single in zip(vectors, singles, strict=True):
            store(vector, 0, number(0, kind, full), full)
            store(single, 0, tirx.const(0, whole), 1)

        def total(value: Prim, lanes: int) -> Prim:
            return summed(value.astype(typed(whole, lanes)), lanes)

        def piece(offset: Prim, lanes: int) -> None:
            code = bound(self._code(start + offset, lanes).astype(typed(kind, lanes)))
            for vector, single, value in zip(vectors, singles, (code, code * code), strict=True):
                if lanes == full:
                    store(vector, 0, load(vector, 0, full) + value, full)
                else:
                    store(single, 0, load(single, 0, 1) + total(value, lanes), 1)

        # A last piece that overlaps would count elements twice.
        each_piece(self.normalize.count, full, piece, overlap=False)
        first, second = (
            bound(load(single, 0, 1) + total(load(vector, 0, full), full))
            for vector, single in zip(vectors, singles, strict=True)
        )
        return first, second

    def _statistics(self, first: Prim, second: Prim) -> tuple[Prim, Prim]:
        """Returns ``f32(mean)`` and ``f32(scale / sqrt(variance + epsilon))``."""
        n, square, scale_squared, epsilon, scale = (load(self.moments, i, 1) for i in range(5))
        mean = bound((first.astype("float64") / n).astype("float32"))
        # n * S2 - S1 * S1 in integers: in floats the two nearly equal numbers would cancel all
        # their digits.
        spread = second.astype("int64") * n.astype("int64")
        if self.normalize.centred:
            spread = spread - first.astype("int64") * first.astype("int64")
        variance = bound(spread.astype("float64") / square)
        root = tirx.sqrt(fence(variance * scale_squared) + epsilon)
        return mean, bound((scale / root).astype("float32"))


# ---- nodes ----------------------------------------------------------------------------------


def match_quantized_norm(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a normalization with constant factors; channels are second."""
    source, result = words_of(node.operand(0)), words_of(node.output)
    shape, form = any_open(node.output.type.shape), _form_of_rows(node)
    if source is None or result is None or form is None or shape is None:
        return None
    # The pixels of a channel are no row of memory there.
    if form.channels and place.channels_last:
        return None
    sums = _sums_of(source, form.count, 4 * place.cpu.lanes)
    gamma, given = _constant_norm_factors(node.operand(1), form.factors), node.optional(2)
    beta = None if given is None else _constant_norm_factors(given, form.factors)
    if gamma is None or sums is None or (given is not None and beta is None):
        return None
    normalize = Normalize(
        node.op is not RMS_NORMALIZATION, shape, storage(source), form_of(result, place.cpu),
        form.rows, form.count, form.channels, sums, beta is not None, place.threads,
    )  # fmt: skip
    count, scale = form.count, np.float64(np.float32(source.scale))
    epsilon = np.float64(np.float32(form.epsilon))
    constants = (
        gamma, *([] if beta is None else [beta]),
        np.asarray([count, count * count, scale * scale, epsilon, scale], np.float64),
        *numbers(result, source),
    )  # fmt: skip
    name = f"{node.op.name.removesuffix('Normalization').lower()}_norm_{count}"
    return Kernel(
        name, normalize, build_quantized_norm, (node.operand(0),), constants, (node.output,)
    )


@dataclass(frozen=True, slots=True)
class _NormalizationForm:
    """Rows of a tensor; see :class:`Normalize`.

    Attributes:
        factors: Shape of what has a factor each.
    """

    rows: int
    count: int
    channels: int
    factors: list[int]
    epsilon: float


def _form_of_rows(node: Node) -> _NormalizationForm | None:
    """Returns what a node normalizes together; None where extents of it are open."""
    shape, attributes = any_open(node.output.type.shape), node.attributes
    if not shape or not isinstance(attributes, NormAttrs | GroupNormAttrs | EpsilonAttrs):
        return None
    along = not isinstance(attributes, NormAttrs)
    axis = 1 if isinstance(attributes, NormAttrs | GroupNormAttrs) else 2
    axis = attributes.axis % len(shape) if isinstance(attributes, NormAttrs) else axis
    inner = [extent for extent in shape[axis:] if extent is not None]
    if len(inner) < len(shape) - axis or len(shape) < 1 + along:
        return None
    groups = attributes.num_groups if isinstance(attributes, GroupNormAttrs) else 1
    rows = groups * math.prod(extent or 1 for extent in shape[:axis])
    count = math.prod(inner) // groups
    if not along:
        return _NormalizationForm(rows, count, 0, inner, attributes.epsilon)
    channels = shape[1] or 1
    own = channels // groups if isinstance(attributes, GroupNormAttrs) else 1
    return _NormalizationForm(rows, count, own, [channels], attributes.epsilon)


def _sums_of(source: QuantParams, count: int, lanes: int) -> tuple[str, str] | None:
    """Returns the types of sums over ``count`` elements; None where int64 could be too small."""
    square = ((1 << source.storage_dtype.bits) - 1) ** 2
    # n * S2 is at most the square of the codes' width times n * n.
    if 4 * square * count**2 >= 1 << 63:
        return None
    if square * count < 1 << 31:
        return "int32", "int32"
    return ("int32" if square * -(-count // lanes) < 1 << 31 else "int64"), "int64"


def _constant_norm_factors(value: Value, inner: list[int]) -> NDArray[np.float32] | None:
    """Returns constant factors as float32."""
    if value.constant is None or (value.rank or 0) > len(inner):
        return None
    array: NDArray[Any] = value.constant.numpy()
    real = array if value.quant is None else dequantize(array, value.quant.params)
    row = np.broadcast_to(real.astype(np.float32), inner)
    return np.ascontiguousarray(row.reshape(-1))


# ---- reduction -----------------------------------------------------------------------------------
# Sums, means, largest and smallest codes over neighbouring axes, with or without axes behind.


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
