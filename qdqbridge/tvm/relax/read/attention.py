"""``nn.attention``: products, a scale, a softmax, as ONNX writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import Shape, TensorType
from qdqbridge.core.ops.attributes import SoftmaxAttrs, TransposeAttrs
from qdqbridge.tvm.qnn.read import Call, Reading, Row
from qdqbridge.tvm.qnn.read.reading import tensor

_HEADS_FIRST = (0, 2, 1, 3)
_KEYS = (0, 2, 3, 1)


def attention(reading: Reading, call: Call) -> Value:
    """``nn.attention(q, k, v[, bias]; scale, causal_mask)`` of (batch, length, heads, width)."""
    if call.get("window_size") is not None:
        raise reading.refused("it attends to a sliding window")
    q, k, v = (reading.plain(entry) for entry in call.args[:3])
    queries = _permuted(reading, q, _HEADS_FIRST)
    keys = _permuted(reading, k, _KEYS)
    values = _permuted(reading, v, _HEADS_FIRST)
    scores = _matmul_node(reading, queries, keys)
    scores = _scaled(reading, call, scores, q)
    if len(call.args) > 3:
        bias = reading.plain(call.args[3])
        scores = reading.node("Add", NO_ATTRIBUTES, [scores, bias], scores.type)
    mask = _mask(reading, call, scores)
    if mask is not None:
        least = reading.constant(np.asarray(-np.inf, scores.type.dtype.numpy))
        scores = reading.node("Where", NO_ATTRIBUTES, [mask, scores, least], scores.type)
    weights = reading.node("Softmax", SoftmaxAttrs((3,)), [scores], scores.type)
    mixed = _matmul_node(reading, weights, values)
    return reading.node("Transpose", TransposeAttrs(_HEADS_FIRST), [mixed], tensor(call), call)


def _permuted(reading: Reading, value: Value, perm: tuple[int, ...]) -> Value:
    shape = value.type.shape
    if shape is None or len(shape) != 4:
        raise reading.refused("an operand has no four axes")
    type_ = TensorType(value.type.dtype, tuple(shape[axis] for axis in perm))
    return reading.node("Transpose", TransposeAttrs(perm), [value], type_)


def _matmul_node(reading: Reading, a: Value, b: Value) -> Value:
    rows, columns = a.type.shape or (), b.type.shape or ()
    shape: Shape = (*rows[:3], *columns[-1:])
    return reading.node("MatMul", NO_ATTRIBUTES, [a, b], TensorType(a.type.dtype, shape))


def _scaled(reading: Reading, call: Call, scores: Value, q: Value) -> Value:
    width: Any = (q.type.shape or (0,))[-1]
    given = call.get("scale")
    if given is None and not isinstance(width, int):
        raise reading.refused("the width of its heads is known at run time only")
    factor = 1 / math.sqrt(width) if given is None else float(given)
    constant = reading.constant(np.asarray(factor, scores.type.dtype.numpy))
    return reading.node("Mul", NO_ATTRIBUTES, [scores, constant], scores.type)


def _mask(reading: Reading, call: Call, scores: Value) -> Value | None:
    """Returns which keys a query may see, None where it sees all."""
    kind = call.get("causal_mask")
    if kind is None:
        return None
    rows, columns = (scores.type.shape or (0, 0))[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise reading.refused("its causal mask has an unknown length")
    offset = abs(columns - rows) if str(kind) == "BottomRight" else 0
    return reading.constant(np.tri(rows, columns, offset, dtype=np.bool_))


ROWS: Mapping[str, Row] = {"nn.attention": attention, "nn.attention_bias": attention}
"""One row per operator, by Relax's name."""
