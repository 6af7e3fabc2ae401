"""Arrays in row-major order, transposed matrices included, at about the speed of memory.

NumPy copies a transposed int8 matrix byte by byte, at a tenth of the speed of memory. Eight rows of
eight bytes are eight words; three rounds of swapping halves, quarters and eighths of words
transpose them (the butterfly of Warren, "Hacker's Delight", section 7-3, on bytes). Wider elements
are copied in tiles that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART = 1 << 24
"""Bytes that are copied at once where a copy of the whole is not needed."""
_BLOCK = 128
"""Words, or elements, per row that are worked on at once: they stay in the second-level cache."""

_ROUNDS = tuple(
    (4 >> k, np.uint64(mask), np.uint64(shift))
    for k, (mask, shift) in enumerate(
        ((0x00000000FFFFFFFF, 32), (0x0000FFFF0000FFFF, 16), (0x00FF00FF00FF00FF, 8))
    )
)


def parts(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes of an array in row-major order, in pieces: a copy never is a whole one.

    Each piece is to be used before the next one is asked for.
    """
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8)
        return
    rows = max(8, PART * len(array) // max(array.nbytes, 1) // 8 * 8)
    memory = np.empty((min(rows, len(array)), *array.shape[1:]), array.dtype)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        target = memory[: len(part)]
        fill(target, part)
        yield target.reshape(-1).view(np.uint8)


def fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copies ``source`` into the C-contiguous ``target`` of the same shape."""
    if source.dtype != target.dtype:
        target[...] = source.astype(target.dtype)
        return
    if source.dtype.isbuiltin == 2:  # of ml_dtypes: NumPy does not stride over all of them
        words = np.dtype(f"u{source.itemsize}")
        source, target = source.view(words), target.view(words)
    matrices = _transposed_matrices(source)
    if matrices is None:
        target[...] = source
        return
    targets = target.reshape(matrices.shape[0], matrices.shape[2], matrices.shape[1])
    for rows, out in zip(matrices, targets, strict=True):
        _transpose(rows, out)


def _transposed_matrices(array: NDArray[Any]) -> NDArray[Any] | None:
    """Returns matrices whose transposes are ``array``; None where it is ordered otherwise."""
    if array.ndim < 2 or not array.size or array.dtype.hasobject:
        return None
    shape, strides = [array.shape[0]], [array.strides[0]]
    for extent, stride in zip(array.shape[1:], array.strides[1:], strict=True):
        if strides[-1] == extent * stride or shape[-1] == 1:
            shape[-1], strides[-1] = shape[-1] * extent, stride
        elif extent != 1:
            shape.append(extent)
            strides.append(stride)
    if len(shape) == 2:
        shape, strides = [1, *shape], [0, *strides]
    if len(shape) != 3 or strides[1] != array.itemsize or strides[2] < array.itemsize:
        return None
    swapped = (shape[0], shape[2], shape[1]), (strides[0], strides[2], strides[1])
    return np.lib.stride_tricks.as_strided(array, *swapped, writeable=False)


def _transpose(rows: NDArray[Any], target: NDArray[Any]) -> None:
    """Writes the transpose of a matrix whose rows are contiguous."""
    width, height = (extent // 8 * 8 for extent in rows.shape[::-1])
    if rows.itemsize > 1 or not width * height:
        width = height = 0
    else:
        words = rows[:height, :width].view(np.uint64)
        out = target[:width].view(np.uint8).reshape(width // 8, 8, rows.shape[0])[..., :height]
        for start in range(0, width // 8, _BLOCK):
            _transpose_words(words, out, slice(start, start + _BLOCK))
    _copy_tiles(rows[:height, width:], target[width:, :height])
    _copy_tiles(rows[height:], target[:, height:])


def _copy_tiles(rows: NDArray[Any], target: NDArray[Any]) -> None:
    for top in range(0, rows.shape[0], _BLOCK):
        for left in range(0, rows.shape[1], _BLOCK):
            tile = rows[top : top + _BLOCK, left : left + _BLOCK]
            target[left : left + _BLOCK, top : top + _BLOCK] = tile.T


def _transpose_words(words: NDArray[np.uint64], out: NDArray[np.uint8], part: slice) -> None:
    """Transposes the byte columns of some of the words."""
    lanes = [np.ascontiguousarray(words[i::8, part].T) for i in range(8)]
    for distance, mask, shift in _ROUNDS:
        for i in range(8):
            if not i & distance:
                low, high = lanes[i], lanes[i + distance]
                swap = ((low >> shift) ^ high) & mask
                lanes[i + distance] = high ^ swap
                lanes[i] = low ^ (swap << shift)
    for column in range(8):
        out[part, column] = lanes[column].view(np.uint8)
