"""What is going to be written, in plain records: decided before any ONNX library is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import NestedType, TensorType


@dataclass(slots=True)
class NodeRow:
    """One node of the file.

    Attributes:
        op_type: ONNX's operator.
        inputs: Tensor names; empty where left out.
        outputs: Tensor names; empty where left out.
        attributes: As ``onnx.helper.make_attribute`` takes them.
        name: The node's name.
        metadata: Its ``metadata_props``.
        proto: The finished node, for what is written as it was read.
        domain: The operator's domain.
    """

    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    proto: NodeProto | None = None
    domain: str = ""


@dataclass(slots=True)
class GraphSpec:
    """A whole file: nodes in order, initializers, and the types of tensors by name.

    Attributes:
        inputs: Names of the graph inputs.
        outputs: Names of the graph outputs.
        nodes: In execution order.
        constants: Initializers by name.
        types: Element type and shape of inputs, outputs and intermediate tensors.
        imports: Opset versions by domain.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[NodeRow] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)


def plain_type(value: Value) -> TensorType:
    """Returns the type of what is stored of a value."""
    if isinstance(value.type, NestedType):
        return value.type
    return TensorType(value.type.dtype, value.type.shape)


def output_type(value: Value) -> TensorType:
    """Returns the type of a graph output: ONNX wants a rank, if only the one that was declared."""
    type_ = plain_type(value)
    if type_.shape is not None or value.declared is None:
        return type_
    return type_.with_shape(tuple(f"?{axis}" for axis in range(len(value.declared))))
