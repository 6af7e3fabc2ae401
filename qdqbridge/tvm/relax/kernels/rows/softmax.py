"""Softmax and LogSoftmax along rows of 8-bit codes: own exponentials, sums in fixed point.

What is computed, and in which order, is :mod:`qdqbridge.tvm.qnn.dialect.softmax`'s; the sum of
fixed point numbers is exact, so it may be taken in vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qdqbridge.core.graph import numerics
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import SoftmaxAttrs
from qdqbridge.core.ops.softmax import LOG_SOFTMAX
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.dialect.softmax import FRACTION
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open, OpenExtents, worth_sharing
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
    largest,
    load,
    nearest,
    number,
    splat,
    store,
    summed,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import total_of, turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import any_open

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
