"""Exact results behind nodes that pass values on: they are those of the nodes before, moved.

Where the reference did not record what is moved or joined, the result differs because of the
node before; that node's exact values and bounds explain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.targets.comparison.bounds import Exact
from qdqbridge.targets.comparison.float16 import HALVES

Array: TypeAlias = NDArray[Any]


def moved(node: Node, behind: Exact, operands: Sequence[Array | None]) -> Exact:
    """Returns exact results after a data-movement operator: the values and their bounds move alike.

    Args:
        node: A node that only moves values.
        behind: The exact values of its first operand.
        operands: Its operands; the first one gives the shape.
    """
    first = operands[0]
    shape = behind.real.shape if first is None else first.shape

    def move(array: Array) -> Array:
        whole = np.broadcast_to(np.asarray(array, np.float64), shape)
        return node.op.compute(node.attributes, [whole, *operands[1:]])[0]

    written = None if behind.as_written is None else move(behind.as_written)
    halves = tuple((move(low), move(high)) for low, high in behind.halves)
    moved_bounds = move(behind.elementwise), move(behind.accumulated)
    return Exact(move(behind.real), *moved_bounds, written, halves)


def concat_exact(
    node: Node, behind: Sequence[Exact | None], operands: Sequence[Array | None]
) -> Exact:
    """Returns exact results of a Concat: those of its operands, where they are known, side by side.

    Args:
        node: A Concat.
        behind: For each operand the exact values that it was rounded from, None where it is given.
        operands: The stored values of its operands.
    """
    parts = [
        _given(value, stored) if known is None else known
        for value, known, stored in zip(node.inputs, behind, operands, strict=True)
    ]

    def join(arrays: Sequence[Array]) -> Array:
        wide = [np.broadcast_to(a, p.real.shape) for a, p in zip(arrays, parts, strict=True)]
        return node.op.compute(node.attributes, wide)[0]

    written = [p.real if p.as_written is None else p.as_written for p in parts]
    return Exact(
        join([p.real for p in parts]),
        join([p.elementwise for p in parts]),
        join([p.accumulated for p in parts]),
        join(written) if any(p.as_written is not None for p in parts) else None,
        tuple(
            (join([_half(p, i)[0] for p in parts]), join([_half(p, i)[1] for p in parts]))
            for i in range(max(len(p.halves) for p in parts))
        ),
    )


def _given(value: Value | None, stored: Array | None) -> Exact:
    assert value is not None and stored is not None
    real = stored if value.quant is None else dequantize(stored, value.quant.params)
    wide, halves = real.astype(np.float64), ()
    expressed = value.quant.params.expressed_dtype if value.quant else DType.FLOAT32
    if expressed in HALVES:
        short = real.astype(expressed.numpy).astype(np.float64)
        halves = ((wide, wide), (short, short))
    return Exact(wide, np.zeros(()), np.zeros(()), halves=halves)


def _half(part: Exact, index: int) -> tuple[Array, Array]:
    """Returns one of the intervals of a part; every element belongs to one part only."""
    if not part.halves:
        return part.real, part.real
    return part.halves[min(index, len(part.halves) - 1)]
