"""What is going to be written, in plain records: decided before any ONNX library is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from onnx import NodeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import NestedType, TensorType
from qdqbridge.onnx_io.file_nodes import FileNodes


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


# ---- The spec of a graph that is written with the nodes of its file


def form_as_read(graph: Graph) -> FileNodes | None:
    """Returns the file's nodes where they are kept and still mean what the graph says.

    None also where the graph stores quantized activations, or two nodes have one name, which
    onnxruntime refuses: these are written canonically.
    """
    kept = graph.as_read
    if kept is None or not isinstance(kept.form, FileNodes) or not kept.stands_for(graph):
        return None
    names = [node.name for node in kept.form.nodes if node.name]
    if len(set(names)) < len(names) or any(_is_runtime_codes(value) for value in graph.values()):
        return None
    return kept.form


def spec_as_read(graph: Graph, form: FileNodes) -> GraphSpec:
    """Returns the spec of a file's own nodes; the interface is the graph's.

    Args:
        graph: A graph that nobody has changed since it was read.
        form: The file that it was read from.
    """
    types = dict(form.types)
    types.update((value.name, plain_type(value)) for value in graph.inputs)
    named = zip(graph.output_names, graph.outputs, strict=True)
    types.update((name, output_type(value)) for name, value in named)
    return GraphSpec(
        inputs=[value.name for value in graph.inputs],
        outputs=list(graph.output_names),
        nodes=[_copied_node_row(node) for node in form.nodes],
        constants=dict(form.constants),
        types=types,
        imports=dict(form.imports),
    )


def _copied_node_row(node: NodeProto) -> NodeRow:
    proto = NodeProto()
    proto.CopyFrom(node)
    proto.ClearField("metadata_props")
    metadata = tuple((entry.key, entry.value) for entry in node.metadata_props)
    return NodeRow(
        node.op_type, list(node.input), list(node.output), {}, node.name, metadata, proto,
        node.domain,
    )  # fmt: skip


def _is_runtime_codes(value: Value) -> bool:
    """True where a tensor of codes is fed or computed, or something that is no tensor."""
    if isinstance(value.type, NestedType):
        return True
    return value.quant is not None and value.constant is None and not _looked_up(value)


def _looked_up(value: Value) -> bool:
    """True for rows of a constant, as an embedding's, wherever they have been moved since."""
    while value.producer is not None and value.producer.op.flow is Flow.MOVE:
        value = value.producer.operand(0)
    return value.constant is not None


# ---- How a graph is written where ONNX allows to write the same in several ways ------------------


class Clamp(Enum):
    """Where a range narrower than the storage type is written; all give the same integers."""

    BEFORE = "Relu or Clip on the operator's float result, before its QuantizeLinear"
    BEHIND = "between a Q/DQ pair and a second Q: Relu, or Max and Min with stored numbers"
    STORED = "on stored uint8; for other types, on floats between a Q/DQ pair and a second Q"


class Bias(Enum):
    """How a bias is written that has an integer form."""

    AS_READ = "as the file it was read from"
    FLOAT = "as float constant"
    INT32 = "as int32 constant behind a DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Versions:
    """The newest versions that a runtime reads.

    Attributes:
        runtime: The runtime and its version.
        opset: Of ONNX's operators.
        ir: Of the file format.
    """

    runtime: str
    opset: int
    ir: int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The choices of a writer.

    Attributes:
        clamp: Where narrower ranges are written.
        bias: How biases are written.
        convolvable: Write into floats weights of convolutions that do not fit into int8, and those
            with scales along the terms of a sum.
        apart: Give each tensor a scale and a zero point of its own, also where others have equal
            ones.
        guarded: Put a Max that changes nothing between a Concat and its second rounding.
        clipped: Put a Clip to what the type holds in front of a QuantizeLinear of 16 bits.
        contrib: Write Q and DQ of 16 and 4 bits in ``com.microsoft`` below opset 21.
        packed: Keep the MatMulNBits of a file, and hide from the runtime what it would make one of.
        operators: Use QLinear operators where there is one.
        newest: What the reader knows; newer files are written down to it, or refused.
    """

    clamp: Clamp
    bias: Bias = Bias.AS_READ
    convolvable: bool = False
    apart: bool = False
    guarded: bool = False
    clipped: bool = False
    contrib: bool = False
    packed: bool = False
    operators: bool = False
    newest: Versions | None = None


ONNXRUNTIME_1_31 = Versions("onnxruntime 1.31", opset=26, ir=13)
"""1.32 reads opset 28 and IR 14, and has kernels of opset 27; every older file is read by both."""
ONNXRUNTIME = WriterOptions(Clamp.STORED, packed=True, newest=ONNXRUNTIME_1_31)
"""What onnxruntime's CPU computes fast. 1.31 makes a float FusedConv of a Conv with a clamp right
behind it; with the clamp on integers the Conv is a QLinearConv, and the clamp is integer as well.
On x86 that holds for uint8 only: int8 becomes uint8 where a DQ follows its Q at once."""
