"""Norms that TVM's frontends write as several calls, put together again.

Only what nobody writes for anything else: a chain that a model may well contain itself stays what
it is, and :mod:`qdqbridge.core.canonical.fusions` is there for who wants it whole. Element-wise
operators are recognized by their forms, see :mod:`qdqbridge.tvm.qnn.read.fusions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    EpsilonAttrs,
    ReduceAttrs,
    ReshapeAttrs,
)
from qdqbridge.core.ops.normalization import GROUP_NORMALIZATION
from qdqbridge.tvm.qnn.read import Call, Entry, Reading, Row
from qdqbridge.tvm.qnn.read.reading import tensor

Found = tuple[str, Attributes, Sequence[Value]]
Find = Callable[[Reading, Node], "Found | None"]


def completing(row: Row, *finds: Find, recorded: str = "") -> Row:
    """Returns ``row`` whose result may complete an operator that one of ``finds`` knows.

    Args:
        row: The row of one operator.
        finds: What may end with it.
        recorded: The operator that a call's provenance may name; others are left alone.
    """

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        value = row(reading, call)
        if call.provenance is not None and call.provenance.op != recorded:
            return value
        if not isinstance(value, Value) or value.producer is None:
            return value
        for find in finds:
            found = find(reading, value.producer)
            if found is not None:
                name, attributes, operands = found
                return reading.node(name, attributes, list(operands), tensor(call), call)
        return value

    return read


# ---- norms -------------------------------------------------------------------------------------

_INSTANCE: Pattern = (
    "Add",
    ("Mul", ("Div", ("Sub", "x", "mean"), ("Sqrt", ("Add", "variance", "#epsilon"))), "gamma"),
    "beta",
)


def _instance_norm(reading: Reading, node: Node) -> Found | None:
    """``(x - mean) / sqrt(variance(x) + eps) * gamma + beta`` over space."""
    found = PatternMatch()
    if not match_value_pattern(node.output, _INSTANCE, found):
        return None
    x, mean = found.values["x"], found.values["mean"].producer
    rank = x.rank or 0
    axes = tuple(range(2, rank))
    known = reading.memory.get(("variance", found.values["variance"]))
    if known != (x, ReduceAttrs(axes)) or mean is None or mean.operand(0) is not x:
        return None
    if mean.attributes not in (ReduceAttrs(axes), NO_ATTRIBUTES):
        return None
    vectors = [_channel_vector(found.values[name], rank) for name in ("gamma", "beta")]
    if any(vector is None for vector in vectors):
        return None
    operands = [x, *(vector for vector in vectors if vector is not None)]
    return "InstanceNormalization", EpsilonAttrs(found.numbers["epsilon"]), operands


def _batch_norm(reading: Reading, node: Node) -> Found | None:
    """``(x - mean) / sqrt(variance + eps) * gamma + beta``, as TVM decomposes it for inference."""
    del reading
    found = PatternMatch()
    if not match_value_pattern(node.output, _INSTANCE, found):
        return None
    x, rank = found.values["x"], node.output.rank or 0
    names = ("gamma", "beta", "mean", "variance")
    vectors = [_per_channel(found.values[name], rank) for name in names]
    if any(vector is None for vector in vectors):
        return None
    operands = [x, *(vector for vector in vectors if vector is not None)]
    return "BatchNormalization", EpsilonAttrs(found.numbers["epsilon"]), operands


def _per_channel(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel, whose other axes have been added."""
    wide, shape = value.producer, value.type.shape or ()
    if wide is not None:
        added = AxesAttrs((0, *range(2, rank)))
        return wide.operand(0) if wide.attributes == added and wide.operand(0).rank == 1 else None
    if value.constant is None or len(shape) != rank or [*shape[:1], *shape[2:]] != [1] * (rank - 1):
        return None
    return _flat(value, value.constant)


_AFFINE: Pattern = ("Add", ("Mul", "norm", "gamma"), "beta")


def _group_norm(reading: Reading, node: Node) -> Found | None:
    """``group_norm(x, 1, 0) * gamma + beta``."""
    del reading
    found = PatternMatch()
    if not match_value_pattern(node.output, _AFFINE, found):
        return None
    norm = found.values["norm"].producer
    if norm is None or norm.op is not GROUP_NORMALIZATION:
        return None
    ones, zeros = norm.operand(1).constant, norm.operand(2).constant
    if ones is None or zeros is None or zeros.numpy().any() or (ones.numpy() != 1).any():
        return None
    vectors = [
        _channel_vector(found.values[name], node.output.rank or 0) for name in ("gamma", "beta")
    ]
    if any(vector is None for vector in vectors):
        return None
    operands = [norm.operand(0), *(vector for vector in vectors if vector is not None)]
    return norm.op.name, norm.attributes, operands


def _channel_vector(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel of ``rank`` axes."""
    node, shape = value.producer, value.type.shape or ()
    if shape[1:] != (1,) * (rank - 2) or len(shape) != rank - 1:
        return None
    if node is not None and isinstance(node.attributes, ReshapeAttrs | AxesAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    return None if value.constant is None else _flat(value, value.constant)


def _flat(value: Value, data: Constant) -> Value:
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), value.name, constant=flat)


def rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows of ``shared`` that may end a chain, looking for those chains."""
    add = completing(shared["add"], _instance_norm, _group_norm)
    return {"add": completing(add, _batch_norm, recorded="BatchNormalization")}
