"""Bodies in which ONNX's shape inference knows every node that quantization brings.

ONNX's own inference goes through the bodies of If, Loop and Scan, and ends at operators of
onnxruntime's domain: QuantizeLinear and DequantizeLinear of 16 bits, products with packed weights.
Operators of ONNX's own that have the same shapes stand for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from qdqbridge.onnx_io.control_flow.subgraph_names import bodies, nodes_inside
from qdqbridge.onnx_io.domains import ONNX_DOMAINS

_CONTRIB = "com.microsoft"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def with_known_bodies(node: NodeProto) -> tuple[NodeProto, list[ValueInfoProto]]:
    """Returns a node of the same shapes, and what its bodies capture beside what they did.

    Args:
        node: Any node; it is not changed, and is what is returned where everything is known.
    """
    if all(inner.domain in ONNX_DOMAINS for inner in nodes_inside(node)):
        return node, []
    copy = NodeProto()
    copy.CopyFrom(node)
    matrices: dict[str, ValueInfoProto] = {}
    _make_known(copy, {}, matrices)
    return copy, list(matrices.values())


def _make_known(
    node: NodeProto, types: Mapping[str, int], matrices: dict[str, ValueInfoProto]
) -> None:
    for attribute in node.attribute:
        for body in bodies(attribute):
            own = {**types, **{t.name: t.data_type for t in body.initializer}}
            for inner in body.node:
                known = _inferable_node(inner, own, matrices)
                if known is None:
                    _make_known(inner, own, matrices)
                else:
                    inner.CopyFrom(known)


def _inferable_node(
    node: NodeProto, types: Mapping[str, int], matrices: dict[str, ValueInfoProto]
) -> NodeProto | None:
    """Returns a node that inference knows; None where it knows the node itself, or nothing does."""
    if node.domain != _CONTRIB:
        return None
    match node.op_type:
        case "DequantizeLinear":
            to = types.get(node.input[1], TensorProto.FLOAT)
            to = to if to in _FLOATS else TensorProto.FLOAT
        case "QuantizeLinear":
            zero_point = node.input[2] if len(node.input) > 2 else ""
            to = types.get(zero_point, TensorProto.UINT8)
        case "MatMulNBits":
            extents = {attribute.name: attribute.i for attribute in node.attribute}
            shape = [extents["K"], extents["N"]]
            name = f"a matrix of {shape[0]} and {shape[1]}"
            matrices[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            return helper.make_node("MatMul", [node.input[0], name], node.output[:1])
        case _:
            return None
    return helper.make_node("Cast", node.input[:1], node.output[:1], to=to)
