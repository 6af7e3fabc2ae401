"""uint8 as int8 for one runtime, int8 as uint8 for another: the same real numbers, bit for bit."""

from __future__ import annotations

from qdqbridge.core.graph import copying
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
)

_HALF = 128
_NORMS = (LAYER_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION, BATCH_NORMALIZATION)


def recentered(graph: Graph) -> Graph:
    """Returns a copy of a graph whose uint8 values around 128 are int8 values around 0.

    Inputs, outputs and values whose bits something else looks at keep their type.

    Args:
        graph: The graph; it is not changed.
    """
    return copying.recentered(graph, only=_around_half)


def unsigned(graph: Graph, source: DType = DType.INT8) -> Graph:
    """Returns a copy of a graph whose int8 activations are uint8, zero points shifted by 128.

    onnxruntime's kernels for x86 are several times faster that way. Weights stay int8; inputs,
    outputs and values whose bits something else looks at keep their type.

    Args:
        graph: The graph; it is not changed.
        source: ``int8``, or ``int16`` (to become uint16).
    """
    weights = {
        value
        for node in graph.nodes
        for index, value in enumerate(node.inputs)
        if value is not None and value.constant is not None
        if (node.op.flow is Flow.ACCUMULATE or node.op in _NORMS) and index
    }
    return copying.recentered(graph, source, only=lambda value: value not in weights)


def convolvable(graph: Graph) -> Graph:
    """Returns a copy of a graph whose int8 activations are uint8 where that is computed better.

    OpenVINO's convolutions subtract the zero point of uint8 only, and compute something else from
    int8 that a Concat made. What is int8 around 0 stays so elsewhere: products of two activations
    and transposed convolutions want no zero point at all.

    Args:
        graph: The graph; it is not changed.
    """

    def better(value: Value) -> bool:
        if value.constant is not None or value.quant is None:
            return False
        if value.quant.params.zero_point.any():
            return True
        made = value.producer is not None and value.producer.op is CONCAT
        return made and any(node.op is CONV for node, _ in value.users)

    return copying.recentered(graph, DType.INT8, only=better)


def _around_half(value: Value) -> bool:
    quant = value.quant
    return quant is not None and not (quant.params.zero_point != _HALF).any()
