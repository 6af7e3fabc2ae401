"""Weights as the register tile reads them, and biases with the zero points folded in.

Weights of (groups, channels, runs, length), a run being activations that lie side by side, are
packed as (groups, blocks, runs, steps, lanes, depth), zeros filling the last block and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.tensors import lasting

Array = NDArray[Any]
_PIECE = 1 << 20
"""Weights that are worked on at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Weights, and what belongs to their channels.

    Attributes:
        weights: (groups, blocks, parts * runs, steps, lanes, depth), int8 or int16.
        bias: int32, one entry per lane of every block, ``bias - (zx - centre) * sum(w)``, the
            centre being that of the dot product.
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
    """Packs weights, some channels after the other, so that copies stay small.

    Args:
        cpu: The CPU.
        weights: Centred integers of at most 9 bits, (groups, channels, runs, length).
        zero_point: Of the activations, as they are carried (uint8).
        bias: int32 or int64 of (groups * channels), or None.

    Returns:
        None where a sum of products could leave int32.
    """
    groups, channels, runs, length = weights.shape
    sums = weights.sum(axis=(2, 3), dtype=np.int64)
    start = np.zeros(sums.shape, np.int64) if bias is None else bias.reshape(sums.shape)
    start = start.astype(np.int64) - zero_point * sums
    largest = 255 * _magnitudes(weights) + np.abs(start)
    if largest.max(initial=0) >= 1 << 31:
        return None
    start = start + cpu.dot.centre * sums  # modulo 2**32, as sums are
    parts = _int8_summand_count(weights) if cpu.bytes_in else 1
    blocks, count = -(-channels // cpu.lanes), steps(cpu, length)
    shape = groups, blocks, parts * runs, count, cpu.lanes, cpu.depth
    packed = lasting(shape, np.dtype(cpu.dot.weight))
    for group, first, some in _pieces(weights, cpu.lanes):
        into = packed[group, first // cpu.lanes :]
        for part, own in enumerate(_bytes(some, parts) if cpu.bytes_in else [some]):
            wide = padded(padded(own, 0, cpu.lanes), 2, cpu.depth)
            split = wide.reshape(-1, cpu.lanes, runs, count, cpu.depth).transpose(0, 2, 3, 1, 4)
            into[: len(split), part * runs : (part + 1) * runs] = split
    return Packed(packed, per_lane(cpu, start.astype(np.int32), groups), parts)


def _pieces(weights: Array, lanes: int) -> Iterator[tuple[int, int, Array]]:
    """Yields every group's channels, some at a time: group, first channel, and them as int32."""
    groups, channels, runs, length = weights.shape
    count = lanes * max(1, _PIECE // (lanes * runs * length))
    for group in range(groups):
        for first in range(0, channels, count):
            yield group, first, weights[group, first : first + count].astype(np.int32)


def _magnitudes(weights: Array) -> Array:
    """Returns the sum of the absolute weights of every channel, (groups, channels)."""
    found = np.zeros(weights.shape[:2], np.int64)
    for group, first, some in _pieces(weights, 1):
        found[group, first : first + len(some)] = np.abs(some).sum(axis=(1, 2), dtype=np.int64)
    return found


def per_lane(cpu: Cpu, vector: Array, groups: int) -> Array:
    """Returns a vector of (groups * channels), or of one entry, as one entry per packed lane."""
    per_group = vector.reshape(groups, -1)
    return np.ascontiguousarray(padded(per_group, 1, cpu.lanes).reshape(-1))


def _int8_summand_count(weights: Array) -> int:
    """Returns of how many bytes the weights are the sum."""
    low, high = int(weights.min(initial=0)), int(weights.max(initial=0))
    return max(-(low // 128), -(-high // 127), 1)


def _bytes(weights: Array, parts: int) -> Iterator[Array]:
    """Yields the arrays of bytes whose sum weights of 9 bits are."""
    for _ in range(parts):
        part = np.clip(weights, -128, 127)
        yield part
        weights = weights - part


def reach(packed: Packed, weights: Array) -> int:
    """Returns a bound of the magnitude of every sum."""
    total = _magnitudes(weights).max(initial=0)
    return int(255 * total + np.abs(packed.bias.astype(np.int64)).max(initial=0))
