"""Graph -> QDQ ONNX file: every quantized value becomes Q/DQ pairs around float operators."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from qdqbridge.graph.graph import Graph
from qdqbridge.graph.types import TensorType
from qdqbridge.onnx_io.profiles import Profile, profile_of
from qdqbridge.onnx_io.tensors import proto_from_constant
from qdqbridge.onnx_io.write_file import write_files
from qdqbridge.onnx_io.write_model import model_without_tensors
from qdqbridge.onnx_io.write_nodes import NodeWriter
from qdqbridge.onnx_io.write_opset import choose_opset, imports_of
from qdqbridge.onnx_io.write_sheet import Sheet


def write(graph: Graph, path: Path, *, profile: str = "ort", overwrite: bool = True) -> None:
    """Writes a graph as a QDQ ONNX file.

    With graph optimizations disabled onnxruntime computes from it, bit for bit, what it computes
    from the file that the graph was read from. More than 1.5 GB of tensors go to
    ``<path>.data``. The files appear complete or not at all.

    Args:
        graph: A canonical graph, or a raw one.
        path: The file.
        profile: How to spell what can be spelled in several ways (see :mod:`.profiles`).
        overwrite: Replace files that are there.

    Raises:
        UnsupportedTargetError: The profile is not known, or ONNX cannot express the graph.
        OutputExistsError: A file is there and ``overwrite`` is False.
        ModelFileError: The operating system refuses.
    """
    sheet = _sheet(graph, profile_of(profile))
    model = model_without_tensors(sheet, graph.name, graph.metadata)
    write_files(model, sheet.constants, path, overwrite=overwrite)


def to_proto(graph: Graph, profile: str = "ort") -> ModelProto:
    """Returns a graph as a QDQ ONNX model in memory, with all its tensors.

    Raises:
        UnsupportedTargetError: The profile is not known, or ONNX cannot express the graph.
    """
    sheet = _sheet(graph, profile_of(profile))
    model = model_without_tensors(sheet, graph.name, graph.metadata)
    for name, constant in sheet.constants.items():
        model.graph.initializer.append(proto_from_constant(name, constant))
    return model


def _sheet(graph: Graph, profile: Profile) -> Sheet:
    opset = choose_opset(graph)
    sheet = Sheet(imports=imports_of(graph, opset))
    writer = NodeWriter(graph, opset, profile, sheet)
    for value in graph.inputs:
        sheet.inputs.append(value.name)
        sheet.types[value.name] = TensorType(value.type.dtype, value.type.shape)
    for node in graph.nodes:
        writer.node(node)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        sheet.outputs.append(name)
        writer.output(name, value)
    return sheet
