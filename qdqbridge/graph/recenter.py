"""uint8 as int8 or back, zero points shifted by 128: the same real numbers, bit for bit.

So for any type that has one of the other signedness and the same width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.copying import copied
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType

_PAIRS = (
    (DType.UINT2, DType.INT2),
    (DType.UINT4, DType.INT4),
    (DType.UINT8, DType.INT8),
    (DType.UINT16, DType.INT16),
)
_OTHER = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def _every(value: Value) -> bool:
    del value
    return True


def recentered(
    graph: Graph, source: DType = DType.UINT8, only: Callable[[Value], bool] = _every
) -> Graph:
    """Returns a copy of a graph in which values of one 8-bit type have the other one.

    Inputs, outputs and values whose bits something else looks at keep their type, and so does what
    data-movement operators tie to them.

    Args:
        graph: The graph; it is not changed.
        source: ``uint8`` (to become int8) or ``int8`` (to become uint8).
        only: Which values; others keep their type.
    """
    kept = _kept(graph, only)
    copy = copied(graph)
    for value, new in copy.values.items():
        quant = None if value in kept else value.quant
        if quant is not None and quant.params.storage_dtype is source:
            new.type = QuantType(shifted_params(quant.params), quant.shape)
            new.constant = None if value.constant is None else shifted_constant(value.constant)
    return copy.graph


def _kept(graph: Graph, only: Callable[[Value], bool]) -> set[Value]:
    kept = {*graph.inputs, *graph.outputs}
    kept.update(value for value in graph.values() if value.quant is not None and not only(value))
    for node in graph.nodes:
        if node.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
            kept.update(v for v in (*node.inputs, *node.outputs) if v is not None)
    movements = [_ties(node) for node in graph.nodes if node.op.flow is Flow.MOVE]
    while True:  # a data-movement operator has one type on both sides
        tied = {value for ties in movements if not kept.isdisjoint(ties) for value in ties}
        if tied <= kept:
            return kept
        kept |= tied


def _ties(node: Node) -> list[Value]:
    operands = [value for _, value in node.data_operands()]
    return [value for value in (*operands, *node.outputs) if value.quant is not None]


def shiftable(params: QuantParams) -> bool:
    """True where the storage type has a twin of the other signedness."""
    return params.storage_dtype in _OTHER


def shifted_params(params: QuantParams) -> QuantParams:
    """Returns parameters of the same real values in the type of the other signedness."""
    target = _OTHER[params.storage_dtype]
    shift = target.qmin - params.storage_dtype.qmin
    return replace(
        params,
        storage_dtype=target,
        zero_point=params.zero_point + shift,
        qmin=params.qmin + shift,
        qmax=params.qmax + shift,
    )


def shifted_constant(constant: Constant) -> Constant:
    """Returns stored integers in the type of the other signedness, shifted when looked at."""
    target = _OTHER[constant.dtype]
    shift = target.qmin - constant.dtype.qmin
    return constant.map(
        lambda array: (array.astype(np.int32) + shift).astype(target.numpy), dtype=target
    )
