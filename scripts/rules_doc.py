"""Writes docs/rules.md from the canonical rules and their text cases.

Run as ``python scripts/rules_doc.py``; with ``--check`` it only says whether the page is current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from qdqbridge.core.canonical.rules import RULES, rules_with
from qdqbridge.core.options import ReadingOptions
from qdqbridge.core.rewrite.rule import Rule
from scripts.generated_page import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rules.md"
CASES = ROOT / "tests" / "core" / "canonical" / "text_cases"
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_INTRODUCTION = """\
# Canonical rules

Every rule of the canonical form, in the order in which rules look at a node
(`qdqbridge/core/canonical/rules.py`). Made by `python scripts/rules_doc.py` from the rules'
docstrings and from `tests/core/canonical/text_cases/`, which are tests: a rule alone makes exactly
the second text of the first, and outputs keep every bit. [Adding a canonical
rule](adding_a_rule.md) says how to write one.

The texts are what `qdqbridge.parse` reads (behind a first line, `qnn-raw 1`): inputs, then one node
per line with its operands, attributes and result type, then outputs.
`quant<uint8, 0.03125, 128>[n,4]` is a tensor of n times 4 stored uint8 with scale 0.03125 and zero
point 128; `range=128..255` says which codes occur; a constant is written where it is read.
"""


def page() -> str:
    """Returns the page as it should be."""
    lines = [_INTRODUCTION, *_section("Always", RULES)]
    for field in dataclasses.fields(ReadingOptions):
        added = rules_with(ReadingOptions(**{field.name: True}))[: -len(RULES)]
        lines += _section(f"With `{field.name}`, in front of these", added)
    added = rules_with(ReadingOptions(), channels_first=True)[: -len(RULES)]
    lines += _section("With `channels_first`, in front of these", added)
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, rules: Sequence[Rule]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for rule in rules:
        yield from (f"### {rule.name}", "", _prose(rule), "")
        case = CASES / f"{rule.name}.txt"
        if case.exists():
            before, after = case.read_text("utf-8").split("\n---\n")
            yield from ("```text", before.strip(), "```", "")
            yield from ("becomes", "", "```text", after.strip(), "```", "")


def _prose(rule: Rule) -> str:
    """Returns a rule's docstring in Markdown."""
    return _ROLE.sub(r"`\1`", (inspect.getdoc(rule.apply) or "").replace("``", "`"))


if __name__ == "__main__":
    sys.exit(main(PAGE, page, __doc__))
