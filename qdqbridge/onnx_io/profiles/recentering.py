"""uint8 with zero point 128 as int8 with zero point 0: the same real numbers, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType

_HALF = 128


def recentered(graph: Graph) -> Graph:
    """Returns a copy of a graph whose uint8 values around 128 are int8 values around 0.

    Inputs, outputs and values whose bits something else looks at keep their type.

    Args:
        graph: The graph; it is not changed.
    """
    kept = _kept(graph)
    copies: dict[Value, Value] = {}
    for value in graph.values():
        quant = None if value in kept else value.quant
        copies[value] = _copy(value, None if quant is None else _signed(quant.params))
    for node in graph.nodes:
        inputs = [None if v is None else copies[v] for v in node.inputs]
        Node(node.op, node.attributes, inputs, [copies[v] for v in node.outputs], node.origin)
    result = Graph(
        [copies[v] for v in graph.inputs], [copies[v] for v in graph.outputs],
        list(graph.output_names), [], graph.name, dict(graph.metadata), graph.opset,
        graph.canonical, list(graph.notes),
    )  # fmt: skip
    Editor(result).finish()
    return result


def _kept(graph: Graph) -> set[Value]:
    kept = {*graph.inputs, *graph.outputs}
    for node in graph.nodes:
        if node.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
            kept.update(v for v in (*node.inputs, *node.outputs) if v is not None)
    while True:  # a mover has one type on both sides
        tied = {
            value
            for node in graph.nodes
            if node.op.flow is Flow.MOVE
            for value in _ties(node)
            if not kept.isdisjoint(_ties(node))
        }
        if tied <= kept:
            return kept
        kept |= tied


def _ties(node: Node) -> list[Value]:
    operands = [value for _, value in node.data_operands()]
    return [value for value in (*operands, *node.outputs) if value.quant is not None]


def _signed(params: QuantParams) -> QuantParams | None:
    if params.storage_dtype is not DType.UINT8 or (params.zero_point != _HALF).any():
        return None
    return replace(
        params,
        storage_dtype=DType.INT8,
        zero_point=params.zero_point - _HALF,
        qmin=params.qmin - _HALF,
        qmax=params.qmax - _HALF,
    )


def _copy(value: Value, params: QuantParams | None) -> Value:
    constant, type_ = value.constant, value.type
    if params is not None and isinstance(type_, QuantType):
        type_ = QuantType(params, type_.shape)
        if constant is not None:
            constant = _shifted(constant)
    copy = Value(type_, value.name, constant=constant)
    copy.metadata, copy.written = value.metadata, value.written
    return copy


def _shifted(constant: Constant) -> Constant:
    return constant.map(lambda a: (a.astype(np.int16) - _HALF).astype(np.int8), dtype=DType.INT8)
