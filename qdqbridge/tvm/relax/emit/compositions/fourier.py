"""DFT and STFT, as products with the matrix of their waves.

onnxruntime 1.32 takes a half spectrum that is inverted for one of another length where it has not
the elements that the length asks for; ONNX's reference cuts it, or adds zeros, as here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)

# --------------------------------------------------------------------------------------------------
# DFT and STFT whose axis, length or step only the run knows: sums over waves that it computes.


def dft_of_run_time(
    context: CompositionContext, x: Expr, axis: Expr, length: Expr | None, *, inverse: bool,
    onesided: bool,
) -> Expr:  # fmt: skip
    """Returns the DFT along an axis, a vector of one integer, of a length that may be another.

    The data are taken as what lies before the axis, the axis, and what lies behind it.
    """
    *others, parts = context.extents(x)
    rank, one = len(others), context.number([1], "int64")
    whole = context.shape_vector(x)
    shape = context("strided_slice", whole, axes=[0], begin=[0], end=[rank])
    negative = context("less", axis, context.number([0], "int64"))
    ends = context("add", axis, context.number([rank + 1], "int64"))
    axis, places = context("where", negative, ends, axis), context.counted(rank)
    along = context("equal", places, axis)
    given = context(
        "sum", context("where", along, shape, context.number([0], "int64")), keepdims=True
    )
    before, behind = (
        context("prod", context("where", context(side, places, axis), shape, one), keepdims=True)
        for side in ("less", "greater")
    )
    if length is None:
        twice = context("multiply", context("subtract", given, one), context.number([2], "int64"))
        length = twice if inverse and onesided else given
    outer, signal, inner, waves = context.bound(
        context("concat", [before, given, behind, length], 0)
    )
    rows = context("reshape", x, [outer, signal, inner, parts])
    made = spectrum(context, rows, waves, inverse=inverse, onesided=onesided)
    *_, count, _, results = context.extents(made)
    found = context.shape_vector(context("zeros", [count], "int64"))
    results = context.number([results], "int64")
    wanted = context("concat", [context("where", along, found, shape), results], 0)
    return context("reshape", made, context.bound(wanted, "m"))


def frames_of_run_time(
    context: CompositionContext, x: Expr, step: Expr, length: Expr, window: Expr | None
) -> Expr:
    """Returns what lies in each frame: batch, frames, elements, parts."""
    batch, _, parts = context.extents(x)
    one = context.number([1], "int64")
    given = context("strided_slice", context.shape_vector(x), axes=[0], begin=[1], end=[2])
    rest = context("floor_divide", context("subtract", given, length), step)
    count, elements = context.bound(context("concat", [context("add", rest, one), length], 0))
    starts = context("reshape", context("multiply", context.counted(count), step), [count, 1])
    taken = context("add", starts, context("reshape", context.counted(elements), [1, elements]))
    flat = context("reshape", taken, [count * elements])
    frames = context("take", x, flat, axis=1, mode="clip")
    frames = context("reshape", frames, [batch, count, elements, parts])
    if window is None:
        return frames
    each = context("reshape", context.cast(window, context.dtype(x)), [1, 1, elements, 1])
    return context("multiply", frames, each)


def spectrum(
    context: CompositionContext, rows: Expr, length: Any, *, inverse: bool, onesided: bool
) -> Expr:
    """Returns the sums over the second axis of four, of which the last has real and imaginary part.

    Half a spectrum that is inverted has real results.
    """
    half = tirx.floordiv(length, 2) + 1
    mirrored = inverse and onesided
    count = half if onesided and not inverse else length

    def transform(data: te.Tensor) -> te.Tensor:
        outer, given, inner, parts = data.shape
        kind, zero = data.dtype, tirx.const(0.0, data.dtype)
        used = tirx.min(given, half if mirrored else length)

        def turned(function: Any) -> te.Tensor:
            def value(at: Any) -> Any:
                turns = at.astype("float64") * tirx.const(2 * math.pi, "float64")
                return function(turns / length.astype("float64")).astype(kind)

            return stage([length], value, name="waves")

        cosine, sine = turned(tirx.cos), turned(tirx.sin)

        def summed(*at: Any) -> Any:
            row, result, column, part = at
            element: Any = te.reduce_axis((0, used), name="element")
            place = tirx.floormod(result * element.var, length)
            across = sine(place) if inverse else zero - sine(place)
            real = data(row, element.var, column, 0)
            imaginary = data(row, element.var, column, 1) if parts == 2 else zero
            term = real * cosine(place) - imaginary * across
            if mirrored:
                own = tirx.any(element.var == 0, element.var * 2 == length)
                term *= tirx.Select(own, tirx.const(1.0, kind), tirx.const(2.0, kind))
            else:
                other = real * across + imaginary * cosine(place)
                term = tirx.Select(part == 0, term, other)
            return te.sum(term, axis=element)

        total = stage([outer, count, inner, 1 if mirrored else 2], summed, name="sums")
        if not inverse:
            return total
        return stage(total.shape, lambda *at: total(*at) / length.astype(kind), name="means")

    return loops(context, "spectrum", transform, rows)


# --------------------------------------------------------------------------------------------------

_AXIS_AS_OPERAND = 20
"""The opset since which the axis is an operand, the last but one by default."""

_LARGEST = 1 << 22
"""Elements of a matrix: those of 1024 complex numbers."""


def _dft(context: CompositionContext) -> Sequence[Expr]:
    """Sums over an axis, each times a wave; ``dft_length`` cuts the axis, or adds zeros to it."""
    x = wide(context, context.arg(0))
    extents, axis = context.extents(x), _dft_axis(context)
    parts = extents[-1]
    if parts not in (1, 2):
        raise NoRow("whether its signal is complex is known at run time only")
    inverse, onesided = context.onnx.flag("inverse"), context.onnx.flag("onesided")
    given = None if axis is None else extents[axis]
    if axis is None or not isinstance(given, int) or not _is_absent_or_constant(context, 1):
        along = context.integers(2) if axis is None else context.number([axis], "int64")
        count = context.integers(1) if context.has(1) else None
        made = dft_of_run_time(context, x, along, count, inverse=inverse, onesided=onesided)
        return [context.cast(made, context.dtype(context.arg(0)))]
    length = _length(context, 2 * (given - 1) if inverse and onesided else given)
    if not length:  # half of a spectrum of one element
        extents[axis], extents[-1] = (1, 2) if onesided and not inverse else (0, 2 - onesided)
        return [context("zeros", extents, context.dtype(context.arg(0)))]
    used = min(given, length // 2 + 1 if inverse and onesided else length)
    waves = (
        _real_inverse(length, used)
        if inverse and onesided
        else _waves(length, used, parts, inverse=inverse)
    )
    if onesided and not inverse:
        waves = waves[..., : length // 2 + 1]
    order = [i for i in range(len(extents) - 1) if i != axis]
    cut = context("strided_slice", x, axes=[axis], begin=[0], end=[used])
    turned = context("permute_dims", cut, [*order, len(extents) - 1, axis])
    made = _summed(context, turned, waves)
    back = list(range(len(order)))
    back.insert(axis, len(order) + 1)
    return [
        context.cast(
            context("permute_dims", made, [*back, len(order)]), context.dtype(context.arg(0))
        )
    ]


def _stft(context: CompositionContext) -> Sequence[Expr]:
    """The DFT of frames of a signal, which begin ``frame_step`` elements from each other."""
    x, step = wide(context, context.arg(0)), context.constant_ints(1)
    batch, given, parts = context.extents(x)
    if parts not in (1, 2):
        raise NoRow("whether its signal is complex is known at run time only")
    window = wide(context, context.arg(2)) if context.has(2) else None
    spans = [given, *(context.extents(window) if window is not None else ())]
    if (
        step is None
        or not _is_absent_or_constant(context, 3)
        or not all(isinstance(n, int) for n in spans)
    ):
        return [context.cast(_open_stft(context, x, window), context.dtype(context.arg(0)))]
    length = context.static(window)[0] if window is not None else _length(context, given, 3)
    count = (given - length) // step[0] + 1
    starts = np.arange(count)[:, None] * step[0] + np.arange(length)
    frames = context("take", x, context.number(starts.reshape(-1), "int64"), axis=1, mode="clip")
    frames = context("reshape", frames, [batch, count, length, parts])
    turned = context("permute_dims", frames, [0, 1, 3, 2])
    if window is not None:
        turned = context("multiply", turned, context.cast(window, context.dtype(x)))
    waves = _waves(length, length, parts, inverse=False)
    if context.onnx.flag("onesided", default=True):
        waves = waves[..., : length // 2 + 1]
    made = context("permute_dims", _summed(context, turned, waves), [0, 1, 3, 2])
    return [context.cast(made, context.dtype(context.arg(0)))]


def _open_stft(context: CompositionContext, x: Expr, window: Expr | None) -> Expr:
    """The same where the step, or a length, is known at run time only."""
    if window is not None:
        length = context.shape_vector(window)
    elif context.has(3):
        length = context.integers(3)
    else:
        length = context("strided_slice", context.shape_vector(x), axes=[0], begin=[1], end=[2])
    frames = frames_of_run_time(context, x, context.integers(1), length, window)
    batch, count, elements, parts = context.extents(frames)
    rows = context("reshape", frames, [batch * count, elements, 1, parts])
    onesided = context.onnx.flag("onesided", default=True)
    made = spectrum(context, rows, elements, inverse=False, onesided=onesided)
    return context("reshape", made, [batch, count, context.extents(made)[1], 2])


def _summed(context: CompositionContext, x: Expr, waves: NDArray[Any]) -> Expr:
    """Returns the products of rows of real and imaginary parts with waves: of each the results."""
    if waves.size > _LARGEST:
        raise NoRow(f"its matrix has {waves.size} elements")
    parts, used, results, count = waves.shape
    others = context.extents(x)[:-2]
    rows = context("reshape", x, [*others, parts * used])
    matrix = context.number(waves.reshape(parts * used, results * count), context.dtype(x))
    return context("reshape", context("matmul", rows, matrix), [*others, results, count])


def _is_absent_or_constant(context: CompositionContext, index: int) -> bool:
    """True where an operand is left out, or is a constant."""
    return not context.has(index) or context.constant_ints(index) is not None


def _dft_axis(context: CompositionContext) -> int | None:
    """Returns the axis; None where only the run knows it."""
    rank = context.rank(context.arg(0))
    if context.onnx.opset < _AXIS_AS_OPERAND:
        return context.onnx.int_("axis", 1) % rank
    if not context.has(2):
        return rank - 2
    axis = context.constant_ints(2)
    return None if axis is None else axis[0] % rank


def _length(context: CompositionContext, default: int, index: int = 1) -> int:
    """Returns how many waves there are, which an operand may say."""
    if not context.has(index):
        return default
    length = context.constant_ints(index)
    if length is None:
        raise NoRow("its length is known at run time only")
    return length[0]


def _angles(length: int, used: int) -> NDArray[Any]:
    """Returns how far each wave has turned at each element."""
    turns = np.outer(np.arange(used), np.arange(length)) % length
    return 2 * math.pi * turns / length


def _waves(length: int, used: int, parts: int, *, inverse: bool) -> NDArray[Any]:
    """Returns what real and imaginary parts of each element are multiplied by for each result."""
    angles = _angles(length, used)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    rows = [np.stack([cosine, sine], 1), np.stack([-sine, cosine], 1)]
    return np.stack(rows[:parts]) / (length if inverse else 1)


def _real_inverse(length: int, used: int) -> NDArray[Any]:
    """The same of the first half of a spectrum whose other half mirrors it, of real results."""
    angles = _angles(length, used)
    index = np.arange(used)[:, None]
    mirrored = np.where((index == 0) | (2 * index == length), 1, 2) / length
    return np.stack([mirrored * np.cos(angles), -mirrored * np.sin(angles)])[:, :, None]


FOURIER: Mapping[str, Composition] = {"DFT": _dft, "STFT": _stft}
