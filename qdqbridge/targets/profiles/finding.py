"""What a profile requires, as records that can be listed, and what a file does not keep of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

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
        operator: Its operator.
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
