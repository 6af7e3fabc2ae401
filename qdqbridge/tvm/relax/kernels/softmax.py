"""Softmax and LogSoftmax along rows of 8-bit codes: own exponentials, sums in fixed point.

What is computed, and in which order, is :mod:`qdqbridge.tvm.qnn.dialect.unary`'s; the sum of
fixed point numbers is exact, so it may be taken in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph import numerics
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import GeluAttrs, NormAttrs, SoftmaxAttrs
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, LOG_SOFTMAX, SOFTMAX
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.dialect.unary import FRACTION
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    CodesForm,
    TargetCodes,
    alike,
    arguments,
    bytes_of,
    form_of,
    numbers,
    storage,
)
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    divided,
    each_piece,
    fence,
    flat,
    floats,
    intrinsic,
    largest,
    load,
    nearest,
    number,
    splat,
    store,
    summed,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    GRAIN,
    Open,
    OpenExtents,
    total_of,
    turns,
    worth_sharing,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import (
    Array,
    Kernel,
    KernelPlace,
    any_open,
    known_extent,
    leading,
)
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant

_INTEGERS = 2.0**52
"""A float64 in ``2**52 .. 2**53`` holds an integer in its lower bits."""
_FINEST = 2.0**-20
"""Scales of results below it could bring quotients beyond int32."""


@dataclass(frozen=True, slots=True)
class SoftmaxKernel:
    """Rows of codes that are normalized.

    Attributes:
        log: True for LogSoftmax.
        shape: Extents of operand and result; open ones are None.
        dtype: Element type of the operand.
        form: The codes of the result.
        last: The first axis of a row.
        tasks: How many threads the work is to be spread over.
    """

    log: bool
    shape: Open
    dtype: str
    form: CodesForm
    last: int
    tasks: int

    @property
    def fuses(self) -> bool:
        """True where the CPU fuses products and sums."""
        return self.form.cpu.fuses


def build_quantized_softmax(softmax: SoftmaxKernel) -> Any:
    """Returns a PrimFunc of ``x``, :func:`~.codes.numbers` and the result."""

    def body() -> None:
        extents = OpenExtents(softmax.shape)
        shape = extents.of(softmax.shape)
        x = T.arg("x", T.buffer(shape, softmax.dtype))
        target = arguments(softmax.form)
        y = T.arg("y", T.buffer(shape, softmax.form.dtype))
        with root():
            rows, count = total_of(shape[: softmax.last]), total_of(shape[softmax.last :])
            writer = _SoftmaxRow(softmax, flat(x), flat(y), target, count)
            shared = worth_sharing(softmax.tasks, softmax.shape, 4)
            with turns(rows, parallel=shared) as row:
                writer.write(row * count)

    return prim_func(body)


class _SoftmaxRow:
    """Writes one row."""

    def __init__(
        self, softmax: SoftmaxKernel, source: Buffer, result: Buffer, target: TargetCodes,
        count: Prim,
    ) -> None:  # fmt: skip
        self.softmax, self.source, self.result, self.count = softmax, source, result, count
        self.codes, self.target = target.source(), target

    def write(self, start: Prim) -> None:
        """Writes the row that begins at ``start``."""
        top = bound(self.codes.real(self._top(start), 1))
        powers = T.alloc_buffer((self.count,), "float32")
        total = self._sum(start, top, powers)
        whole = bound(total.astype("float64") * tirx.const(1 / FRACTION, "float64"))
        if self.softmax.log:
            self._logarithms(start, top, whole)
        else:
            self._quotients(start, powers, whole)

    def _top(self, start: Prim) -> Prim:
        """Returns the largest code."""
        best = T.alloc_buffer((1,), "int32")
        store(best, 0, tirx.const(-(1 << 31), "int32"), 1)

        def piece(offset: Prim, lanes: int) -> None:
            code = largest(load(self.source, start + offset, lanes), lanes).astype("int32")
            store(best, 0, tirx.max(load(best, 0, 1), code), 1)

        each_piece(self.count, 64, piece)
        return load(best, 0, 1)

    def _difference(self, start: Prim, top: Prim, lanes: int) -> Prim:
        return bound(self.codes.real(load(self.source, start, lanes), lanes) - splat(top, lanes))

    def _sum(self, start: Prim, top: Prim, powers: Buffer) -> Prim:
        """Writes the exponentials; returns their sum in units of ``1 / FRACTION``, int64."""
        full = self.softmax.form.lanes // 2  # exponentials need many registers
        lanes_of = T.alloc_buffer((full,), "int64")
        single = T.alloc_buffer((1,), "int64")
        store(lanes_of, 0, number(0, "int64", full), full)
        store(single, 0, tirx.const(0, "int64"), 1)

        def piece(offset: Prim, lanes: int) -> None:
            power = bound(exponential(self._difference(start + offset, top, lanes), lanes))
            store(powers, offset, power, lanes)
            fixed = fixed_point(power, lanes)
            if lanes == full:
                store(lanes_of, 0, load(lanes_of, 0, full) + fixed, full)
            else:
                store(single, 0, load(single, 0, 1) + summed(fixed, lanes), 1)

        each_piece(self.count, full, piece, overlap=False)
        return bound(load(single, 0, 1) + summed(load(lanes_of, 0, full), full))

    def _quotients(self, start: Prim, powers: Buffer, whole: Prim) -> None:
        single = bound(whole.astype("float32"))
        inverse = bound(tirx.const(1.0, "float32") / single) if self.softmax.fuses else None

        def piece(offset: Prim, lanes: int) -> None:
            reciprocal = None if inverse is None else splat(inverse, lanes)
            value = divided(load(powers, offset, lanes), splat(single, lanes), reciprocal)
            codes = self.target.quantized(bound(value), lanes, bounded=True)
            store(self.result, start + offset, codes, lanes)

        each_piece(self.count, self.softmax.form.lanes, piece)

    def _logarithms(self, start: Prim, top: Prim, whole: Prim) -> None:
        logarithm = bound(tirx.log(whole).astype("float32"))

        def piece(offset: Prim, lanes: int) -> None:
            value = self._difference(start + offset, top, lanes) - splat(logarithm, lanes)
            store(self.result, start + offset, self.target.quantized(bound(value), lanes), lanes)

        each_piece(self.count, self.softmax.form.lanes, piece)


def exponential(x: Prim, lanes: int) -> Prim:
    """Returns ``graph.exp32.exp32`` of float32 numbers that are not positive."""
    lowest = number(float(numerics.LOWEST), "float32", lanes)
    small, power = exponential_parts(bound(tirx.max(x, lowest)), lanes)
    y = (small + number(1.0, "float32", lanes)) * power
    return tirx.Select(x < lowest, number(0.0, "float32", lanes), y)


def exponential_parts(x: Prim, lanes: int) -> tuple[Prim, Prim]:
    """Returns ``s`` and a power of two ``p`` with ``exp(x) = (s + 1) p``; x is in its range."""

    def f32(value: Any) -> Prim:
        return number(float(value), "float32", lanes)

    whole = bound(nearest(x * f32(numerics.LOG2E), lanes))
    n = bound(floats(whole, lanes))
    rest = x - fence(n * f32(numerics.LN2_HIGH))
    r = bound(rest - fence(n * f32(numerics.LN2_LOW)))
    p = f32(numerics.POLYNOMIAL[0])
    for coefficient in numerics.POLYNOMIAL[1:]:
        p = fence(p * r) + f32(coefficient)
    bits = (whole + number(127, "int32", lanes)) << number(23, "int32", lanes)
    power = tirx.reinterpret(typed("float32", lanes), bits)
    return fence((p * r) * r) + r, power


def fixed_point(value: Prim, lanes: int) -> Prim:
    """Returns ``rint(f64(value) * FRACTION)`` as int64, of float32 numbers in 0 .. 1."""
    kind = typed("int64", lanes)
    scaled = value.astype(typed("float64", lanes)) * number(FRACTION, "float64", lanes)
    shifted = scaled + number(_INTEGERS, "float64", lanes)  # rounds half to even to an integer
    return tirx.reinterpret(kind, shifted) - number(_BITS, "int64", lanes)


_BITS = 0x4330_0000_0000_0000
"""The bits of ``_INTEGERS``."""


# ---- nodes ----------------------------------------------------------------------------------


def match_quantized_softmax(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Softmax or LogSoftmax over the last axis as it is stored."""
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    shape, attributes = any_open(node.output.type.shape), node.attributes
    if source is None or result is None or not shape or not alike(node.operand(0), node.output):
        return None
    if not isinstance(attributes, SoftmaxAttrs) or float(result.scale) < _FINEST:
        return None
    last = len(shape) - len(attributes.axes)
    if tuple(sorted(attributes.axes)) != tuple(range(last, len(shape))):
        return None
    softmax = SoftmaxKernel(
        node.op is LOG_SOFTMAX, shape, storage(source), form_of(result, place.cpu), last,
        place.threads,
    )  # fmt: skip
    constants = tuple(numbers(result, source))
    row = shape[last:]
    name = f"{node.op.name.lower()}_{'n' if None in row else math.prod(e or 1 for e in row)}"
    return Kernel(
        name, softmax, build_quantized_softmax, (node.operand(0),), constants, (node.output,)
    )


