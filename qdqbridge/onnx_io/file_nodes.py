"""The nodes of a float16 file, kept for a graph that is saved as it was read.

onnxruntime's CPU has float16 kernels for some operators. The others compute in float32 between
Casts that it inserts, and it drops a Cast to float16 and back; of an operator with a float16
kernel, too, results stay float32 where every neighbour's do ("isolated" nodes). So whether a
result is rounded to a half float depends on what its node stands beside: on an Identity behind a
constant, on a Shape that reads the result, on a chain of constants that is not folded. None of
them means anything, and the canonical form has none of them; but no other nodes than the file's
give the file's bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from qdqbridge.graph.as_read import AsRead
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.types import NestedType, TensorType
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.domains import plain_domain
from qdqbridge.onnx_io.inference.shapes import declared_types
from qdqbridge.onnx_io.reading.structure import describe
from qdqbridge.onnx_io.tensors import dtype_of, embed_external_data

_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that are an element type."""


@dataclass(frozen=True, slots=True, eq=False)
class FileNodes:
    """A checked model whose functions are inlined and whose nodes are in order.

    Attributes:
        nodes: Its nodes.
        constants: Its initializers.
        types: The types that it declares of what nodes make.
        imports: Opset versions by domain.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, TensorType]
    imports: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class HalfFile:
    """What is kept of a file that has half floats, until it is read.

    Attributes:
        model: The model without the data of its initializers.
        initializers: Their names.
    """

    model: onnx.ModelProto
    initializers: tuple[str, ...]

    def as_read(self, graph: Graph, values: Mapping[str, Value]) -> AsRead | None:
        """Returns the file's nodes, where a graph computes half floats and nothing quantized.

        Args:
            graph: What was read of it.
            values: The initializers that were read, by name.
        """
        every = list(graph.values())
        if any(value.quant is not None or isinstance(value.type, NestedType) for value in every):
            return None
        if not any(value.producer and value.type.dtype is DType.FLOAT16 for value in every):
            return None
        constants: dict[str, Constant] = {}
        for name in self.initializers:
            data = values[name].constant if name in values else None
            if data is None:
                return None
            constants[name] = data
        proto = self.model.graph
        file = proto.name
        types = {
            name: TensorType(dtype_of(dtype, file), shape)
            for name, (dtype, shape) in declared_types(proto.value_info).items()
            if dtype
        }
        imports = {entry.domain: entry.version for entry in self.model.opset_import}
        same = imports.pop("ai.onnx", graph.opset)
        imports[""] = max(same, imports.get("", 0))
        return AsRead(FileNodes(tuple(proto.node), constants, types, imports))


def half_file(model: onnx.ModelProto, path: Path) -> HalfFile | None:
    """Returns what is to be kept of a model; None where it mentions no half floats.

    Args:
        model: The model.
        path: Its file; external data lies in its folder.
    """
    graph = model.graph
    tensors = any(each.data_type == TensorProto.FLOAT16 for each in graph.initializer)
    inputs = any(each.type.tensor_type.elem_type == TensorProto.FLOAT16 for each in graph.input)
    if not tensors and not inputs and not _made_by(graph.node):
        return None
    light = onnx.ModelProto(opset_import=model.opset_import)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.value_info.extend(graph.value_info)
    for node in light.graph.node:
        for each in (node, *nodes_inside(node)):
            each.domain = plain_domain(each.domain)
        embed_external_data(node, path.parent, f"{path}, {describe(node)}")
    return HalfFile(light, tuple(each.name for each in graph.initializer))


def _made_by(nodes: Iterable[onnx.NodeProto]) -> bool:
    """True where a node casts to half floats, or holds some."""
    return any(
        (each.name in _TYPES and each.i == TensorProto.FLOAT16)
        or each.t.data_type == TensorProto.FLOAT16
        for node in nodes
        for each in node.attribute
    )
