"""A graph written for a runtime: prepared, written and checked as its profile says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.operators import renamed
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant
from qdqbridge.onnx_io.writer import filled, model_of, spec_of
from qdqbridge.onnx_io.writer.files import model_without_tensors, write_files
from qdqbridge.onnx_io.writer.fused import as_the_file_had
from qdqbridge.onnx_io.writer.opset import choose_opset
from qdqbridge.onnx_io.writer.spec import GraphSpec, form_as_read, spec_as_read
from qdqbridge.targets.profiles import profile_of
from qdqbridge.targets.profiles.checker import check_model
from qdqbridge.targets.profiles.finding import Effect
from qdqbridge.targets.profiles.legalization import convolvable, legalized, recentered, unsigned
from qdqbridge.targets.profiles.profile import ExportProfile

_BROKEN = (Effect.REFUSED, Effect.OTHER)
_PARAMETERS = 1 << 16
"""Elements up to which a constant is looked at for the check: scales and zero points."""


def export(
    graph: Graph,
    path: Path,
    *,
    profile: str | ExportProfile = "ort",
    recenter: bool = False,
    overwrite: bool = True,
    opset: int | None = None,
) -> None:
    """Writes a graph as a QDQ ONNX file.

    With graph optimizations disabled onnxruntime computes from it, bit for bit, what it computes
    from the file that the graph was read from, if nothing in it is float16. A file that nobody
    changed and that stores no quantized activation is written with its own nodes, and computes the
    same with optimizations, and in float16, too. More than 1.5 GB of tensors go to
    ``<path>.data``. The files appear complete or not at all.

    Args:
        graph: A canonical graph, or a raw one.
        path: The file.
        profile: The runtime that it is for, or its name in :mod:`qdqbridge.targets.profiles`.
        recenter: Write int8 activations as uint8, which computes the same.
        overwrite: Replace files that are there.
        opset: The opset to write; by default the source's, or the newest that the profile's
            runtime reads.

    Raises:
        UnsupportedTargetError: The profile is not known or requires int8, or ONNX cannot express
            the graph, or not in an opset that the runtime reads.
        OutputExistsError: A file is there and ``overwrite`` is False.
        ModelFileError: The operating system refuses.
    """
    chosen = profile_of(profile)
    kept = None if recenter else _as_read(graph, chosen, opset)
    if kept is None:
        spec = _prepared_spec(_unsigned(graph, chosen) if recenter else graph, chosen, opset)
        model = model_without_tensors(spec, graph.name, graph.metadata)
    else:
        spec, model = kept
    if chosen.strict:
        _refuse_what_breaks(model, spec, chosen, graph.name)
    write_files(model, spec.constants, path, overwrite=overwrite)


def _as_read(
    graph: Graph, profile: ExportProfile, opset: int | None
) -> tuple[GraphSpec, ModelProto] | None:
    """Returns the file's own nodes, if the runtime computes from them what they say."""
    newest = profile.writing.newest
    read = newest is None or graph.opset <= newest.opset
    if not profile.as_read or not read or opset not in (None, graph.opset):
        return None
    form = None if any(renamed(node) for node in graph.nodes) else form_as_read(graph)
    if form is None:
        return None
    spec = spec_as_read(graph, form)
    model = model_without_tensors(spec, graph.name, graph.metadata)
    rules = tuple(rule for rule in profile.rules if rule.effect in _BROKEN)
    found = check_model(
        _light(model, spec), replace(profile, rules=rules), folder=Path(), file=graph.name
    )
    return None if found else (spec, model)


def exported_proto(
    graph: Graph, profile: str | ExportProfile = "ort", opset: int | None = None
) -> ModelProto:
    """Returns a graph as a QDQ ONNX model in memory, as a profile writes it.

    Args:
        graph: A canonical graph, or a raw one.
        profile: The runtime that it is for, or the name of its profile.
        opset: As for :func:`export`.

    Raises:
        UnsupportedTargetError: The profile is not known, or ONNX cannot express the graph.
    """
    chosen = profile_of(profile)
    return model_of(_prepared_spec(graph, chosen, opset), graph)


def _unsigned(graph: Graph, profile: ExportProfile) -> Graph:
    if profile.recentered:
        raise UnsupportedTargetError(
            f"{profile.runtime} cannot take uint8 activations",
            where=f"profile '{profile.name}'",
            why="it has int8 with zero point 0 only",
            fix="leave recenter out, or write for another profile",
        )
    return unsigned(graph)


def _refuse_what_breaks(
    model: ModelProto, spec: GraphSpec, profile: ExportProfile, name: str
) -> None:
    """Raises the complete list of what the profile's runtime would refuse."""
    found = check_model(_light(model, spec), profile, folder=Path(), file=name or "graph")
    refused = [finding for finding in found if finding.effect is Effect.REFUSED]
    if not refused:
        return
    reasons = {f.reason: f for f in reversed(refused)}  # a Q and its DQs have one
    listed = [f for f in refused if reasons[f.reason] is f]
    count = f"{len(listed)} reason{'s' if len(listed) > 1 else ''}"
    fixes = dict.fromkeys(finding.fix for finding in refused if finding.fix)
    raise UnsupportedTargetError(
        f"{profile.runtime} cannot take this graph ({count})",
        where=f"profile '{profile.name}'",
        why="\n         ".join(f"{f.operator} '{f.node}': {f.reason}" for f in listed),
        fix="; ".join(fixes),
    )


def _light(model: ModelProto, spec: GraphSpec) -> ModelProto:
    """Returns a model with its scales and zero points, and of other constants only the type."""
    light = ModelProto()
    light.CopyFrom(model)
    for tensor, constant in spec.constants.items():
        if constant.size <= _PARAMETERS:
            light.graph.initializer.append(proto_from_constant(tensor, constant))
        else:
            dtype = dtype_to_onnx(constant.dtype)
            light.graph.initializer.add(name=tensor, data_type=dtype, dims=constant.shape)
    return light


def _prepared_spec(graph: Graph, profile: ExportProfile, given: int | None = None) -> GraphSpec:
    graph = recentered(graph) if profile.recentered else graph
    graph = convolvable(graph) if profile.writing.convolvable else graph
    graph = legalized(graph, profile.legalizations) if profile.legalizations else graph
    for dtype in () if profile.unsigned is None else profile.unsigned(graph):
        graph = unsigned(graph, dtype)
    options = profile.writing
    graph = as_the_file_had(graph) if options.packed else graph
    spec = spec_of(graph, options, given)
    # The user's own opset goes before what the profile would rather have.
    if given is not None or profile.older is None or spec.imports[""] <= profile.older.newest:
        return spec
    model = _light(model_without_tensors(spec, graph.name, {}), spec)
    found = check_model(model, profile, folder=Path(), file=graph.name)
    if all(finding.rule != profile.older.rule for finding in found):
        return spec
    try:
        older = choose_opset(
            graph, contrib=options.contrib, packed=options.packed, newest=profile.older.newest
        )
    # An operator that only newer opsets have: the file keeps what was found, and the check says so.
    except UnsupportedTargetError:
        return spec
    return filled(graph, options, older)
