"""An LSTM that quantizes while it runs, as onnxruntime has it: DynamicQuantizeLSTM.

Its weights lie the other way round, ``[directions, terms, elements of gates]``, with a scale for
every element of every gate of every direction. It rounds what it reads and what it carries by their
own extremes (onnxruntime 1.32, ``contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import link, unlink
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator

_DOMAIN, _DYNAMIC = "com.microsoft", "DynamicQuantizeLSTM"
_OWN = 8
"""Operands of an LSTM; scales and zero points come behind them."""


def is_lstm(node: Node) -> bool:
    """True for an LSTM of ONNX's whose sequences lie along axis 0."""
    record = node.attributes
    if not isinstance(record, OpaqueAttrs) or (record.domain, record.op_type) != ("", "LSTM"):
        return False
    return not record.node.integers().get("layout", 0)


def read_dynamically(
    node: Node,
    weights: tuple[NDArray[Any], NDArray[Any]],
    scales: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    """Makes a linked LSTM one that quantizes while it runs.

    Args:
        node: The LSTM; it is changed.
        weights: Its two weights, int8 around zero, as it has them.
        scales: Of each, one for every element of every gate.
    """
    old = node.record(OpaqueAttrs).node.proto()
    operands: list[Value | None] = [*node.inputs, *[None] * (_OWN - len(node.inputs))]
    directions = weights[0].shape[0]
    for index, weight, scale in zip((1, 2), weights, scales, strict=True):
        each = np.tile(scale.astype(np.float32), (directions, 1))
        names = [f"{node.name}_{'WR'[index - 1]}{end}" for end in ("", "_scale", "_zero_point")]
        turned = np.ascontiguousarray(weight.transpose(0, 2, 1))
        operands[index] = _graph_constant_value(turned, names[0])
        operands += [
            _graph_constant_value(each, names[1]),
            _graph_constant_value(np.zeros_like(each, np.int8), names[2]),
        ]
    new = NodeProto(op_type=_DYNAMIC, domain=_DOMAIN, output=old.output)
    new.input.extend("" if v is None else f"in_{i}" for i, v in enumerate(operands))
    new.attribute.extend(a for a in old.attribute if a.name != "layout")
    unlink(node)
    node.op = opaque_operator(_DOMAIN, _DYNAMIC)
    node.attributes, node.inputs = opaque_attributes(new, 1), operands
    link(node)


def _graph_constant_value(array: NDArray[Any], name: str) -> Value:
    data = Constant.of(array)
    return Value(TensorType(data.dtype, data.shape), name, constant=data)
