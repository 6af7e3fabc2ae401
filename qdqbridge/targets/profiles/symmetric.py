"""Activations around zero for runtimes that have no zero points: exact where that can be.

A range that does not lie around zero gets one that does, as wide as its farther end: its steps are
up to twice as large, and what saturated at the nearer end does so no more. No data is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied, keeping_types, moved_alike
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.targets.profiles.legalization import recentered

_BYTES = (DType.UINT8, DType.INT8)


@dataclass(frozen=True, slots=True)
class Symmetric:
    """A graph whose activations lie around zero.

    Attributes:
        graph: A new canonical graph.
        exact: How many values keep every real number they had: zero points moved by 128.
        wider: By which factor the steps of each other value changed, by its name.
    """

    graph: Graph
    exact: int
    wider: dict[str, float]

    @property
    def text(self) -> str:
        """What was done, in words."""
        if not self.exact and not self.wider:
            return "every 8-bit value lies around zero already"
        if not self.wider:
            return f"{self.exact} tensors made symmetric, with the same real numbers"
        name, factor = max(self.wider.items(), key=lambda each: each[1])
        return (
            f"made symmetric without data: {self.exact} tensors exactly, {len(self.wider)} in "
            f"larger steps (at most {factor:.2f} times as large, '{name}'); quantize again with "
            "data where that costs too much"
        )


def around_zero(graph: Graph) -> Symmetric:
    """Returns a graph whose 8-bit values are int8 with zero point 0.

    Inputs, outputs and values whose bits something else looks at keep their type.

    Args:
        graph: A canonical graph; it is not changed.
    """
    moved = recentered(graph)
    exact = sum(
        new.type != old.type and new.constant is None
        for old, new in zip(graph.values(), moved.values(), strict=True)
    )
    copy = copied(moved)
    kept = keeping_types(moved, copy.values, _is_byte)
    wider: dict[str, float] = {}
    for tied in _tied(moved, kept):
        old, params = _params_of(tied[0]), _params_around_zero(tied)
        for value in () if params == old else tied:
            new = copy.values[value]
            new.type = QuantType(params, value.type.shape)
            if value.constant is not None:
                real = dequantize(value.constant.numpy(), old)
                new.constant, new.written = Constant.of(quantize(real, params)), None
            elif not params.same_mapping(old):
                wider[_named(value)] = float(params.scale) / float(old.scale)
    for node in copy.graph.nodes:
        if node.op.flow is Flow.ACCUMULATE:
            _weights_around_zero(node)
            _real_bias(node)
    copy.graph.canonical = False
    return Symmetric(canonicalize(copy.graph), exact, wider)


def _is_byte(value: Value) -> bool:
    quant = value.quant
    if quant is None or not quant.params.per_tensor or quant.params.storage_dtype not in _BYTES:
        return False
    return value.constant is None or not all(_weighs(node) for node, _ in value.users)


def _weighs(node: Node) -> bool:
    return node.op.flow is Flow.ACCUMULATE


def _tied(graph: Graph, kept: Collection[Value]) -> list[list[Value]]:
    """Returns the values that may change, those of one type because of movements together."""
    groups = {v: [v] for v in graph.values() if v not in kept and v.quant is not None}
    for node in graph.nodes:
        if node.op.flow is not Flow.MOVE:
            continue
        first, *others = [value for value in moved_alike(node) if value in groups] or [None]
        for value in others:
            assert first is not None and value is not None
            if groups[value] is not groups[first]:
                groups[first] += groups[value]
                groups.update(dict.fromkeys(groups[value], groups[first]))
    return list({id(group): group for group in groups.values()}.values())


def _params_around_zero(tied: Sequence[Value]) -> QuantParams:
    """Returns int8 parameters with zero point 0 for values of one type."""
    old = _params_of(tied[0])
    stored, zero_point, scale = old.storage_dtype, int(old.zero_point), float(old.scale)
    if stored is DType.INT8 and not zero_point:
        return old
    low, high = (old.qmin - zero_point) * scale, (old.qmax - zero_point) * scale
    new = np.float32(max(-low, high) / DType.INT8.qmax)
    params = replace(
        per_tensor(DType.INT8, new, 0), scale=np.asarray(new).astype(old.scale.dtype),
        expressed_dtype=old.expressed_dtype,
    )  # fmt: skip
    # what an input is cut off to is its calibration; a range that begins at 0 was a Relu
    free = all(_is_cut_input(value) or _averages_positive(value) for value in tied)
    begins = old.qmin > stored.qmin or (low == 0 and not free)
    ends = old.qmax < stored.qmax
    qmin = round(low / float(new)) if begins else DType.INT8.qmin
    qmax = round(high / float(new)) if ends else DType.INT8.qmax
    return params.with_range(max(qmin, DType.INT8.qmin), qmax)


def _is_cut_input(value: Value) -> bool:
    node = value.producer
    if node is None or node.op.flow is Flow.MOVE:
        return True
    return node.op is QUANTIZE and node.operand(0).producer is None


def _averages_positive(value: Value) -> bool:
    """True for a mean of numbers that begin at 0: it needs no Relu."""
    node = value.producer
    if node is None or node.op.flow is not Flow.AVERAGE:
        return False
    types = [operand.quant for _, operand in node.data_operands()]
    return all(q is not None and not (q.params.zero_point > q.params.qmin).any() for q in types)


def _params_of(value: Value) -> QuantParams:
    assert value.quant is not None
    return value.quant.params


def _named(value: Value) -> str:
    return value.name or (value.producer.name if value.producer is not None else "")


def _weights_around_zero(node: Node) -> None:
    """Gives weights int8 codes around zero: the same numbers where int8 holds them."""
    weight = node.optional(1)
    if weight is None or weight.constant is None or weight.quant is None:
        return
    old = weight.quant.params
    if old.symmetric or old.blocked or old.storage_dtype not in _BYTES:
        return
    stored = weight.constant.numpy()
    centred = stored.astype(np.int32) - old.aligned(old.zero_point, stored.shape).astype(np.int32)
    axes = tuple(axis for axis in range(stored.ndim) if axis != old.axis)
    largest = np.abs(centred).max(axis=axes, initial=0)
    factor = np.where(largest > DType.INT8.qmax, largest / DType.INT8.qmax, 1.0)
    scale = (old.scale.astype(np.float64) * factor).astype(old.scale.dtype)
    params = replace(
        old, storage_dtype=DType.INT8, scale=scale, zero_point=np.zeros_like(old.zero_point),
        qmin=DType.INT8.qmin, qmax=DType.INT8.qmax,
    )  # fmt: skip
    codes = Constant.of(quantize(dequantize(stored, old), params))
    rewire(node, 1, Value(QuantType(params, weight.type.shape), weight.name, constant=codes))


def _real_bias(node: Node) -> None:
    """Makes a bias real numbers: its units are those of the operands, which may have changed."""
    bias = node.optional(2)
    if bias is None or bias.constant is None or bias.quant is None:
        return
    params = bias.quant.params
    real = dequantize(bias.constant.numpy(), params).astype(params.expressed_dtype.numpy)
    data = Constant.of(real)
    rewire(node, 2, Value(TensorType(data.dtype, data.shape), bias.name, constant=data))
