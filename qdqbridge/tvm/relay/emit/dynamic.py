"""ONNX's nodes of dynamic quantization, which a graph carries as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, unsupported
from qdqbridge.tvm.relay.dialect.dynamic import MATMUL, QUANTIZE, SCALE, ZERO_POINT, dynamic
from qdqbridge.tvm.relay.emit.emitter import RelayEmitter


def emit_dynamic(emitter: RelayEmitter, node: Node) -> Sequence[Expr]:
    """Returns an expression for each result of a node.

    Raises:
        UnsupportedTargetError: It is another node without a row.
    """
    attributes = node.attributes
    known = isinstance(attributes, OpaqueAttrs) and not attributes.domain
    if known and node.op.name == "DynamicQuantizeLinear":
        x = emitter.value(node.operand(0))
        scale = emitter.emit(dynamic(SCALE, [x]))
        point = emitter.emit(dynamic(ZERO_POINT, [x, scale]))
        return [emitter.emit(dynamic(QUANTIZE, [x, scale, point])), scale, point]
    if known and node.op.name == "MatMulInteger":
        a, b = (emitter.value(node.operand(i)) for i in (0, 1))
        given = [*node.inputs[2:], None, None][:2]
        points = [
            emitter.number(np.zeros((), emitter.dtype(x)))
            if value is None
            else emitter.value(value)
            for x, value in zip((a, b), given, strict=True)
        ]
        return [emitter.emit(dynamic(MATMUL, [a, b, *points]))]
    raise unsupported(node, "only a Relax module can hold a node of this operator")
