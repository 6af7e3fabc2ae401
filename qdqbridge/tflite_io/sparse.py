"""Sparse constants of TFLite files made dense."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.tflite_io.schema import Sparsity

_MOST, _SPARSEST = 1 << 22, 100
"""A dense tensor may have so many elements, and so many for each that is stored."""


def densified(values: NDArray[Any], shape: tuple[int, ...], sparsity: Sparsity) -> NDArray[Any]:
    """Returns the dense array of a sparse constant.

    Source: TFLite's ``SparsityParameters``: the levels of a storage tree in traversal order, dense
    or compressed (as in TACO); levels after the tensor's rank are the insides of blocks.

    Args:
        values: The stored elements.
        shape: The tensor's extents.
        sparsity: How they lie.

    Raises:
        ValueError: The description makes no sense.
    """
    rank = len(shape)
    order, blocks = sparsity.traversal, sparsity.block_map
    if len(order) != len(sparsity.dimensions) or sorted(order) != list(range(len(order))):
        raise ValueError("the levels of a sparse tensor do not fit its traversal order")
    if len(order) != rank + len(blocks) or any(not 0 <= b < rank for b in blocks):
        raise ValueError("the blocks of a sparse tensor do not fit its rank")
    sizes = {
        rank + place: sparsity.dimensions[order.index(rank + place)][0]
        for place in range(len(blocks))
    }
    count = int(np.prod(shape, dtype=object))
    if count > _MOST + _SPARSEST * values.size:
        raise ValueError(f"a sparse tensor of {values.size} elements would have {count}")
    positions = np.zeros((1, len(order)), np.int64)
    """Of every entry of the level, its index along the levels so far."""
    for level, axis in enumerate(order):
        size, segments, indices = sparsity.dimensions[level]
        if segments is None or indices is None:
            if len(positions) * size > count:
                raise ValueError("a sparse tensor has fewer elements than its levels say")
            inner = np.tile(np.arange(size), len(positions))
            positions = np.repeat(positions, size, axis=0)
        else:
            if len(segments) != len(positions) + 1 or (np.diff(segments) < 0).any():
                raise ValueError("the segments of a sparse tensor do not fit")
            if segments[0] != 0 or segments[-1] != len(indices) or len(indices) > values.size:
                raise ValueError("the indices of a sparse tensor do not fit")
            inner = indices
            positions = np.repeat(positions, np.diff(segments), axis=0)
        positions[:, axis] = inner
    if len(positions) != values.size:
        raise ValueError("a sparse tensor has other elements than its levels say")
    places = [positions[:, axis].copy() for axis in range(rank)]
    for place, axis in enumerate(blocks):
        places[axis] = places[axis] * sizes[rank + place] + positions[:, rank + place]
    for axis, extent in enumerate(shape):
        if places[axis].size and not 0 <= places[axis].min() <= places[axis].max() < extent:
            raise ValueError("an element of a sparse tensor lies outside of it")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(places)] = values
    return dense
