"""LSTM, GRU and RNN of batches first (``layout=1``), as those of steps first between Transposes.

onnxruntime 1.32 has no kernel for ``layout=1``, and ONNX's reference leaves out lengths, clips and
directions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import LoweringContext, Perm, reading_rule, transposed

# ---- com.microsoft's RelativePositionBias, the bias of T5's attentions, as ONNX's Gathers --------

_MOST = 4096
"""The longest distance, and the most buckets, of which a table is made."""


@reading_rule(
    "relative-position-bias", ("com.microsoft::RelativePositionBias", "bias", "queries", "keys")
)
def relative_position_bias(context: LoweringContext) -> Value:
    """``RelativePositionBias(bias, queries, keys) -> Gather(bias, buckets of distances)``.

    A number per head and distance of two tokens, distances in buckets that grow with them.

    onnxruntime has a kernel for CUDA only. It takes logarithms of float32 at run time; the buckets
    here are those of exact arithmetic, in a table. The bias is stored by heads, against its shape.
    Source: onnxruntime docs/ContribOperators.md, contrib_ops/cuda/bert/relative_attn_bias_impl.cu,
    test/contrib_ops/relative_attention_bias_test.cc.
    """
    shape, reach = context.shape(0), context.int_("max_distance", 0)
    extents = () if shape is None else tuple(n for n in shape if isinstance(n, int))
    if shape is None or len(shape) != 2 or len(extents) != 2:
        raise context.refusal(
            "the extents of its bias are unknown",
            f"input 0 ('{context.proto.input[0]}') has the shape {shape}",
            "make it an initializer",
        )
    both, (buckets, heads) = context.flag("is_bidirectional"), extents
    side = buckets // 2 if both else buckets
    if not 0 < side // 2 < reach <= _MOST or side > _MOST:
        raise context.refusal(
            f"no table is made of {buckets} buckets up to distance {reach}",
            f"half of one side's have to be less than the distance, and both at most {_MOST}",
            "leave it to onnxruntime",
        )
    queries, keys = (_places(context, index) for index in (1, 2))
    column = context.op("Reshape", [queries, context.enter(np.array([-1, 1]), "column")])
    low, high = (context.enter(np.int64(n), "end") for n in (-reach, reach if both else 0))
    away = context.op("Sub", [keys, column])
    away = context.op("Min", [context.op("Max", [away, low]), high])
    index = context.op("Sub", [away, low])
    table = context.enter(_buckets(side, reach, both=both), "buckets")
    by_heads = context.enter(np.array([1, heads, buckets]), "heads")
    bias = context.op("Reshape", [context.operand(0), by_heads])
    chosen = context.op("Gather", [table, index])
    return context.op("Gather", [bias, chosen], context.output, axis=2)


def _places(context: LoweringContext, index: int) -> Value:
    """Returns the tensor of all positions below a length."""
    scalar = context.enter(np.zeros(0, np.int64), "scalar")
    length = context.op("Reshape", [context.operand(index), scalar])
    zero, one = (context.enter(np.int64(n), "step") for n in (0, 1))
    return context.op("Range", [zero, length, one])


def _buckets(side: int, reach: int, *, both: bool) -> NDArray[np.int64]:
    """Returns the bucket of every position of a key relative to its query, from -reach on.

    Args:
        side: How many buckets the keys on one side of a query have.
        reach: The distance from which on all are in the last of them.
        both: Keys behind a query have buckets of their own; otherwise that of distance 0.
    """
    starts = [*range(1, side // 2 + 1), *_starts(side, reach)]
    before = np.searchsorted(starts, np.arange(reach + 1), side="right")
    behind = before[1:] + side if both else before[:0]
    return np.concatenate([before[::-1], behind]).astype(np.int64)


def _starts(side: int, reach: int) -> list[int]:
    """Returns the least distance of each bucket that has several.

    Of ``exact = side // 2`` and ``wide = side - exact``, distance d is in bucket ``exact +
    floor(log(d / exact) / log(reach / exact) * wide)``, but none beyond the last.
    """
    exact = side // 2
    wide, starts = side - exact, list[int]()
    for step in range(1, wide):
        needed = reach**step * exact ** (wide - step)
        start = max(exact, int(exact * (reach / exact) ** (step / wide)) - 1)
        while start**wide < needed:
            start += 1
        starts.append(start)
    return starts


# --------------------------------------------------------------------------------------------------

_BATCH_SECOND: Perm = (1, 0, 2)
_OPERANDS = (0, 5, 6)
"""The input, and what is carried at first."""

_RESULTS: Mapping[int, Perm] = {0: (2, 0, 1, 3), 1: _BATCH_SECOND, 2: _BATCH_SECOND}
"""From (steps, directions, batch, size) and (directions, batch, size) on."""


_STEPS_FIRST = (
    ("LSTM", "GRU", "RNN"),
    "x", "w", "r", "bias?", "lengths?", "first_hidden?", "first_cell?", "peepholes?",
)  # fmt: skip


@reading_rule("recurrent-of-batches", _STEPS_FIRST)
def steps_first(context: LoweringContext) -> list[Value] | None:
    """``LSTM(x, layout=1) -> Transpose(LSTM(Transpose(x)))``; so GRU and RNN, and all results.

    Source: ONNX LSTM-22, attribute ``layout``.
    """
    if not context.int_("layout", 0):
        return None
    operands = list(context.operands)
    for index in _OPERANDS:
        value = context.optional(index)
        if value is not None:
            operands[index] = transposed(context, value, _BATCH_SECOND)
    outputs = context.proto.output
    first = next(name for name in outputs if name)
    names = [context.maker.fresh(f"{first}.steps_first") if name else "" for name in outputs]
    given = context.same_attributes("layout")
    made = iter(context.several(context.op_type, operands, names, **given))
    return [
        transposed(context, next(made), _RESULTS[index], name)
        for index, name in enumerate(outputs)
        if name
    ]


RULES: tuple[Rule, ...] = (steps_first, relative_position_bias)
