"""Types of the results of operators that only onnxruntime knows: its contrib operators.

The onnx package has no schema of them. onnxruntime infers the types of a model of one node while it
opens it, so what has no kernel there, and every domain that it does not know, stays untyped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto, helper, numpy_helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.tensors import dtype_to_onnx, onnx_name

log = logging.getLogger(__name__)

DOMAINS = frozenset(("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"))
"""The domains whose operators are onnxruntime's own."""
_ELEMENTS = {f"tensor({onnx_name(dtype)})": dtype_to_onnx(dtype) for dtype in DType}
_BODY_OPSET, _IR_VERSION = 17, 10


def runtime_types(
    proto: NodeProto,
    version: int,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
) -> list[TypeProto]:
    """Returns the types of a node's results as onnxruntime infers them; empty ones where it fails.

    Args:
        proto: The node; of no other names than ``in_0`` …, ``out_0`` ….
        version: The opset version of its domain.
        operands: The types of its operands, None where one is left out.
        data: Operands that are known to be small constants, by index.
    """
    unknown = [TypeProto() for _ in proto.output]
    if proto.domain not in DOMAINS:
        return unknown
    try:
        found = {each.name: each for each in _opened(proto, version, operands, data).get_outputs()}
    except Exception as error:  # onnxruntime has a dozen classes, none documented
        log.debug("%s: onnxruntime infers nothing: %s", proto.op_type, error)
        return unknown
    return [_type(found[name]) if name in found else TypeProto() for name in proto.output]


def _opened(
    proto: NodeProto,
    version: int,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
) -> Any:
    import onnxruntime as ort

    graph = onnx.GraphProto(name="node", node=[proto])
    for index, (name, type_) in enumerate(zip(proto.input, operands, strict=True)):
        if name and index in data:
            graph.initializer.append(numpy_helper.from_array(data[index], name))
        elif name and type_ is not None:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in proto.output if name)
    imports = [helper.make_opsetid("", _BODY_OPSET), helper.make_opsetid(proto.domain, version)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _type(found: Any) -> TypeProto:
    """Returns a result's type; a shape of no extents is one that onnxruntime does not know."""
    type_ = TypeProto()
    if found.type not in _ELEMENTS:
        return type_
    type_.tensor_type.elem_type = _ELEMENTS[found.type]
    for extent in found.shape:
        dim = type_.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif extent:
            dim.dim_param = extent
    return type_


__all__ = ["DOMAINS", "runtime_types"]
