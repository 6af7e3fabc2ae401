"""LayerNormalization and RMSNormalization of rows of 8-bit codes.

What is computed, and in which order, is :mod:`qdqbridge.qnn.dialect.normalization`'s: exact integer
sums of codes and squares, float64 per row, float32 per element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.ops.attributes import NormAttrs
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.broadcasting import Open, batch_of, known, worth_sharing
from qdqbridge.relax.kernels.codes import (
    FLOATS,
    INTEGERS,
    Form,
    Target,
    bytes_of,
    extents,
    float_numbers,
    form_of,
    integer_numbers,
    storage,
    target_floats,
    target_integers,
)
from qdqbridge.relax.kernels.kernel import Kernel, Place
from qdqbridge.relax.kernels.lanes import (
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
    wide,
)
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.script import T, prim_func

_NUMBERS = 5
"""Entries of ``numbers``."""


@dataclass(frozen=True, slots=True)
class Normalize:
    """Rows of codes that are normalized.

    Attributes:
        centred: False for RMSNormalization, which subtracts no mean.
        shape: Extents of operand and result; an open first one is None.
        dtype: Element type of the operand.
        form: The codes of the result.
        rows: Rows; those of one element of an open first extent.
        count: Elements of a row.
        shifts: False where nothing is added behind the factors.
        tasks: How many threads the work is to be spread over.
    """

    centred: bool
    shape: Open
    dtype: str
    form: Form
    rows: int
    count: int
    shifts: bool
    tasks: int


def build(normalize: Normalize) -> Any:
    """Returns a PrimFunc of ``x, gamma, beta, numbers, floats, integers`` and the result.

    ``gamma`` and ``beta`` (only with ``shifts``) are float32 of a row. ``numbers`` are float64:
    n, n * n, the square of the scale of ``x``, epsilon, and the scale. ``floats`` are
    :func:`~.codes.target_floats`, ``integers`` the zero point of ``x`` and
    :func:`~.codes.target_integers`.
    """

    def body() -> None:
        batch = batch_of(normalize.shape)
        shape = known(normalize.shape, batch)
        x = T.arg("x", T.buffer(shape, normalize.dtype))
        names = ("gamma", "beta") if normalize.shifts else ("gamma",)
        affine = [T.arg(name, T.buffer((normalize.count,), "float32")) for name in names]
        numbers = T.arg("numbers", T.buffer((_NUMBERS,), "float64"))
        reals = T.arg("floats", T.buffer((FLOATS,), "float32"))
        integers = T.arg("integers", T.buffer((1 + INTEGERS,), "int32"))
        y = T.arg("y", T.buffer(shape, normalize.form.dtype))
        with T.sblock("root"):
            target = Target(normalize.form, reals, integers, 0, 1)
            writer = _Row(normalize, flat(x), flat(y), affine, numbers, target)
            shared = worth_sharing(normalize.tasks, normalize.shape, 2)
            with turns(batch * normalize.rows, parallel=shared) as row:
                writer.write(row * normalize.count)

    return prim_func(body)


class _Row:
    """Writes one row."""

    def __init__(
        self, normalize: Normalize, source: Buffer, result: Buffer, affine: list[Buffer],
        numbers: Buffer, target: Target,
    ) -> None:
        self.normalize, self.source, self.result = normalize, source, result
        self.affine, self.numbers, self.target = affine, numbers, target
        self.zero_point = load(target.integers, 0, 1)

    def write(self, start: Prim) -> None:
        """Writes the row that begins at ``start``."""
        normalize = self.normalize
        first, second = self._sums(start)
        mean, inverse = self._statistics(first, second)

        def piece(offset: Prim, lanes: int) -> None:
            value = floats(self._code(start + offset, lanes), lanes)
            if normalize.centred:
                value = value - splat(mean, lanes)
            value = value * splat(inverse, lanes) * load(self.affine[0], offset, lanes)
            if normalize.shifts:
                value = fence(value) + load(self.affine[1], offset, lanes)
            store(self.result, start + offset, self.target.quantized(bound(value), lanes), lanes)

        each_piece(normalize.count, normalize.form.lanes, piece)

    def _code(self, start: Prim, lanes: int) -> Prim:
        """Returns centred codes."""
        code = wide(load(self.source, start, lanes), lanes)
        return bound(code - splat(self.zero_point, lanes))

    def _sums(self, start: Prim) -> tuple[Prim, Prim]:
        """Returns the sum of a row and that of its squares, in int32."""
        full = self.normalize.form.lanes
        vectors = [T.alloc_buffer((full,), "int32") for _ in range(2)]
        singles = [T.alloc_buffer((1,), "int32") for _ in range(2)]
        for vector, single in zip(vectors, singles, strict=True):
            store(vector, 0, number(0, "int32", full), full)
            store(single, 0, tirx.const(0, "int32"), 1)

        def piece(offset: Prim, lanes: int) -> None:
            code = self._code(start + offset, lanes)
            for vector, single, value in zip(vectors, singles, (code, code * code), strict=True):
                if lanes == full:
                    store(vector, 0, load(vector, 0, full) + value, full)
                else:
                    store(single, 0, load(single, 0, 1) + summed(value, lanes), 1)

        each_piece(self.normalize.count, full, piece, overlap=False)
        first, second = (
            bound(load(single, 0, 1) + summed(load(vector, 0, full), full))
            for vector, single in zip(vectors, singles, strict=True)
        )
        return first, second

    def _statistics(self, first: Prim, second: Prim) -> tuple[Prim, Prim]:
        """Returns ``f32(mean)`` and ``f32(scale / sqrt(variance + epsilon))``."""
        n, square, scale_squared, epsilon, scale = (load(self.numbers, i, 1) for i in range(5))
        mean = bound((first.astype("float64") / n).astype("float32"))
        spread = second.astype("int64") * n.astype("int64")
        if self.normalize.centred:
            spread = spread - first.astype("int64") * first.astype("int64")
        variance = bound(spread.astype("float64") / square)
        root = tirx.sqrt(fence(variance * scale_squared) + epsilon)
        return mean, bound((scale / root).astype("float32"))


# ---- nodes ----------------------------------------------------------------------------------


def claim(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a normalization of rows with constant factors."""
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    shape, attributes = extents(node.output.type.shape), node.attributes
    if source is None or result is None or not shape or not isinstance(attributes, NormAttrs):
        return None
    axis = attributes.axis % len(shape)
    inner = [extent for extent in shape[axis:] if extent is not None]
    rows, count = math.prod(extent or 1 for extent in shape[:axis]), math.prod(inner)
    if len(inner) < len(shape) - axis or count * 255 * 255 >= 1 << 31:
        return None
    gamma = _affine(node.operand(1), inner)
    given = node.optional(2)
    beta = None if given is None else _affine(given, inner)
    if gamma is None or (given is not None and beta is None):
        return None
    normalize = Normalize(
        node.op.name == "LayerNormalization", shape, storage(source), form_of(result, place.cpu),
        rows, count, beta is not None, place.threads,
    )  # fmt: skip
    scale = np.float64(np.float32(source.scale))
    epsilon = np.float64(np.float32(attributes.epsilon))
    constants = (
        gamma, *([] if beta is None else [beta]),
        np.asarray([count, count * count, scale * scale, epsilon, scale], np.float64),
        float_numbers(*target_floats(result)),
        integer_numbers(int(source.zero_point), *target_integers(result)),
    )  # fmt: skip
    name = f"{'layer' if normalize.centred else 'rms'}_norm_{count}"
    return Kernel(name, normalize, build, (node.operand(0),), constants, (node.output,))


def _affine(value: Value, inner: list[int]) -> NDArray[np.float32] | None:
    """Returns constant factors as float32 of a whole row."""
    if value.constant is None or (value.rank or 0) > len(inner):
        return None
    array: NDArray[Any] = value.constant.numpy()
    real = array if value.quant is None else dequantize(array, value.quant.params)
    row = np.broadcast_to(real.astype(np.float32), inner)
    return np.ascontiguousarray(row.reshape(-1))
