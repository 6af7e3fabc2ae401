"""Weights as the register tile reads them, and biases with the zero points folded in.

Weights of (groups, channels, runs, length), a run being activations that lie side by side, are
packed as (groups, blocks, runs, steps, lanes, depth), zeros filling the last block and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.relax.kernels.cpu import Cpu

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Weights, and what belongs to their channels.

    Attributes:
        weights: (groups, blocks, parts * runs, steps, lanes, depth), int8 or int16.
        bias: int32, one entry per lane of every block, ``bias - zx * sum(w)``.
        parts: More than 1 where a weight is the sum of several bytes; the activations are read
            again for each.
    """

    weights: Array
    bias: Array
    parts: int


def steps(cpu: Cpu, length: int) -> int:
    """Returns the number of steps of a run."""
    return -(-length // cpu.depth)


def padded(array: Array, axis: int, multiple: int) -> Array:
    """Returns an array with zeros up to a multiple along an axis."""
    missing = -array.shape[axis] % multiple
    if not missing:
        return array
    around = [(0, missing if i == axis % array.ndim else 0) for i in range(array.ndim)]
    return np.pad(array, around)


def pack(cpu: Cpu, weights: Array, zero_point: int, bias: Array | None) -> Packed | None:
    """Packs weights.

    Args:
        cpu: The CPU.
        weights: Centred integers of at most 9 bits, (groups, channels, runs, length).
        zero_point: Of the activations, as they are carried (uint8).
        bias: int32 or int64 of (groups * channels), or None.

    Returns:
        None where a sum of products could leave int32.
    """
    groups = len(weights)
    wide = weights.astype(np.int32)
    sums = wide.sum(axis=(2, 3), dtype=np.int64)
    start = np.zeros(sums.shape, np.int64) if bias is None else bias.reshape(sums.shape)
    start = start.astype(np.int64) - zero_point * sums
    largest = 255 * np.abs(wide).sum(axis=(2, 3), dtype=np.int64) + np.abs(start)
    if largest.max(initial=0) >= 1 << 31:
        return None
    halves = _bytes(wide) if cpu.bytes_in else [wide]
    wide = np.concatenate(halves, axis=2).astype(np.int8 if cpu.bytes_in else np.int16)
    wide = padded(padded(wide, 1, cpu.lanes), 3, cpu.depth)
    _, lanes, runs, length = wide.shape
    split = wide.reshape(
        groups, lanes // cpu.lanes, cpu.lanes, runs, length // cpu.depth, cpu.depth
    )
    packed = np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5))
    return Packed(packed, per_lane(cpu, start.astype(np.int32), groups), len(halves))


def per_lane(cpu: Cpu, vector: Array, groups: int) -> Array:
    """Returns a vector of (groups * channels), or of one entry, as one entry per packed lane."""
    per_group = vector.reshape(groups, -1)
    return np.ascontiguousarray(padded(per_group, 1, cpu.lanes).reshape(-1))


def _bytes(weights: Array) -> list[Array]:
    """Returns weights of 9 bits as the few arrays of bytes whose sum they are."""
    found: list[Array] = []
    while weights.any() or not found:
        found.append(np.clip(weights, -128, 127))
        weights = weights - found[-1]
    return found


def reach(packed: Packed, weights: Array) -> int:
    """Returns a bound of the magnitude of every sum."""
    total = np.abs(weights.astype(np.int64)).sum(axis=(2, 3)).max(initial=0)
    return int(255 * total + np.abs(packed.bias.astype(np.int64)).max(initial=0))
