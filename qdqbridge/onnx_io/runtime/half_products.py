"""Products of half floats that onnxruntime gets wrong where its optimizations are off."""

from __future__ import annotations

from collections.abc import Set

import onnx
from onnx import helper

from qdqbridge.core.ops.packed_products import EIGHT_BITS
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies


def rounds_activations(node: onnx.NodeProto) -> bool:
    """Returns whether a node is a packed product whose activations are rounded to 8 bits."""
    level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
    return node.op_type == "MatMulNBits" and level == EIGHT_BITS


def keep_half_products(graph: onnx.GraphProto, outer: Set[str] = frozenset()) -> None:
    """Puts an Identity behind packed products of half floats, which keeps these half floats.

    Between nodes that its CPU has in float32 only, onnxruntime 1.32 makes such a product one of
    float32, and its scales the result of a Cast. Without constant folding they stay that (and in
    the body of an If or Loop with it, where they are constants of the graph around it), and with
    ``accuracy_level`` 4 its kernel takes scales that are no constants for 0 (rule
    ``scales-of-run-time``). A node beside one with a kernel of half floats keeps its type.

    Args:
        graph: A model's graph, or a body; it is changed.
        outer: Constants of half floats of the graphs around a body.
    """
    halves = outer | {
        tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16
    }
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            for body in bodies(attribute):
                keep_half_products(body, halves)
        graph.node.append(node)
        if rounds_activations(node) and halves & set(node.input):
            made, result = graph.node[-1], node.output[0]
            made.output[0] = f"{result}:half"
            graph.node.append(helper.make_node("Identity", [made.output[0]], [result]))
