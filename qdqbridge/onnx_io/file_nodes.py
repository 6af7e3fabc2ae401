"""The nodes of a file that stores no quantized activation, kept for a graph saved as it was read.

Such a file is float, or onnxruntime's own: weights in blocks (MatMulNBits), activations quantized
inside of operators. Of it the canonical form has nothing to say but which nodes mean nothing, and
onnxruntime's bits depend on these. Its optimizations fuse what stands together, and a fused kernel
rounds otherwise: with fewer nodes between, more is fused. And its CPU has float16 kernels for some
operators only. The others compute in float32 between Casts that it inserts, and it drops a Cast to
float16 and back; of an operator with a float16 kernel, too, results stay float32 where every
neighbour's do ("isolated" nodes). So whether a result is rounded to a half float depends on what
its node stands beside: on an Identity behind a constant, on a Shape that reads the result, on a
chain of constants that is not folded. No other nodes than the file's give the file's bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import AsRead, Graph, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.inference.shapes import declared_types
from qdqbridge.onnx_io.reading.constants import is_constant
from qdqbridge.onnx_io.reading.structure import all_nodes, describe, plain_domain, subgraphs
from qdqbridge.onnx_io.tensors import dtype_of, embed_external_data

_HOLDING = (onnx.AttributeProto.TENSOR, onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
"""Types of attributes whose data may lie elsewhere."""
_HELD, _WIDEST = 1 << 26, 8
"""Bytes of the nodes up to which they are kept, beside the graph; of the widest element type."""


@dataclass(frozen=True, slots=True, eq=False)
class FileNodes:
    """A checked model whose functions are inlined and whose nodes are in order.

    Attributes:
        constants: Its initializers.
        types: The types that it declares of what nodes make.
        imports: Opset versions by domain.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, TensorType]
    imports: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class KeptFile:
    """What is kept of a file until it is read.

    Attributes:
        model: The model without initializers and Constant nodes.
        initializers: Their names, and those of what Constant nodes make.
    """

    model: onnx.ModelProto
    initializers: tuple[str, ...]

    def as_read(self, graph: Graph, values: Mapping[str, Value]) -> AsRead | None:
        """Returns the file's nodes, where all of its constants were read.

        Args:
            graph: What was read of it.
            values: The constants that were read, by name.
        """
        if not graph.nodes:
            return None
        constants: dict[str, Constant] = {}
        for name in self.initializers:
            data = values[name].constant if name in values else None
            if data is None:
                return None
            constants[name] = data
        proto = self.model.graph
        file = proto.name
        made = {value.name: value.type.dtype for value in graph.values()}
        types = {
            name: TensorType(made.get(name) or dtype_of(dtype, file), shape)
            for name, (dtype, shape) in declared_types(proto.value_info).items()
            if dtype
        }
        imports = {entry.domain: entry.version for entry in self.model.opset_import}
        same = imports.pop("ai.onnx", graph.opset)
        imports[""] = max(same, imports.get("", 0))
        return AsRead(FileNodes(tuple(proto.node), constants, types, imports))


def kept_file(model: onnx.ModelProto, path: Path) -> KeptFile | None:
    """Returns what is to be kept of a model; None where it quantizes, or nodes hold much.

    Args:
        path: Its file; external data lies in its folder.
    """
    graph = model.graph
    if any(node.op_type == "QuantizeLinear" for node in graph.node):
        return None
    light = onnx.ModelProto(opset_import=model.opset_import)
    light.graph.name = graph.name
    light.graph.node.extend(node for node in graph.node if not is_constant(node))
    holders = [node for node in light.graph.node if any(a.type in _HOLDING for a in node.attribute)]
    if light.graph.ByteSize() + _WIDEST * _outside(holders) > _HELD:
        return None
    for node in light.graph.node:
        if node.domain:
            node.domain = plain_domain(node.domain)
    for node in holders:
        for inner in nodes_inside(node):
            inner.domain = plain_domain(inner.domain)
        embed_external_data(node, path.parent, f"{path}, {describe(node)}")
    light.graph.value_info.extend(graph.value_info)
    made = (node.output[0] for node in graph.node if is_constant(node))
    return KeptFile(light, (*(each.name for each in graph.initializer), *made))


def _outside(holders: Iterable[onnx.NodeProto]) -> int:
    """Returns the elements of initializers inside the bodies of nodes whose data lie elsewhere."""
    return sum(
        math.prod(tensor.dims)
        for node in all_nodes(holders)
        for body in subgraphs(node)
        for tensor in body.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    )
