"""A graph written for a runtime: prepared, written and checked as its profile says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import ModelProto

from qdqbridge.core.graph.atomic_write import bytes_written
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.reading.model_file import read_model
from qdqbridge.onnx_io.runtime.operators import renamed
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant
from qdqbridge.onnx_io.writer import filled, model_of, spec_of
from qdqbridge.onnx_io.writer.files import model_without_tensors, write_files
from qdqbridge.onnx_io.writer.fused import as_the_file_had
from qdqbridge.onnx_io.writer.opset import choose_opset
from qdqbridge.onnx_io.writer.spec import GraphSpec, form_as_read, spec_as_read
from qdqbridge.targets.profiles import profile_of
from qdqbridge.targets.profiles.file_view import FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.finding import (
    Effect,
    ExportProfile,
    check_model,
    findings_of,
    view_of,
)
from qdqbridge.targets.profiles.legalization import convolvable, legalized, recentered, unsigned
from qdqbridge.targets.profiles.ort.rules import FUSED_WRONGLY

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


def file_size(graph: Graph, profile: str | ExportProfile = "ort") -> int:
    """Returns the bytes that :func:`export` writes for a graph."""
    return bytes_written(lambda path: export(graph, path, profile=profile), "model.onnx")


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


# ---- What an export changed, and why: the file that was read beside the file that was written ----


_UNROUNDED = "float activations: only onnxruntime's MatMulNBits rounds them to 8 bits in blocks"

_COMPUTES = {
    "rounded-activation": "onnxruntime rounds activations to 8 bits in blocks, unless its "
    "optimizations are off; --profile ort writes what it computes as it is",
    "unsaid-parameters": "onnxruntime's optimizations fuse what has no place for these scales; "
    "--profile ort writes what it computes as it is",
    "bias-units": "onnxruntime's Gemm adds an int32 bias in other units; --profile ort writes what "
    "it computes as it is",
    "room-for-sums": "onnxruntime's kernels add in 32 bits, and wrap; --profile ort writes what it "
    "computes as it is",
}
"""What onnxruntime makes of files of other profiles, by its rule."""
_MAKES_OF_IT = {
    Effect.OTHER: "onnxruntime's optimizations make something else of it",
    Effect.REFUSED: "onnxruntime's optimizations make something of it that onnxruntime refuses; "
    "without them it runs",
}


@dataclass(frozen=True, slots=True)
class ExportChange:
    """One thing that is otherwise in the written file.

    Attributes:
        what: What it is about.
        before: As it was read.
        after: As it is written.
        why: Which rule of the runtime, where there is one.
    """

    what: str
    before: str
    after: str
    why: str = ""


def changes(source: Path, written: Path, profile: ExportProfile) -> list[ExportChange]:
    """Returns what differs between a file and what was exported from it.

    Args:
        source: An ONNX file.
        written: What was exported from it.
        profile: The profile it was written in.

    Raises:
        ModelFileError: One of them cannot be read.
        InvalidModelError: One of them breaks ONNX's rules.
    """
    before, after = _view(source), _view(written)
    return [
        *_rules(before, after, profile),
        *_shapes(before, after),
        *_opset(before, after, profile),
        *_counted("activations stored as", _storage(before), _storage(after)),
        *_counted("operator", _operators(before), _operators(after)),
    ]


def run_otherwise(written: Path, profile: ExportProfile) -> list[ExportChange]:
    """Returns where onnxruntime computes something else than a file of another profile says.

    Args:
        written: What was exported.
        profile: The profile it was written in.

    Raises:
        ModelFileError: It cannot be read.
        InvalidModelError: It breaks ONNX's rules.
    """
    found: dict[str, list[str]] = {}
    rules = (*profile.exported, *(rule for rule in profile.rules if rule in FUSED_WRONGLY))
    for finding in findings_of(_view(written), rules) if profile.exported else ():
        found.setdefault(finding.rule, []).append(finding.node)
    return [
        ExportChange(
            _of_nodes(found[rule.name]), "as written",
            _COMPUTES.get(rule.name) or _MAKES_OF_IT[rule.effect],
            f"rule {rule.name} of --profile ort",
        )
        for rule in rules
        if rule.name in found
    ]  # fmt: skip


def costs(graph: Graph, profile: ExportProfile) -> list[ExportChange]:
    """Returns where numbers are otherwise than the graph says, because the runtime wants that.

    Args:
        graph: What is written.
        profile: The profile it is written in.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for cost in legalized(graph, profile.legalizations).notes:
        found.setdefault((cost.rule, cost.reason), []).append(cost.node)
    for node in () if profile.writing.packed else graph.nodes:
        if node.op is DYNAMIC_BLOCK_DENSE:
            found.setdefault(("packed-products", _UNROUNDED), []).append(node.name)
    return [
        ExportChange(_of_nodes(nodes), "as read", text, f"rule {rule}")
        for (rule, text), nodes in found.items()
    ]


def _of_nodes(nodes: Sequence[str]) -> str:
    return f"numbers of '{nodes[0]}'" + (f" and {len(nodes) - 1} more" if nodes[1:] else "")


def _view(path: Path) -> FileView:
    return view_of(read_model(path), path.parent, str(path))


def _rules(before: FileView, after: FileView, profile: ExportProfile) -> Iterator[ExportChange]:
    """Yields the rules that are now kept in more places, or in fewer."""
    found, left = (
        Counter(finding.rule for finding in findings_of(view, profile.rules))
        for view in (before, after)
    )
    for rule in profile.rules:
        if found[rule.name] != left[rule.name]:
            counts = (f"{each[rule.name]} broken" for each in (found, left))
            yield ExportChange(f"rule {rule.name}", *counts, why=f"{rule.fix} ({rule.source})")


def _shapes(before: FileView, after: FileView) -> Iterator[ExportChange]:
    known = {value.name: _dims(value) for value in after.model.graph.input}
    for value in before.model.graph.input:
        was, now = _dims(value), known.get(value.name)
        if now is not None and was != now:
            yield ExportChange(f"shape of '{value.name}'", was, now, "--extent gives numbers")


def _dims(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return "×".join(
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims
    )


def _opset(before: FileView, after: FileView, profile: ExportProfile) -> Iterator[ExportChange]:
    if before.opset != after.opset:
        why = "what the operators written need"
        newest = profile.writing.newest
        if newest is not None and before.opset > newest.opset:
            why = f"{newest.runtime} reads opset {newest.opset} and IR {newest.ir}"
        yield ExportChange("opset", str(before.opset), str(after.opset), why)


def _storage(view: FileView) -> Counter[str]:
    return Counter(
        str(view.encoding(node).dtype)
        for node in view.nodes
        if is_quantize(node) and not view.is_constant(node.input(0))
    )


def _operators(view: FileView) -> Counter[str]:
    return Counter(
        node.op
        for node in view.nodes
        if not (is_dequantize(node) and view.is_constant(node.input(0)))
        and not view.is_constant(node.output)
    )


def _counted(what: str, before: Counter[str], after: Counter[str]) -> Iterator[ExportChange]:
    for name in sorted(before.keys() | after.keys()):
        if before[name] != after[name]:
            yield ExportChange(f"{what} {name}", str(before[name]), str(after[name]))
