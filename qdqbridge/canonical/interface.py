"""What the graph's inputs and outputs mean: no more than a file could say of them."""

from __future__ import annotations

from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.types import TensorType


def release_interface(graph: Graph) -> None:
    """Makes plain integers of quantized inputs that no node reads, and of outputs that none makes.

    No file could say more of such inputs, nor of outputs that are quantized constants.
    """
    for value in graph.inputs:
        if value.quant is not None and not value.users:
            value.type = TensorType(value.type.dtype, value.type.shape)
    plain: dict[Value, Value] = {}
    for value in graph.outputs:
        if value.quant is not None and value.constant is not None and value not in plain:
            type_ = TensorType(value.type.dtype, value.type.shape)
            plain[value] = Value(type_, value.name, constant=value.constant)
    graph.outputs[:] = [plain.get(value, value) for value in graph.outputs]
