"""Copying constants into TVM's memory, transposed matrices included, at the speed of memory.

NumPy copies a transposed int8 matrix byte by byte, at a tenth of the speed of memory. Eight rows of
eight bytes are eight words; three rounds of swapping halves, quarters and eighths of words
transpose them (the butterfly of Warren, "Hacker's Delight", section 7-3, on bytes).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 128
"""Words per row that are worked on at once; the block stays in the second-level cache."""

_ROUNDS = tuple(
    (4 >> k, np.uint64(mask), np.uint64(shift))
    for k, (mask, shift) in enumerate(
        ((0x00000000FFFFFFFF, 32), (0x0000FFFF0000FFFF, 16), (0x00FF00FF00FF00FF, 8))
    )
)


def fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copies ``source`` into the C-contiguous ``target`` of the same shape and item size."""
    rows = source.T
    by_words = (
        source.ndim == 2
        and source.itemsize == 1
        and target.dtype == source.dtype
        and not source.flags.c_contiguous
        and rows.flags.c_contiguous
        and rows.shape[0] % 8 == 0
        and rows.shape[1] % 8 == 0
    )
    if not by_words:
        target[...] = source if source.dtype == target.dtype else source.astype(target.dtype)
        return
    words = rows.view(np.uint64)
    out = target.view(np.uint8).reshape(words.shape[1], 8, rows.shape[0])
    starts = range(0, words.shape[1], _BLOCK)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda start: _transpose(words, out, start), starts))


def _transpose(words: NDArray[np.uint64], out: NDArray[np.uint8], start: int) -> None:
    """Transposes the byte columns of the words from ``start`` on."""
    part = slice(start, start + _BLOCK)
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
