"""Operators that Relay lacks, or that its importer writes as several calls, whole again."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.ops.attributes import NormAttrs, ReduceAttrs
from qdqbridge.core.ops.elementwise import SUB
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.tvm.qnn.read.call import Call, Entry
from qdqbridge.tvm.qnn.read.reading import Reading, Row, tensor

_ROOT: Pattern = ("Sqrt", ("Add", ("ReduceMean", ("Mul", "d", "d")), "#epsilon"))
_CENTRED: Pattern = ("Sub", "x", "mean")
_LAYER_NORM: Pattern = (
    "Add",
    ("Mul", ("Mul", _CENTRED, ("Div", 1.0, _ROOT)), "gamma"),
    "beta",
)

_LOW: Pattern = ("Floor", "x")
_REST: Pattern = ("Sub", "x", _LOW)
_EVEN: Pattern = ("Mul", ("Floor", ("Mul", _LOW, 0.5)), 2.0)
_TIE: Pattern = (
    "unread:logical_and",
    ("unread:equal", _REST, 0.5),
    ("unread:not_equal", _LOW, _EVEN),
)
_UP: Pattern = ("unread:logical_or", ("unread:greater", _REST, 0.5), _TIE)
_ROUND: tuple[Pattern, ...] = (_UP, ("Add", _LOW, 1.0), _LOW)


def half_even(row: Row) -> Row:
    """Returns ``row`` that knows the choice between ``floor(x)`` and ``floor(x) + 1`` as Round."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        found = PatternMatch()
        operands = [arg for arg in call.args if isinstance(arg, Value)]
        if len(operands) == len(_ROUND) and all(
            map(match_value_pattern, operands, _ROUND, [found] * 3)
        ):
            return reading.node("Round", NO_ATTRIBUTES, [found.values["x"]], tensor(call), call)
        return row(reading, call)

    return read


def layer_norm(row: Row) -> Row:
    """Returns ``row`` that knows ``(x - mean) * (1 / sqrt(variance + eps)) * gamma + beta``."""

    def read(reading: Reading, call: Call) -> Entry:
        value = row(reading, call)
        if call.provenance is not None or not isinstance(value, Value):
            return value
        found = PatternMatch()
        if not match_value_pattern(value, _LAYER_NORM, found):
            return value
        mean, x = found.values["mean"].producer, found.values["x"]
        centred = found.values["d"].producer
        axis = _mean_first_axis(mean, x)
        if axis is None or centred is None or centred.op is not SUB:
            return value
        if centred.operand(0) is not x or centred.operand(1).producer is not mean:
            return value
        operands = [x, found.values["gamma"], found.values["beta"]]
        attributes = NormAttrs(axis, found.numbers["epsilon"])
        return reading.node("LayerNormalization", attributes, operands, tensor(call), call)

    return read


def _mean_first_axis(mean: Node | None, x: Value) -> int | None:
    """Returns the first of the last axes over which a mean is taken, None for other axes."""
    if mean is None or mean.operand(0) is not x:
        return None
    rank, attributes = x.rank or 0, mean.attributes
    if mean.op is GLOBAL_AVERAGE_POOL:
        return 2
    if mean.op is not REDUCE_MEAN or not isinstance(attributes, ReduceAttrs):
        return None
    axes = attributes.axes
    whole = bool(axes) and axes == tuple(range(axes[0], rank)) and attributes.keepdims
    return axes[0] if whole else None
