"""What a page says of a blamed model: causes and repairs, as the command line does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qdqbridge.app.report.quantization.plots import (
    Content,
    Markup,
    decibels,
    name_of,
    table,
    tag,
)

if TYPE_CHECKING:
    from qdqbridge.autoquant.attribution import Attribution, SuspectTensor


def blame_article(
    found: Attribution, model: str, lines: Sequence[str], *, kernels: bool = False
) -> Markup:
    """Returns the causes and what helps as one element of HTML.

    Args:
        found: What was found.
        model: What the model is called.
        lines: What is said of the outputs.
        kernels: Whether one model's kernels are blamed: nothing is repaired then.
    """
    said = [tag("p", line) for line in lines]
    headings = ("tensor", "node", "cause", "own#", "outputs#")
    more = () if kernels else ("gain#", "tried, and helps")
    rows = [(*_row(each), *(() if kernels else _repair(each))) for each in found.tensors]
    tables = [table("Tensors, the worst first", (*headings, *more), rows)] if rows else []
    if found.nodes and not kernels:
        worst = sorted(found.nodes, key=lambda node: node.outputs_added_db)
        nodes: list[tuple[Content, ...]] = [
            (name_of(f"{n.operator} {n.name}".strip()), _parts(n.parts), decibels(n.added_db),
             decibels(n.inherited_db), decibels(n.outputs_added_db))
            for n in worst
        ]  # fmt: skip
        heads = ("node", "what it adds", "adds#", "inherits#", "outputs: adds#")
        tables.append(table("Nodes, by what they add to the outputs' error", heads, nodes))
    heading = tag("h1", "What loses the accuracy of ", name_of(model))
    return tag("article", heading, said, tables, id="report", aria_label="Report")


def cause_of(each: SuspectTensor) -> str:
    """Returns a tensor's cause, with its share."""
    share = each.causes.get(each.cause)
    return each.cause if share is None else f"{each.cause} ({share:.0%})"


def _row(each: SuspectTensor) -> tuple[Content, ...]:
    node = name_of(each.node) if each.node else ""
    place = name_of(each.name), node, cause_of(each)
    return (*place, decibels(each.added_db), decibels(each.alone_db))


def _repair(each: SuspectTensor) -> tuple[Content, ...]:
    gain = f"{each.gain_db:+.1f}" if each.gain_db else ""
    return gain, f"{each.repair} ({each.repair_db:+.1f} dB)" if each.repair else ""


def _parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {db:.1f} dB" for name, db in parts.items())
