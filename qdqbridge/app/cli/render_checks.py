"""What a profile's check and a diff found, as tables for people and as JSON for programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.core.graph.diff import GraphDifference

if TYPE_CHECKING:
    from qdqbridge.targets.profiles import ExportProfile, Finding

_STYLES = {
    "refused": "bold red",
    "other numbers": "red",
    "elsewhere": "yellow",
    "float": "yellow",
    "no kernel": "dim",
    "other numbers on some processors": "yellow",
}
KEPT = frozenset({"other numbers on some processors"})
"""Effects that no file of a profile is free of: they are told, and fail no check."""


def findings_json(profile: ExportProfile, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the findings of a check as JSON."""
    return {
        "profile": profile.name,
        "runtime": profile.runtime,
        "met": all(finding.effect.value in KEPT for finding in findings),
        "rules": [
            {"name": rule.name, "applies_to": rule.applies_to, "source": rule.source}
            for rule in profile.rules
        ],
        "findings": [
            {
                "rule": finding.rule,
                "effect": finding.effect.value,
                "node": finding.node,
                "operator": finding.operator,
                "reason": finding.reason,
                "tensors": list(finding.tensors),
                "fix": finding.fix,
                "source": finding.source,
            }
            for finding in findings
        ],
    }


def findings_parts(profile: ExportProfile, findings: Sequence[Finding]) -> list[RenderableType]:
    """Returns the findings of a check as a table and a summary."""
    if not findings:
        rules = len(profile.rules)
        text = f"{profile.runtime}: all {rules} rules of profile '{profile.name}' are kept"
        return [Text(text)]
    table = Table(title=f"{profile.runtime}, profile '{profile.name}'", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("operator", no_wrap=True)
    table.add_column("effect", no_wrap=True)
    table.add_column("reason", overflow="fold", ratio=3)
    table.add_column("nodes", overflow="fold", ratio=3)
    table.add_column("rule", overflow="fold", ratio=1)
    for group in _groups(findings):
        first, count = group[0], len(group)
        effect = Text(first.effect.value, style=_STYLES[first.effect.value])
        reason = first.reason if count == 1 else _QUOTED.sub("'…'", first.reason)
        cells = map(Text, (reason, _listed(group), first.rule))
        table.add_row(str(count), Text(first.operator), effect, *cells)
    counts = Counter(finding.effect.value for finding in findings)
    listed = ", ".join(f"{counts[effect]} {effect}" for effect in _STYLES if counts[effect])
    word = "finding" if len(findings) == 1 else "findings"
    return [table, Text(f"{len(findings)} {word}: {listed}"), *_fixes(findings)]


_LISTED = 3
_QUOTED = re.compile(r"'[^']*'")


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Returns findings that differ only in the names of nodes and tensors together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        reason = _QUOTED.sub("", finding.reason)
        key = (finding.rule, finding.operator, finding.effect.value, reason)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _listed(group: Sequence[Finding]) -> str:
    names = ", ".join(finding.node for finding in group[:_LISTED])
    more = len(group) - _LISTED
    return f"{names} and {more} more (--json lists them)" if more > 0 else names


def _fixes(findings: Sequence[Finding]) -> list[RenderableType]:
    fixes = {finding.rule: finding.fix for finding in findings if finding.fix}
    return [Text(f"  {rule}: {fix}", style="dim") for rule, fix in fixes.items()]


def differences_json(differences: Sequence[GraphDifference]) -> dict[str, Any]:
    """Returns a diff as JSON."""
    return {
        "equal": not differences,
        "differences": [
            {"kind": d.kind.value, "where": d.where, "text": d.text, "a": d.a, "b": d.b}
            for d in differences
        ],
    }


def differences_parts(differences: Sequence[GraphDifference]) -> list[RenderableType]:
    """Returns a diff as a table and a summary."""
    if not differences:
        return [Text("equal: both models have one canonical form")]
    table = Table(show_edge=True)
    table.add_column("what", no_wrap=True)
    table.add_column("where", overflow="fold", ratio=2)
    table.add_column("difference", overflow="fold", ratio=3)
    for difference in differences:
        cells = (difference.kind.value, difference.where, difference.text)
        table.add_row(*map(Text, cells))
    counts = Counter(difference.kind.value for difference in differences)
    listed = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    return [table, Text(f"{len(differences)} difference{'s' if differences[1:] else ''}: {listed}")]
