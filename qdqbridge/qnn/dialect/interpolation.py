"""Index and weight tables of a Resize along one axis, as ``qdqbridge.ops.resize`` defines them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.ops.attributes import ResizeAttrs
from qdqbridge.ops.resize import RESIZE, coordinates, cubic_weights

Table = NDArray[Any]


def along(attributes: ResizeAttrs, axis: int) -> ResizeAttrs:
    """Returns the attributes of the same Resize of one axis alone."""
    rank = len(attributes.roi) // 2
    return replace(
        attributes,
        scales=None if attributes.scales is None else (attributes.scales[axis],),
        sizes=None if attributes.sizes is None else (attributes.sizes[axis],),
        roi=(attributes.roi[axis], attributes.roi[axis + rank]) if rank else (),
    )


def nearest_indices(attributes: ResizeAttrs, length: int, axis: int) -> Table:
    """Returns the input index of every output element, which is the Resize of 0, 1, 2 and so on."""
    single = replace(along(attributes, axis), extrapolation_value=0.0)
    (indices,) = RESIZE.compute(single, (np.arange(length, dtype=np.int64),))
    return indices


def linear_sides(
    attributes: ResizeAttrs, length: int, axis: int
) -> tuple[tuple[Table, Table], tuple[Table, Table]]:
    """Returns the lower and upper neighbours, and the weights of both."""
    last, half = length - 1, np.float32(0.5)
    where = coordinates(along(attributes, axis), (length,), 0, np.float32)
    where = np.maximum(np.float32(0), np.minimum(where, np.float32(last)))
    lower = np.minimum(where.astype(np.int64), last)
    upper = np.minimum(lower + 1, last)
    same = lower == upper
    to_lower = np.where(same, half, np.abs(where - lower.astype(np.float32)))
    to_upper = np.where(same, half, np.abs(where - upper.astype(np.float32)))
    return (lower, upper), (to_upper, to_lower)


def cubic_taps(
    attributes: ResizeAttrs, length: int, axis: int
) -> tuple[list[Table], list[Table], Table]:
    """Returns four clamped neighbours, their weights, and the sum of the weights that count."""
    where = coordinates(along(attributes, axis), (length,), 0, np.float32)
    floor = np.floor(where)
    weights: list[Table] = list(cubic_weights(where - floor, attributes.cubic_coeff_a))
    taps: list[Table] = [floor.astype(np.int64) + offset for offset in (-1, 0, 1, 2)]
    whole = np.full_like(where, 1)
    if attributes.exclude_outside:
        weights = [
            np.where((tap < 0) | (tap >= length), np.float32(0), weight)
            for tap, weight in zip(taps, weights, strict=True)
        ]
        whole = ((weights[0] + weights[1]) + weights[2]) + weights[3]
    return [np.clip(tap, 0, length - 1) for tap in taps], weights, whole
