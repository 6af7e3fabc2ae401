"""ONNX's nodes of dynamic quantization, which a graph carries as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.onnx_io.foreign.nodes import ForeignAttrs
from qdqbridge.tvm.qnn.emit.scope import Expr, unsupported
from qdqbridge.tvm.relay.dialect.dynamic import MATMUL, QUANTIZE, SCALE, ZERO_POINT, dynamic
from qdqbridge.tvm.relay.emit.scope import RelayScope


def emit_dynamic(scope: RelayScope, node: Node) -> Sequence[Expr]:
    """Returns an expression for each result of a node.

    Raises:
        UnsupportedTargetError: It is another node without a row.
    """
    attributes = node.attributes
    known = isinstance(attributes, ForeignAttrs) and not attributes.domain
    if known and node.op.name == "DynamicQuantizeLinear":
        x = scope.value(node.operand(0))
        scale = scope.emit(dynamic(SCALE, [x]))
        point = scope.emit(dynamic(ZERO_POINT, [x, scale]))
        return [scope.emit(dynamic(QUANTIZE, [x, scale, point])), scale, point]
    if known and node.op.name == "MatMulInteger":
        a, b = (scope.value(node.operand(i)) for i in (0, 1))
        given = [*node.inputs[2:], None, None][:2]
        points = [
            scope.number(np.zeros((), scope.dtype(x))) if value is None else scope.value(value)
            for x, value in zip((a, b), given, strict=True)
        ]
        return [scope.emit(dynamic(MATMUL, [a, b, *points]))]
    raise unsupported(node, "only a Relax module can hold a node of this operator")
