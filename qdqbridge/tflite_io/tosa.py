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
from qdqbridge.core.ops.attributes import PoolAttrs
from qdqbridge.core.ops.pooling import (
    AVERAGE_POOL,
    GLOBAL_AVERAGE_POOL,
    window_counts,
    window_sums,
)
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
from qdqbridge.tflite_io.rounding import (
    double_round,
    fixed_point,
    rescaled_twice,
    rounded_of_sixteen,
    rounded_once,
)
from qdqbridge.tflite_io.writer.writer import TFLiteModel

Array = NDArray[Any]


def mean_rounded(total: NDArray[np.int64], multiplier: float, count: int) -> NDArray[np.int64]:
    """MEAN of integers: the number of terms divides the mantissa, which loses its last places."""
    mantissa, shift = fixed_point(np.asarray(multiplier))
    more = count.bit_length() - 1
    return rescaled_twice(total, (mantissa << more) // count, 31 - shift + more)


def _averaged(total: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """AVG_POOL2D: the number of elements is a reciprocal of 31 bits; rounded half up."""
    more = np.ceil(np.log2(counts)).astype(np.int64)
    reciprocal = (((1 << 30) + 1) << more) // counts
    return (total * reciprocal + (np.int64(1) << (29 + more))) >> (30 + more)


def rescaled(node: Node, operands: Sequence[Array | None]) -> Array | None:
    """Returns what RESCALE gives of a node's operands; None for a node that needs none of it."""
    quant = node.output.quant
    if quant is None or not quant.params.per_tensor or not operands or operands[0] is None:
        return None
    ways = _ways(node, operands, operands[0].ndim)[1]
    if not ways:
        return None
    params = quant.params
    # what is 16 bits wide is rounded by 15
    way = ways[-1] if operands[0].dtype == np.int16 else ways[0]
    stored = np.clip(way + int(params.zero_point), params.qmin, params.qmax)
    return stored.astype(params.storage_dtype.numpy)


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
    if isinstance(node.attributes, PoolAttrs) and x is not None and quant is not None:
        if node.op is not AVERAGE_POOL or float(quant.params.scale.item()) != step:
            return FIXED_POINT, []
        # the converter gives the operator no zero points: what is averaged are codes
        total = window_sums(node.attributes, x.astype(np.int64))
        averages = _averaged(total, window_counts(node.attributes, x))
        return FIXED_POINT, [averages - int(quant.params.zero_point.item())]
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
