"""What the graph's inputs mean: what their readers say, and nothing where there are none."""

from __future__ import annotations

from qdqbridge.graph.graph import Graph
from qdqbridge.graph.types import TensorType


def release_inputs(graph: Graph) -> None:
    """Makes quantized inputs that no node reads plain integers: no file could say more of them."""
    for value in graph.inputs:
        if value.quant is not None and not value.users:
            value.type = TensorType(value.type.dtype, value.type.shape)
