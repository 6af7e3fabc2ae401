"""Parameters of a constant: one pair, a pair for each channel, or one for each block.

A network is quantized many times over while its best parameters are looked for, and most of its
weights are the same ones each time. What is chosen by looking at all of their elements is chosen
once for the same elements.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.choosers import (
    Chooser,
    Context,
    MinMax,
    Pairs,
    RangeChooser,
    RowChooser,
    in_chunks,
)
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import QuantParams

_ELEMENTS = 1 << 20
"""Weights that are looked at together, about."""
_KNOWN: OrderedDict[tuple[object, ...], QuantParams] = OrderedDict()
_MOST_KNOWN = 1024
"""Constants, by their elements, format and chooser, whose parameters are known: the last ones."""


def of_constant(value: Value, format: Format, chooser: Chooser, context: Context) -> QuantParams:
    """Returns the parameters of a constant.

    Args:
        format: How it is stored; its axis is one of the constant's.
        chooser: Decides; one that can is shown the rows themselves.
        context: What else it knows.
    """
    assert value.constant is not None
    array = value.constant.numpy()
    # parameters of blocks are many, and chosen of all blocks at once
    if not isinstance(chooser, RangeChooser) or not chooser.costly or format.block is not None:
        return _chosen(array, format, chooser, context)
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(elements.data, digest_size=32).digest()
    key = digest, array.dtype, array.shape, format, chooser
    if (params := _KNOWN.pop(key, None)) is None:
        params = _chosen(array, format, chooser, context)
    _KNOWN[key] = params
    while len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.popitem(last=False)
    return params


def _chosen(array: NDArray[Any], format: Format, chooser: Chooser, context: Context) -> QuantParams:
    if format.axis is None:
        return chooser(TensorStats.of(array), format, context)
    if format.block is not None:
        return _in_blocks(array, format, chooser, context)
    rows = np.moveaxis(array, format.axis, 0).reshape(array.shape[format.axis], -1)
    if not isinstance(chooser, RangeChooser) and isinstance(chooser, RowChooser):
        scale, zero_point = in_chunks(chooser, rows, format.per_tensor(), _ELEMENTS)
        return format.params_of(scale, zero_point)
    if chooser == MinMax() and array.size and np.isfinite(array).all():
        return spanned(array, format)  # what the statistics of its rows would say, one by one
    each = [chooser(TensorStats.of(row), format.per_tensor(), context) for row in rows]
    return replace(
        each[0],
        scale=np.array([params.scale for params in each]),
        zero_point=np.array([params.zero_point for params in each], np.int32),
        axis=format.axis,
    )


def spanned(array: NDArray[Any], format: Format) -> QuantParams:
    """Returns the parameters that the extremes of an array ask for.

    Args:
        array: Real numbers.
        format: How they are stored; its axis is one of the array's.
    """
    if format.axis is None:
        return format.params(array.min(initial=0.0), array.max(initial=0.0))
    if format.block is not None:
        starts = list(range(0, array.shape[format.axis], format.block))
        low, high = (f.reduceat(array, starts, axis=format.axis) for f in (np.minimum, np.maximum))
        return format.params(low, high)
    others = tuple(axis for axis in range(array.ndim) if axis != format.axis)
    return format.params(array.min(axis=others), array.max(axis=others))


def _in_blocks(
    array: NDArray[Any], format: Format, chooser: Chooser, context: Context
) -> QuantParams:
    assert format.axis is not None and format.block is not None
    moved = np.moveaxis(array, format.axis, -1)
    count = -(-moved.shape[-1] // format.block)
    missing = count * format.block - moved.shape[-1]
    # A last short block is filled up with its own last element, which moves no extreme.
    widths = [(0, 0)] * (moved.ndim - 1) + [(0, missing)]
    blocks = np.pad(moved, widths, mode="edge").reshape(-1, format.block)
    scale, zero_point = _of_rows(blocks, format.per_tensor(), chooser, context)
    shape = (*moved.shape[:-1], count)
    scale = np.moveaxis(scale.reshape(shape), -1, format.axis)
    return format.params_of(scale, np.moveaxis(zero_point.reshape(shape), -1, format.axis))


def _of_rows(rows: NDArray[Any], format: Format, chooser: Chooser, context: Context) -> Pairs:
    if isinstance(chooser, RowChooser):
        return in_chunks(chooser, rows, format, _ELEMENTS)
    each = [chooser(TensorStats.of(row), format, context) for row in rows]
    return (
        np.array([params.scale for params in each], np.float32),
        np.array([params.zero_point for params in each], np.int32),
    )