# ---- float rows ----------------------------------------------------------------------------------
# Softmax and Gelu of float32, of any extents, a vector at a time; TVM's own call libm for each.
#
# The exponential is that of :mod:`qdqbridge.core.graph.numerics`, the error function one times a
# polynomial.


_HALF = math.sqrt(0.5)
_FAR = 20.0
"""Beyond it a Gelu is its operand, or 0."""
_TAIL = (
    -0.05889737606048584, 0.28373047709465027, -0.4854349195957184, 0.2760276198387146,
    -0.0252054613083601, 0.2020789384841919, 0.24325935542583466, 0.28235363960266113,
    0.28208768367767334,
)  # fmt: skip
"""``erfc(t) * exp(t * t)`` for t from 0 on, divided by u, in powers of ``u = 1 / (1 + t / 2)``: a
fit of the largest relative error, 4e-8, which float32 makes 3.5e-7."""


@dataclass(frozen=True, slots=True)
class RealRows:
    """A function of float32 into float32.

    Attributes:
        shape: Extents of operand and result; None for open ones.
        softmax: True for Softmax over the last axis, False for Gelu.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    shape: Open
    softmax: bool
    tasks: int


def match_softmax(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Softmax of float32 over the last axis."""
    attributes = SOFTMAX.of(node)
    rank = node.operand(0).rank
    if (
        attributes is None
        or rank is None
        or _positive_softmax_axes(attributes, rank) != (rank - 1,)
    ):
        return None
    return _float_rows_kernel(node, place, softmax=True)


