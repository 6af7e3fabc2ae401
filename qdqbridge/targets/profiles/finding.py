"""What a profile requires, as records that can be listed, and what a file does not keep of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import onnx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.rewrite import Rule
from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.onnx_io.control_flow.bodies import is_quantized
from qdqbridge.onnx_io.control_flow.branches import take_constant_branches
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.inference.shapes import infer
from qdqbridge.onnx_io.reading.functions import inline_functions
from qdqbridge.onnx_io.reading.model_file import default_opset, read_model
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.reading.structure import check_text, sort_nodes
from qdqbridge.onnx_io.writer.spec import WriterOptions
from qdqbridge.targets.profiles.file_view import FileNode, FileView


class Effect(Enum):
    """What happens where a rule is not kept."""

    REFUSED = "refused"
    """The runtime does not load the file, or computes something else from it."""

    FLOAT = "float"
    """The runtime computes in float what it could compute on integers."""

    ELSEWHERE = "elsewhere"
    """The runtime leaves it to another processor than the one that the file is for."""

    NO_KERNEL = "no kernel"
    """The runtime computes in float: it has no integer form of the operator."""

    OTHER = "other numbers"
    """The runtime computes something else from it with its graph optimizations."""

    PROCESSOR = "other numbers on some processors"
    """The runtime computes something else from it where a processor lacks an instruction. The file
    is as its profile wants it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rule is not kept.

    Attributes:
        text: One sentence that names the values.
        tensors: The tensors concerned.
        steps: How far results may be off for it, in steps of the result; 0 where it says nothing.
        effect: What happens, where it is not what the rule says.
    """

    text: str
    tensors: tuple[str, ...] = ()
    steps: int = 0
    effect: Effect | None = None


Check: TypeAlias = "Callable[[FileView, FileNode], Reason | None]"


@dataclass(frozen=True, slots=True)
class TargetRule:
    """One rule of a runtime.

    Attributes:
        name: Kebab-case.
        applies_to: The nodes it speaks about, in words.
        check: Returns why a node does not keep it, None where it does or is not concerned.
        source: Where the rule is written or was measured.
        effect: What happens where it is not kept.
        fix: What the user can do.
    """

    name: str
    applies_to: str
    check: Check
    source: str
    effect: Effect
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a file does not keep a rule.

    Attributes:
        rule: The rule's name.
        effect: What happens.
        node: Name of the node.
        reason: One sentence that names the values.
        tensors: The tensors concerned.
        fix: What the user can do.
        source: Where the rule is written or was measured.
        steps: How far results may be off, in steps of the result; 0 where it says nothing.
    """

    rule: str
    effect: Effect
    node: str
    operator: str
    reason: str
    tensors: tuple[str, ...] = ()
    fix: str = ""
    source: str = ""
    steps: int = 0


def findings_of(view: FileView, rules: tuple[TargetRule, ...]) -> list[Finding]:
    """Returns every place where a file does not keep one of the rules, in the file's order."""
    found: list[Finding] = []
    for node in view.nodes:
        for rule in rules:
            reason = rule.check(view, node)
            if reason is not None:
                found.append(
                    Finding(
                        rule.name, reason.effect or rule.effect, node.name, node.op, reason.text,
                        reason.tensors, rule.fix, rule.source, reason.steps,
                    )
                )  # fmt: skip
    return found


# ---- Export profiles: what differs between the runtimes that a QDQ file is written for -----------


@dataclass(frozen=True, slots=True)
class Older:
    """An opset to fall back to where a newer one breaks a rule.

    Attributes:
        rule: The rule's name.
        newest: The newest opset that keeps it.
    """

    rule: str
    newest: int


@dataclass(frozen=True, slots=True)
class ExportProfile:
    """How a graph is prepared and written for a runtime, and what the runtime requires.

    Attributes:
        name: The name users give.
        runtime: What reads such files.
        writing: How to write what ONNX allows to write in several ways. Where it is
            ``convolvable``, int8 activations with a zero point, or that a Concat makes for a Conv,
            become uint8 as well.
        rules: What a file must keep so that the runtime accepts and fuses it.
        exported: Rules of onnxruntime, which may read such files as well: where it rounds once
            more, an export says so, and a check does not mind.
        recentered: Turn uint8 with zero point 128 into int8 with zero point 0.
        unsigned: Which signed types become unsigned in a graph, zero points shifted.
        legalizations: What is put otherwise in a graph before it is written.
        as_read: Keep the nodes of a file that stores no quantized activation: by the neighbours of
            a node the runtime decides what is fused, and where results are rounded.
        strict: Refuse to write what the runtime would refuse to read.
        fixed: The runtime takes fixed shapes only.
        older: Where to write an older opset than the source's.
    """

    name: str
    runtime: str
    writing: WriterOptions
    rules: tuple[TargetRule, ...] = ()
    exported: tuple[TargetRule, ...] = ()
    recentered: bool = False
    unsigned: Callable[[Graph], tuple[DType, ...]] | None = None
    legalizations: tuple[Rule, ...] = ()
    as_read: bool = False
    strict: bool = False
    fixed: bool = False
    older: Older | None = None


# ---- Whether a file keeps what a profile's runtime requires --------------------------------------


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
