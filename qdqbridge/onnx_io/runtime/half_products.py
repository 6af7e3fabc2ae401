"""Products of half floats that onnxruntime gets wrong where its optimizations are off."""

from __future__ import annotations

import onnx

from qdqbridge.ops.packed_products import EIGHT_BITS


def shown_half_products(graph: onnx.GraphProto) -> None:
    """Makes the results of packed products of half floats outputs, which keeps these half floats.

    Between nodes that its CPU has in float32 only, onnxruntime 1.32 makes such a product one of
    float32, and its scales the result of a Cast. Without constant folding they stay that, and with
    ``accuracy_level`` 4 its kernel takes scales that are no constants for 0 (rule
    ``scales-of-run-time``). A node that makes an output keeps its type; those of bodies are left.
    """
    halves = {
        tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16
    }
    shown = {value.name for value in graph.output}
    for node in graph.node:
        level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
        if node.op_type != "MatMulNBits" or level != EIGHT_BITS or node.output[0] in shown:
            continue
        if halves.intersection(node.input):
            graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
