"""How much an opaque node takes to compute, told by ONNX's own inference from its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import NodeProto, helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant

_SESSION = 1 << 11
"""What a session of onnxruntime takes, however small its node is."""
_SMALL = 256
"""Elements of an operand that may say how large a result is."""
_NODE = "node"
_LINEAR = frozenset(
    (
        "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
        "BitwiseXor", "CastLike", "ConstantOfShape", "CumSum", "Equal", "Expand", "EyeLike",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
        "LessOrEqual", "Mean", "Mod", "Not", "OneHot", "Or", "Pad", "Range", "ReduceL1",
        "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare",
        "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Sum", "Tile",
        "Trilu", "Upsample", "Xor",
    )
)  # fmt: skip
"""Operators that look at every element of operands and results a few times."""
_CHOOSING = frozenset(("Compress", "NonZero", "Unique"))
"""Operators that give some of what they read, or where it is: how much is seen only there."""


def opaque_steps(
    proto: NodeProto, domain: str, version: int, operands: Sequence[Constant | None]
) -> int | None:
    """Returns how many elements computing a node makes, reads and multiplies, at most.

    Args:
        proto: The node; its inputs are ``in_0`` …, its outputs are named.
        domain: Its domain.
        version: The opset of the domain.
        operands: The data of its inputs.

    Returns:
        None where it is not known; where two runs give two results; or where the node has a body,
        which may run for ever.
    """
    schema = schema_of(proto.op_type, domain, version)
    if schema is None or schema.node_determinism != schema.NodeDeterminism.Deterministic:
        return None
    if any(o is not None and o.dtype is DType.STRING for o in operands):
        return None
    read = sum(operand.size for operand in operands if operand is not None)
    if domain == "" and proto.op_type in _CHOOSING:
        ranks = sum(len(operand.shape) for operand in operands if operand is not None)
        return _SESSION + read * (4 + ranks)
    counted = _COUNTED.get(proto.op_type) if domain == "" else None
    made = None if counted is None else counted(operands)
    if made is None:
        made = _made(proto, domain, version, operands)
    if made is None:
        return None
    linear = domain == "" and proto.op_type in _LINEAR
    return _SESSION + (made + read if linear else (made + 1) * (read + 1))


def _made_one_hot(operands: Sequence[Constant | None]) -> int | None:
    indices, depth = (*operands, None, None)[:2]
    if indices is None or depth is None or depth.size != 1:
        return None
    return indices.size * max(int(depth.numpy().reshape(-1)[0]), 0)


def _made_range(operands: Sequence[Constant | None]) -> int | None:
    """Returns how many numbers a Range makes; of 16 bits inference does not tell."""
    if len(operands) != 3 or any(o is None or o.size != 1 for o in operands):
        return None
    start, limit, step = (float(o.numpy().reshape(-1)[0]) for o in operands if o is not None)
    if not (math.isfinite(start) and math.isfinite(limit) and math.isfinite(step)) or not step:
        return None
    return max(math.ceil((limit - start) / step), 0)


_COUNTED = {"OneHot": _made_one_hot, "Range": _made_range}
"""Operators of which constants say more than ONNX's inference reads."""


def _made(
    proto: NodeProto, domain: str, version: int, operands: Sequence[Constant | None]
) -> int | None:
    """Returns the elements of the results, None where inference does not tell."""
    graph = onnx.GraphProto(name=_NODE)
    for index, operand in enumerate(operands):
        name = f"in_{index}"
        if operand is None:
            continue
        if operand.size <= _SMALL:
            graph.initializer.append(proto_from_constant(name, operand))
        else:
            info = helper.make_tensor_value_info(
                name, dtype_to_onnx(operand.dtype), list(operand.shape)
            )
            graph.input.append(info)
    graph.node.append(proto)
    names = [name for name in proto.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    imports = [helper.make_opsetid(domain, version)]
    model = helper.make_model(graph, opset_imports=imports)
    try:
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # What onnx raises of a node that it cannot infer; then its steps stay unknown.
        return None
    made = 0
    for value in graph.output:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape") or any(
            not extent.HasField("dim_value") for extent in tensor.shape.dim
        ):
            return None
        made += math.prod(extent.dim_value for extent in tensor.shape.dim)
    return made