def match_gelu(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Gelu of float32 by the error function."""
    attributes = node.attributes
    if not isinstance(attributes, GeluAttrs) or attributes.approximate != "none":
        return None
    return _float_rows_kernel(node, place, softmax=False)


def _positive_softmax_axes(attributes: SoftmaxAttrs, rank: int) -> tuple[int, ...]:
    return tuple(axis % rank for axis in attributes.axes)


def _float_rows_kernel(node: Node, place: KernelPlace, *, softmax: bool) -> Kernel | None:
    x, y = node.operand(0), node.output
    shape = any_open(x.type.shape)
    if shape is None or not shape or x.is_constant:
        return None
    if not (is_real(x) and is_real(y) and alike(x, y)):
        return None
    description = RealRows(place.cpu, shape, softmax, place.threads)
    name = f"float_{node.op.name.lower()}"
    return Kernel(name, description, build_float_rows, (x,), (), (y,))


def build_float_rows(d: RealRows) -> Any:
    """Returns the PrimFunc ``(x, y)``."""

    def body() -> None:
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.shape))]
        shape = [name if e is None else e for name, e in zip(names, d.shape, strict=True)]
        x, y = (T.arg(name, T.buffer(shape, "float32")) for name in ("x", "y"))
        rows = total_of(shape[:-1])
        shared = worth_sharing(d.tasks, d.shape, 8)
        with root():
            views = flat(x), flat(y)
            if d.softmax:
                with turns(rows, parallel=shared) as row:
                    _softmax(d, *views, row * shape[-1], shape[-1])
            else:
                _each(d, *views, shape[-1] * rows, shared=shared)

    return prim_func(body)


def open_pieces(count: Prim, lanes: int, body: Callable[[Prim, int], None]) -> None:
    """Emits ``body(start, lanes)`` over elements of a number that may be open."""
    whole = count // lanes
    with turns(whole) as i:
        body(i * lanes, lanes)
    if not isinstance(count, int) or count % lanes:
        with turns(count % lanes, whole * lanes) as i:
            body(i, 1)


def _softmax(d: RealRows, x: Buffer, y: Buffer, start: Prim, count: Prim) -> None:
    """Writes one row: exponentials of differences from the largest, over their sum."""
    start, lanes = bound(start), 2 * d.cpu.lanes
    least = tirx.const(-math.inf, "float32")
    tops, sums = (LaneValues(lanes, value) for value in (least, tirx.const(0.0, "float32")))

    def top(at: Prim, size: int) -> None:
        tops.update(size, lambda best: tirx.max(load(x, start + at, size), best))

    open_pieces(count, lanes, top)
    largest = bound(tops.reduced("llvm.vector.reduce.fmax", tirx.max))

    def power(at: Prim, size: int) -> None:
        difference = bound(load(x, start + at, size) - splat(largest, size))
        # of a comparison with what is not a number the second operand remains: it stays none
        kept = bound(tirx.max(number(float(numerics.LOWEST), "float32", size), difference))
        found = exponential(difference, size) + (fence(kept) - kept)
        store(y, start + at, found, size)
        sums.update(size, lambda total: total + load(y, start + at, size))

    open_pieces(count, lanes, power)
    total = bound(sums.reduced("", lambda a, b: a + b))
    inverse = bound(tirx.const(1.0, "float32") / total)

    def share(at: Prim, size: int) -> None:
        store(y, start + at, load(y, start + at, size) * splat(inverse, size), size)

    open_pieces(count, lanes, share)


class LaneValues:
    """A value per lane, and one for the elements that are left."""

    def __init__(self, lanes: int, start: Prim) -> None:
        self.lanes = lanes
        self.rooms = {size: self._room(size) for size in (lanes, 1)}
        for size, room in self.rooms.items():
            store(room, 0, splat(start, size), size)

    def _room(self, size: int) -> Buffer:
        shape: Any = (size,)
        return T.alloc_buffer(shape, "float32")

    def update(self, size: int, function: Callable[[Prim], Prim]) -> None:
        """Replaces the values by a function of them."""
        room = self.rooms[size]
        store(room, 0, function(load(room, 0, size)), size)

    def reduced(self, name: str, join: Callable[[Prim, Prim], Prim]) -> Prim:
        """Returns all values joined, halves of the lanes with each other; or by an intrinsic."""
        single, size = load(self.rooms[1], 0, 1), self.lanes
        if name:
            value = intrinsic(name, "float32", load(self.rooms[size], 0, size))
            return join(value, single)
        room = self.rooms[size]
        while size > 1:
            size //= 2
            store(room, 0, join(load(room, 0, size), load(room, size, size)), size)
        return join(load(room, 0, 1), single)


# ---- gelu ---------------------------------------------------------------------------------------


def _each(d: RealRows, x: Buffer, y: Buffer, count: Prim, *, shared: bool) -> None:
    """Writes every element, some of them at a time."""

    def write(first: Prim, size: Prim) -> None:
        def piece(at: Prim, lanes: int) -> None:
            store(y, first + at, _gelu(bound(load(x, first + at, lanes)), lanes), lanes)

        open_pieces(size, 4 * d.cpu.lanes, piece)

    if not shared:
        write(tirx.const(0, "int32"), count)
        return
    size = GRAIN // 4
    with turns((count + (size - 1)) // size, parallel=True) as task:
        first = bound(task * size)
        write(first, bound(tirx.min(count - first, size)))


def _gelu(x: Prim, lanes: int) -> Prim:
    """Returns ``x * P``, P being how probable less than x is; or ``x - x * (1 - P)`` above 0.

    So the small results of negative operands keep their digits.
    """

    def f32(value: float) -> Prim:
        return number(value, "float32", lanes)

    far = bound(tirx.min(tirx.abs(x), f32(_FAR)))
    u = bound(f32(1) / (f32(1) + fence(far * f32(_HALF / 2))))
    total = f32(_TAIL[0])
    for coefficient in _TAIL[1:]:
        total = fence(total * u) + f32(coefficient)
    power = exponential(bound(fence(far * far) * f32(-0.5)), lanes)
    half = bound(total * u * power * f32(0.5))
    return tirx.Select(x > f32(0), x - fence(far * half), x * half)


# ---- LayerNormalization of rows of float32, of any number: two passes for the moments, a third
# one


@dataclass(frozen=True, slots=True)
class RealNorm:
    """Rows of float32 that are normalized.

    Attributes:
        shape: Extents of operand and result; None for open ones, but for the last.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    shape: Open
    tasks: int


def match_float_layer_norm(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a LayerNormalization of float32 over the last axis."""
    x, y, attributes = node.operand(0), node.output, node.attributes
    shape = leading(x.type.shape)
    if node.op is not LAYER_NORMALIZATION or shape is None or not isinstance(attributes, NormAttrs):
        return None
    if attributes.axis % len(shape) != len(shape) - 1 or x.is_constant or len(node.outputs) != 1:
        return None
    if not (is_real(x) and is_real(y) and alike(x, y)):
        return None
    count = known_extent(shape[-1])
    factors, offsets = _norm_row_param(node, 1, count, 1.0), _norm_row_param(node, 2, count, 0.0)
    if factors is None or offsets is None:
        return None
    epsilon = np.asarray([attributes.epsilon], np.float32)
    description = RealNorm(place.cpu, shape, place.threads)
    return Kernel(
        "float_layer_norm", description, build_float_norm, (x,), (factors, offsets, epsilon), (y,)
    )


def _norm_row_param(node: Node, index: int, count: int, default: float) -> Array | None:
    """Returns an operand as one number per element of a row; None where it is no such constant."""
    value = node.optional(index)
    if value is None:
        return np.full(count, default, np.float32)
    array = real_constant(value)
    if array is None or array.size != count or array.shape[-1:] != (count,):
        return None
    return np.ascontiguousarray(array.reshape(-1), np.float32)


def build_float_norm(d: RealNorm) -> Any:
    """Returns the PrimFunc ``(x, factors, offsets, epsilon, y)``."""

    def body() -> None:
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.shape))]
        shape = [name if e is None else e for name, e in zip(names, d.shape, strict=True)]
        count, rows = known_extent(d.shape[-1]), 1
        for extent in shape[:-1]:
            rows = extent * rows
        x = T.arg("x", T.buffer(shape, "float32"))
        factors, offsets = (T.arg(n, T.buffer((count,), "float32")) for n in ("factors", "offsets"))
        epsilon = T.arg("epsilon", T.buffer((1,), "float32"))
        y = T.arg("y", T.buffer(shape, "float32"))
        shared = worth_sharing(d.tasks, d.shape, 4)
        with root():
            source, result = flat(x), flat(y)
            with turns(rows, parallel=shared) as row:
                _normalize_float_row(
                    d, (source, factors, offsets, epsilon, result), bound(row * count), count
                )

    return prim_func(body)


def _normalize_float_row(d: RealNorm, tensors: tuple[Buffer, ...], start: Prim, count: int) -> None:
    x, factors, offsets, epsilon, y = tensors
    lanes, zero = 2 * d.cpu.lanes, tirx.const(0.0, "float32")
    number_of = tirx.const(float(count), "float32")

    def mean_of(value: Any) -> Prim:
        sums = LaneValues(lanes, zero)

        def piece(at: Prim, size: int) -> None:
            sums.update(size, lambda total: total + value(at, size))

        open_pieces(count, lanes, piece)
        return bound(sums.reduced("", lambda a, b: a + b) / number_of)

    mean = mean_of(lambda at, size: load(x, start + at, size))

    def square(at: Prim, size: int) -> Prim:
        difference = load(x, start + at, size) - splat(mean, size)
        return fence(difference * difference)

    variance = mean_of(square)
    root = tirx.sqrt(variance + load(epsilon, 0, 1))
    inverse = bound(tirx.const(1.0, "float32") / root)

    def piece(at: Prim, size: int) -> None:
        normal = (load(x, start + at, size) - splat(mean, size)) * splat(inverse, size)
        value = fence(normal * load(factors, at, size)) + load(offsets, at, size)
        store(y, start + at, value, size)

    open_pieces(count, lanes, piece)
