"""A bias and the Gelu of the sum as the one operator of com.microsoft that their file had.

Of half floats onnxruntime rounds the sum where an Add makes it, and not where it is inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.unary import GELU
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.lowering.normalization import BIAS_GELU, DATA, WITH_BIAS
from qdqbridge.onnx_io.writer.rows import RowWriter, real_dtype
from qdqbridge.onnx_io.writer.spec import NodeRow

_NAMES = {BIAS_GELU: "BiasGelu", f"FastGelu{WITH_BIAS}": "FastGelu"}
"""By variant: the operator that adds a bias first."""


@dataclass(frozen=True, slots=True)
class BiasGelu:
    """Nodes that one operator stands for.

    Attributes:
        name: The operator.
        gelu: The Gelu, in whose place it is written.
        data: What the bias is added to.
        bias: The vector.
    """

    name: str
    gelu: Node
    data: Value
    bias: Value


def bias_gelus(nodes: Iterable[Node], outputs: set[Value]) -> dict[Node, BiasGelu]:
    """Returns, for each node that goes into such an operator, the whole.

    Its sum is among the nodes, too: part of a graph, or of a body, is written by itself.
    """
    found: dict[Node, BiasGelu] = {}
    here = dict.fromkeys(nodes)
    for node in here:
        variant, _, bias = node.origin.variant.partition(DATA)
        added = node.operand(0).producer if node.op is GELU and variant in _NAMES else None
        if added not in here or added.op is not ADD or len(added.inputs) != 2:
            continue
        total = added.output
        if (
            len(total.users) != 1
            or total in outputs
            or not (_has_no_quant(added) and _has_no_quant(node))
        ):
            continue
        pair = added.operand(0), added.operand(1)
        vectors = [value for value in pair if _is_bias(value, total)]
        if not vectors:
            continue
        vector = next((value for value in vectors if value.name == bias), vectors[-1])
        data = pair[1] if vector is pair[0] else pair[0]
        if data.rank != total.rank or data.type.shape != total.type.shape:
            continue
        found.update(dict.fromkeys((added, node), BiasGelu(_NAMES[variant], node, data, vector)))
    return found


def _has_no_quant(node: Node) -> bool:
    """True where a node has no quantized operand or result."""
    values = (*(value for value in node.inputs if value is not None), *node.outputs)
    return all(value.quant is None for value in values)


def _is_bias(value: Value, total: Value) -> bool:
    """True for a vector over the last axis of a sum."""
    shape = total.type.shape
    return bool(shape) and value.type.shape == shape[-1:]


def bias_gelu_row(writer: RowWriter, whole: BiasGelu) -> None:
    """Adds the row of the operator."""
    gelu, dtype = whole.gelu, real_dtype(whole.gelu)
    result = writer.tensors.of(gelu.output)
    name, metadata = writer.identity(gelu, f"{result}_{gelu.op.name}")
    inputs = [writer.real(value, dtype) for value in (whole.data, whole.bias)]
    row = NodeRow(whole.name, inputs, [result], {}, name, metadata, domain=MICROSOFT)
    writer.spec.nodes.append(row)
    writer.spec.imports.setdefault(MICROSOFT, 1)
    writer.spec.types[result] = TensorType(gelu.output.type.dtype, gelu.output.type.shape)
