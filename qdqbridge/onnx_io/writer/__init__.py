"""Graph -> QDQ ONNX file: every quantized value becomes Q/DQ pairs around float operators.

Nothing here knows a runtime: :class:`~.options.WriterOptions` say how to write what ONNX allows to
write in several ways, and whoever knows the runtime prepares the graph and checks the result.
"""

from __future__ import annotations

from onnx import ModelProto

from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.tensors import proto_from_constant
from qdqbridge.onnx_io.writer.files import model_without_tensors
from qdqbridge.onnx_io.writer.fused import as_the_file_had
from qdqbridge.onnx_io.writer.nodes import NodeWriter
from qdqbridge.onnx_io.writer.opset import (
    check_opset,
    choose_opset,
    imports_of,
    needs_contrib,
    untaken,
)
from qdqbridge.onnx_io.writer.spec import (
    ONNXRUNTIME,
    GraphSpec,
    TensorNames,
    WriterOptions,
    plain_type,
)

_MICROSOFT = "com.microsoft"


def to_proto(
    graph: Graph, options: WriterOptions = ONNXRUNTIME, opset: int | None = None
) -> ModelProto:
    """Returns a graph as a QDQ ONNX model in memory, with all its tensors.

    Args:
        graph: A canonical graph, or a raw one.
        options: How to write what can be written in several ways.
        opset: The opset to write; by default the source's, or the newest that the reader knows.

    Raises:
        UnsupportedTargetError: ONNX cannot express the graph, or not in that opset.
    """
    return model_of(spec_of(graph, options, opset), graph)


def model_of(spec: GraphSpec, graph: Graph) -> ModelProto:
    """Returns the model of a spec in memory, with all its tensors.

    Args:
        spec: The rows.
        graph: What they are of: its name and metadata become the file's.
    """
    model = model_without_tensors(spec, graph.name, graph.metadata)
    for name, constant in spec.constants.items():
        model.graph.initializer.append(proto_from_constant(name, constant))
    return model


def spec_of(graph: Graph, options: WriterOptions, opset: int | None = None) -> GraphSpec:
    """Returns the rows of a graph.

    Args:
        graph: A canonical graph, or a raw one.
        options: How to write what can be written in several ways.
        opset: The opset to write; by default the source's, or the newest that the reader knows.

    Raises:
        UnsupportedTargetError: ONNX cannot express the graph, or not in that opset.
    """
    contrib, packed, newest = options.contrib, options.packed, options.newest
    graph = as_the_file_had(graph) if packed else graph
    if opset is not None:
        given = check_opset(graph, opset, contrib=contrib, packed=packed)
        spec = filled(graph, options, given)
        if given < graph.opset and (reason := untaken(spec)):
            raise _too_old(graph, given, reason)
        return spec
    limit, reader = (None, "ONNX") if newest is None else (newest.opset, newest.runtime)
    chosen = choose_opset(graph, contrib=contrib, packed=packed, newest=limit, reader=reader)
    spec = filled(graph, options, chosen)
    if chosen < graph.opset and (reason := untaken(spec)):
        if limit is not None and graph.opset > limit:
            raise _too_old(graph, chosen, reason)
        spec = filled(graph, options, choose_opset(graph, contrib=contrib, packed=packed))
    return spec


def _too_old(graph: Graph, opset: int, reason: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"opset {opset} cannot express this graph",
        where=graph.name,
        why=f"it has no {reason}",
        fix=f"choose a newer opset (--opset); the source has {graph.opset}",
    )


def filled(graph: Graph, options: WriterOptions, opset: int) -> GraphSpec:
    """Returns the rows of a graph in an opset that can express it."""
    spec = GraphSpec(imports=imports_of(graph.nodes, opset))
    contrib = options.contrib and needs_contrib(graph, opset)
    if contrib:
        spec.imports.setdefault(_MICROSOFT, 1)
    domain = _MICROSOFT if contrib else ""
    writer = NodeWriter(graph.nodes, TensorNames(graph), opset, options, spec, domain)
    for value in graph.inputs:
        spec.inputs.append(value.name)
        spec.types[value.name] = plain_type(value)
    writer.write(graph.nodes, graph.outputs)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        spec.outputs.append(name)
        writer.output(name, value)
    return spec
