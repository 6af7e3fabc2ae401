"""Small ONNX nodes and models for the tests of the codecs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import Shape, TensorType
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.codecs import Encoded, NodeView
from qdqbridge.onnx_io.tensors import dtype_to_onnx

Array = np.ndarray[Any, Any]


def value(shape: Shape, dtype: DType = DType.FLOAT32) -> Value:
    """A value known only at run time."""
    return Value(TensorType(dtype, shape), "x")


def constant(array: Array) -> Value:
    """A constant value."""
    return Value(TensorType(DType.of(array.dtype), array.shape), "c", constant=Constant.of(array))


def view(
    op_type: str,
    operands: Sequence[Value | Array | None],
    opset: int,
    *,
    domain: str = "",
    results: int | Sequence[int] = 1,
    **attributes: Any,
) -> NodeView:
    """The view of a new node with so many results, or with results at these places."""
    values = [constant(v) if isinstance(v, np.ndarray) else v for v in operands]
    names = ["" if v is None else f"in_{i}" for i, v in enumerate(values)]
    places = range(results) if isinstance(results, int) else results
    outputs = [f"out_{i}" if i in places else "" for i in range(max(places) + 1)]
    proto = helper.make_node(op_type, names, outputs, "n", domain=domain, **attributes)
    return NodeView(proto, opset, values, "m.onnx")


def view_of(encoded: Encoded, opset: int, results: int = 1) -> NodeView:
    """The view of a node that a codec wrote, with so many results where it does not place them."""
    return view(
        encoded.op_type,
        encoded.inputs,
        opset,
        domain=encoded.domain,
        results=encoded.results or results,
        **encoded.attributes,
    )


def model_of(node: NodeView) -> onnx.ModelProto:
    """A model of one node: constants as initializers, other operands as inputs."""
    inputs: list[onnx.ValueInfoProto] = []
    initializers: list[onnx.TensorProto] = []
    for name, operand in zip(node.proto.input, node.operands, strict=True):
        if operand is None:
            continue
        if operand.constant is not None:
            initializers.append(numpy_helper.from_array(operand.constant.numpy(), name))
        else:
            code = dtype_to_onnx(operand.type.dtype)
            inputs.append(helper.make_tensor_value_info(name, code, operand.type.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.proto.output if name]
    graph = helper.make_graph([node.proto], "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", node.opset)]
    if node.domain:
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(node.domain, node.opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {v.name: v for v in inferred.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(
        known[o.name]
        if known[o.name].type.WhichOneof("value")
        else helper.make_tensor_value_info(o.name, onnx.TensorProto.FLOAT, None)
        for o in outputs
    )
    return model


def computed(row: str, attributes: Any, operands: Sequence[Value | None], x: Array) -> list[Array]:
    """What the operator table computes; operands that are not constant get ``x``."""
    arrays = [
        None if v is None else v.constant.numpy() if v.constant is not None else x for v in operands
    ]
    return list(BY_NAME[row].compute(attributes, arrays))
