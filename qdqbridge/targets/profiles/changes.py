"""What an export changed, and why: the file that was read beside the file that was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.onnx_io.reading.model_file import read_model
from qdqbridge.targets.profiles.checker import view_of
from qdqbridge.targets.profiles.file_view import FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.finding import Effect, findings_of
from qdqbridge.targets.profiles.legalization import legalized
from qdqbridge.targets.profiles.ort.rules import FUSED_WRONGLY
from qdqbridge.targets.profiles.profile import ExportProfile

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
