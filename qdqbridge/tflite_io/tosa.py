"""TOSA's arithmetic as a side of comparisons: what differs from the contract, bit for bit.

Source: TOSA 1.0, ``apply_scale_32`` with its two roundings, and TABLE of 16 bits, whose 513 entries
the converter fills as TFLite fills its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.tflite_io.approximations import int16_lookup_table
from qdqbridge.tflite_io.litert import (
    APPROXIMATION,
    FIXED_POINT,
    Kernels,
    LiteRTEngine,
    Recorder,
    accumulated,
)
from qdqbridge.tflite_io.rounding import fixed_point, rounded_of_sixteen, rounded_once
from qdqbridge.tflite_io.writer.writer import TFLiteModel

Array = NDArray[Any]


def double_round(total: NDArray[np.int64], multiplier: NDArray[np.float64]) -> NDArray[np.int64]:
    """RESCALE with DOUBLE_ROUND: half up, after half a unit of 31 places away from zero."""
    mantissa, shift = fixed_point(multiplier)
    return _double_round(total, mantissa, 31 - shift)


def mean_rounded(total: NDArray[np.int64], multiplier: float, count: int) -> NDArray[np.int64]:
    """MEAN of integers: the number of terms divides the mantissa, which loses its last places."""
    mantissa, shift = fixed_point(np.asarray(multiplier))
    more = count.bit_length() - 1
    return _double_round(total, (mantissa << more) // count, 31 - shift + more)


def _double_round(
    total: NDArray[np.int64], mantissa: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    half = np.int64(1) << (places - 1)
    away = np.where(places > 31, np.where(total >= 0, 1 << 30, -(1 << 30)), 0)
    return (total * mantissa + half + away) >> places


class TosaEngine(LiteRTEngine):
    """TOSA's reference model: it gives every value of the graph that was written.

    Args:
        made: What was written for TOSA.
        recorder: What converts the file and runs it.
    """

    def __init__(self, made: TFLiteModel, recorder: Recorder) -> None:
        super().__init__(made, Kernels.REFERENCE, recorder)
        self.label = "TOSA reference model"

    @staticmethod
    def explained(
        node: Node, operands: Sequence[Array | None], theirs: Array
    ) -> tuple[str, NDArray[np.bool_]] | None:
        """Returns which results are those of TOSA's arithmetic, bit for bit."""
        quant = node.output.quant
        if quant is None or not quant.params.per_tensor or not operands or operands[0] is None:
            return None
        cause, ways = _ways(node, operands, theirs.ndim)
        params, zero = quant.params, int(quant.params.zero_point.item())
        stored = (np.clip(way + zero, params.qmin, params.qmax) for way in ways)
        equal = [way == theirs for way in stored if way.shape == theirs.shape]
        return (cause, np.logical_or.reduce(equal)) if equal else None


def _ways(
    node: Node, operands: Sequence[Array | None], rank: int
) -> tuple[str, list[NDArray[np.int64]]]:
    """Returns a cause, and results without their zero point by each way it may be."""
    x, quant, step = operands[0], node.operand(0).quant, _scale(node)
    if x is not None and quant is not None and x.dtype == np.int16 and node.op.name in _TABLES:
        low, high = (float(quant.params.scale.item()) * end for end in (-(1 << 15), (1 << 15) - 1))
        table = int16_lookup_table(_TABLES[node.op.name], low, high, 1 / step)
        place = x.astype(np.int64) + (1 << 15)
        first, rest = table[place >> 7], place & 127
        between = (first << 7) + (table[(place >> 7) + 1] - first) * rest
        return APPROXIMATION, [(between + 64) >> 7]
    found = accumulated(node, operands, rank)
    if found is None:
        return FIXED_POINT, []
    total, multiplier = found
    wide = np.broadcast_to(multiplier, total.shape)
    if node.op in (GLOBAL_AVERAGE_POOL, REDUCE_MEAN) and x is not None and quant is not None:
        plain = float(quant.params.scale.item()) / step
        return FIXED_POINT, [mean_rounded(total, plain, x.size // max(total.size, 1))]
    return FIXED_POINT, [
        way(total, wide) for way in (double_round, rounded_once, rounded_of_sixteen)
    ]


def _scale(node: Node) -> float:
    assert node.output.quant is not None
    return float(node.output.quant.params.scale.item())


_TABLES: Mapping[str, Callable[[float], float]] = MappingProxyType({
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "Tanh": math.tanh,
})  # fmt: skip
