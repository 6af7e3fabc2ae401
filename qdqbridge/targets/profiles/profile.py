"""Export profiles: what differs between the runtimes that a QDQ file is written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.rewrite.rule import Rule
from qdqbridge.onnx_io.writer.spec import WriterOptions
from qdqbridge.targets.profiles.finding import TargetRule


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
