"""Whether a file keeps what a profile's runtime requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path

import onnx

from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.onnx_io.control_flow.bodies import is_quantized
from qdqbridge.onnx_io.control_flow.branches import take_constant_branches
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.inference.shapes import infer
from qdqbridge.onnx_io.reading.functions import inline_functions
from qdqbridge.onnx_io.reading.model_file import default_opset, read_model
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.reading.structure import check_text, sort_nodes
from qdqbridge.targets.profiles.file_view import FileView
from qdqbridge.targets.profiles.finding import Effect, Finding, findings_of
from qdqbridge.targets.profiles.profile import ExportProfile

_NO_QUANTIZATION = Finding(
    "no-quantization", Effect.FLOAT, "", "", "the file has no quantization",
    fix="quantize the model first, e.g. with onnxruntime.quantization",
)  # fmt: skip


def view_of(model: onnx.ModelProto, folder: Path, file: str) -> FileView:
    """Returns a model as a runtime sees it.

    Args:
        model: The model; it is not changed.
        folder: Where its external data lies.
        file: Its name, for messages.
    """
    model = take_constant_branches(inline_functions(model, file))
    if model.graph.node:
        sort_nodes(model.graph, file)
    return FileView(model, folder, infer(model))


def optimized_view(path: Path) -> FileView:
    """Returns a file that onnxruntime wrote after its optimizations, as a profile sees it."""
    return view_of(onnx.load(path), path.parent, str(path))


def check_model(
    model: onnx.ModelProto, profile: ExportProfile, *, folder: Path, file: str
) -> list[Finding]:
    """Returns what a model does not keep of a profile."""
    return findings_of(view_of(model, folder, file), profile.rules)


def check_source(source: Graph | str | PathLike[str], profile: ExportProfile) -> list[Finding]:
    """Returns what a file, or the file that a graph would be written to, does not keep.

    Raises:
        ModelFileError: The file cannot be read.
        InvalidModelError: It breaks ONNX's rules, and none of the profile's.
        UnsupportedModelError: It keeps the profile's rules, and has operators that nobody knows.
    """
    if isinstance(source, Graph):
        from qdqbridge.targets.profiles.export import exported_proto  # which checks, too

        model = exported_proto(source, profile)
        file = source.name or "graph"
        return _checked(model, profile, folder=Path(), file=file)
    path = Path(source)
    model = read_model(path)
    check_text(model, str(path))
    found = _checked(model, profile, folder=path.parent, file=str(path))
    if not found:  # a file that nothing can read keeps no rule either
        with suppress(UnsupportedQuantization):  # another runtime may know what it means
            read(path)
    return found


def _checked(
    model: onnx.ModelProto, profile: ExportProfile, *, folder: Path, file: str
) -> list[Finding]:
    found = check_model(model, profile, folder=folder, file=file)
    found = [*_too_new(model, profile), *found]
    nodes = (*model.graph.node, *(node for body in model.functions for node in body.node))
    quantized = any(is_quantized(each) for node in nodes for each in (node, *nodes_inside(node)))
    return found if quantized else [_NO_QUANTIZATION, *found]


def _too_new(model: onnx.ModelProto, profile: ExportProfile) -> Iterator[Finding]:
    """Yields that the runtime reads no such file, where the file says versions it does not know."""
    newest, opset = profile.writing.newest, default_opset(model)
    if newest is not None and (opset > newest.opset or model.ir_version > newest.ir):
        reads = f"{newest.runtime} reads up to {newest.opset} and {newest.ir}"
        yield Finding(
            "versions", Effect.REFUSED, "", "",
            f"the file has opset {opset} and IR {model.ir_version}; {reads}",
            fix=f"export it, which writes opset {newest.opset} at most",
        )  # fmt: skip
