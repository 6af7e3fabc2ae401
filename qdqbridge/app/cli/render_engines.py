"""What engines take, and what an export changed for one, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from qdqbridge.targets.engines.judge import EngineVerdict, Placement
    from qdqbridge.targets.profiles.changes import ExportChange

_LISTED = 20


def verdict_json(verdict: EngineVerdict) -> dict[str, Any]:
    """Returns what an engine takes as JSON."""
    return {
        "engine": verdict.engine,
        "version": verdict.version,
        "whole": verdict.takes_all,
        "partitions": verdict.partitions,
        "placements": [asdict(placement) for placement in verdict.placements],
    }


def verdict_parts(verdict: EngineVerdict) -> list[RenderableType]:
    """Returns what an engine takes as a table of what it leaves, and a summary."""
    places = Counter(placement.place for placement in verdict.placements)
    listed = ", ".join(f"{number} {place}" for place, number in places.most_common())
    pieces = "1 partition" if verdict.partitions == 1 else f"{verdict.partitions} partitions"
    summary = Text(f"{verdict.engine} ({verdict.version}): {listed}; {pieces}")
    left = [placement for placement in verdict.left if placement.why] or list(verdict.left)
    if not left:
        return [summary]
    table = Table(title=f"{verdict.engine} leaves", title_justify="left")
    for name in ("node", "operator", "runs", "why"):
        table.add_column(name, overflow="fold")
    for placement in left[:_LISTED]:
        table.add_row(*map(Text, _cells(placement)))
    more = len(left) - _LISTED
    rest = [Text(f"… and {more} more (--json lists them)")] if more > 0 else []
    return [table, *rest, summary]


def _cells(placement: Placement) -> tuple[str, str, str, str]:
    why = placement.why or "the engine does not say"
    return placement.node, placement.operator, placement.place, why


def changes_json(changes: Sequence[ExportChange]) -> list[dict[str, str]]:
    """Returns what an export changed as JSON."""
    return [asdict(change) for change in changes]


def changes_parts(changes: Sequence[ExportChange]) -> list[RenderableType]:
    """Returns what an export changed as a table."""
    if not changes:
        return [Text("nothing differs from the file that was read")]
    table = Table(title="changed", title_justify="left")
    for name in ("what", "before", "after", "why"):
        table.add_column(name, overflow="fold")
    for change in changes:
        table.add_row(*map(Text, (change.what, change.before, change.after, change.why)))
    return [table]
