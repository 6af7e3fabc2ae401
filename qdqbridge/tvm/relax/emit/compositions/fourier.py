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

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, wide
from qdqbridge.tvm.relax.emit.compositions.open_fourier import (
    dft_of_run_time,
    frames_of_run_time,
    spectrum,
)

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
