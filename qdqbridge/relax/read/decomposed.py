"""Operators that TVM's frontends write as several calls, put together again.

Only what nobody writes for anything else: a chain that a model may well contain itself stays what
it is, and :mod:`qdqbridge.canonical.fusions` is there for who wants it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.graph.patterns import Pattern, PatternMatch, match, scalar
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    AxesAttrs,
    CastAttrs,
    ClipAttrs,
    EpsilonAttrs,
    HardSigmoidAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SeluAttrs,
)
from qdqbridge.qnn.read import Call, Entry, Reading, Row
from qdqbridge.qnn.read.reading import tensor

Found = tuple[str, Attributes, Sequence[Value]]
Find = Callable[[Reading, Node], "Found | None"]


def completing(row: Row, *finds: Find, claimed: str = "") -> Row:
    """Returns ``row`` whose result may complete an operator that one of ``finds`` knows.

    Args:
        row: The row of one operator.
        finds: What may end with it.
        claimed: The operator that a call may claim to be part of; others are left alone.
    """

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        value = row(reading, call)
        if call.provenance is not None and call.provenance.op != claimed:
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


# ---- activations -------------------------------------------------------------------------------

_LOW: Pattern = ("Relu", ("Sub", 1.0, ("Exp", "x")))
_ELU: Pattern = ("Add", ("Mul", "#negative", _LOW), ("Relu", "x"))


def _elu(reading: Reading, node: Node) -> Found | None:
    """``-alpha * relu(1 - exp(x)) + relu(x)``."""
    del reading
    found = PatternMatch()
    if not match(node.output, _ELU, found):
        return None
    return "Elu", AlphaAttrs(-found.numbers["negative"]), [found.values["x"]]


def _selu(reading: Reading, node: Node) -> Found | None:
    """``gamma * elu(x)``."""
    del reading
    for gamma, inner in _orders(node):
        number, elu = scalar(gamma), inner.producer
        if number is None or elu is None or elu.op.name != "Elu":
            continue
        alpha = getattr(elu.attributes, "alpha", 0.0)
        return "Selu", SeluAttrs(alpha, number), [elu.operand(0)]
    return None


def _mish(reading: Reading, node: Node) -> Found | None:
    """``x * tanh(log(1 + exp(x)))``."""
    del reading
    found = PatternMatch()
    pattern: Pattern = ("Mul", "x", ("Tanh", ("Log", ("Add", 1.0, ("Exp", "x")))))
    whole = match(node.output, pattern, found)
    return ("Mish", NO_ATTRIBUTES, [found.values["x"]]) if whole else None


def _softplus(reading: Reading, node: Node) -> Found | None:
    """``max(x, 0) + log(1 + exp(-|x|))``."""
    del reading
    found = PatternMatch()
    tail: Pattern = ("Log", ("Add", 1.0, ("Exp", ("Neg", ("Abs", "x")))))
    whole = match(node.output, ("Add", ("Max", "x", 0.0), tail), found)
    return ("Softplus", NO_ATTRIBUTES, [found.values["x"]]) if whole else None


def _softsign(reading: Reading, node: Node) -> Found | None:
    """``x / (|x| + 1)``."""
    del reading
    found = PatternMatch()
    whole = match(node.output, ("Div", "x", ("Add", ("Abs", "x"), 1.0)), found)
    return ("Softsign", NO_ATTRIBUTES, [found.values["x"]]) if whole else None


def _hard_swish(reading: Reading, node: Node) -> Found | None:
    """``x * (clip(x + 3, 0, 6) / 6)``."""
    del reading
    found = PatternMatch()
    if not match(node.output, ("Mul", "x", ("Div", "gate", 6.0)), found):
        return None
    x, gate = found.values["x"], found.values["gate"].producer
    if gate is None or gate.attributes != ClipAttrs(0.0, 6.0):
        return None
    whole = match(gate.operand(0), ("Add", "x", 3.0), PatternMatch({"x": x}))
    return ("HardSwish", NO_ATTRIBUTES, [x]) if whole else None


def _hard_sigmoid(reading: Reading, node: Node) -> Found | None:
    """``clip(alpha * x + beta, 0, 1)``."""
    del reading
    found = PatternMatch()
    if node.attributes != ClipAttrs(0.0, 1.0):
        return None
    if not match(node.operand(0), ("Add", ("Mul", "#alpha", "x"), "#beta"), found):
        return None
    attributes = HardSigmoidAttrs(found.numbers["alpha"], found.numbers["beta"])
    return "HardSigmoid", attributes, [found.values["x"]]


def _thresholded(reading: Reading, node: Node) -> Found | None:
    """``cast(x > alpha) * x``."""
    del reading
    cast, x = node.operand(0).producer, node.operand(1)
    test = None if cast is None or not isinstance(cast.attributes, CastAttrs) else cast.operand(0)
    more = None if test is None else test.producer
    if more is None or more.op.name != "Greater" or more.operand(0) is not x:
        return None
    alpha = scalar(more.operand(1))
    return None if alpha is None else ("ThresholdedRelu", AlphaAttrs(alpha), [x])


def _orders(node: Node) -> list[tuple[Value, Value]]:
    a, b = node.operand(0), node.operand(1)
    return [(a, b), (b, a)]


# ---- norms -------------------------------------------------------------------------------------

_INSTANCE: Pattern = (
    "Add",
    ("Mul", ("Div", ("Sub", "x", "mean"), ("Sqrt", ("Add", "variance", "#epsilon"))), "gamma"),
    "beta",
)


def _instance_norm(reading: Reading, node: Node) -> Found | None:
    """``(x - mean) / sqrt(variance(x) + eps) * gamma + beta`` over space."""
    found = PatternMatch()
    if not match(node.output, _INSTANCE, found):
        return None
    x, mean = found.values["x"], found.values["mean"].producer
    rank = x.rank or 0
    axes = tuple(range(2, rank))
    known = reading.memory.get(("variance", found.values["variance"]))
    if known != (x, ReduceAttrs(axes)) or mean is None or mean.operand(0) is not x:
        return None
    if mean.attributes not in (ReduceAttrs(axes), NO_ATTRIBUTES):
        return None
    vectors = [_vector(found.values[name], rank) for name in ("gamma", "beta")]
    if any(vector is None for vector in vectors):
        return None
    operands = [x, *(vector for vector in vectors if vector is not None)]
    return "InstanceNormalization", EpsilonAttrs(found.numbers["epsilon"]), operands


def _batch_norm(reading: Reading, node: Node) -> Found | None:
    """``(x - mean) / sqrt(variance + eps) * gamma + beta``, as TVM decomposes it for inference."""
    del reading
    found = PatternMatch()
    if not match(node.output, _INSTANCE, found):
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
    if not match(node.output, _AFFINE, found):
        return None
    norm = found.values["norm"].producer
    if norm is None or norm.op.name != "GroupNormalization":
        return None
    ones, zeros = norm.operand(1).constant, norm.operand(2).constant
    if ones is None or zeros is None or zeros.numpy().any() or (ones.numpy() != 1).any():
        return None
    vectors = [_vector(found.values[name], node.output.rank or 0) for name in ("gamma", "beta")]
    if any(vector is None for vector in vectors):
        return None
    operands = [norm.operand(0), *(vector for vector in vectors if vector is not None)]
    return norm.op.name, norm.attributes, operands


def _vector(value: Value, rank: int) -> Value | None:
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
    add = completing(shared["add"], _elu, _softplus, _instance_norm, _group_norm)
    return {
        "add": completing(add, _batch_norm, claimed="BatchNormalization"),
        "clip": completing(shared["clip"], _hard_sigmoid),
        "multiply": completing(shared["multiply"], _hard_swish, _selu, _mish, _thresholded),
        "divide": completing(shared["divide"], _softsign),
    }
