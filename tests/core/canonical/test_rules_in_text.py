"""Canonical rules on text: ``text_cases/<rule>.txt`` is what a rule takes, ``---``, what it gives.

``scripts/rules_doc.py`` shows these files in docs/rules.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqbridge as qb
from qdqbridge.core.canonical.rules import RULES
from tests.core.canonical.at_work import alone

CASES = sorted((Path(__file__).parent / "text_cases").glob("*.txt"))
BY_NAME = {rule.name: rule for rule in RULES}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rule(path: Path) -> None:
    before, after = path.read_text("utf-8").split("\n---\n")
    graph, wanted = (qb.parse(f"qnn-raw 1\n{text}") for text in (before, after))
    assert graph.digest != wanted.digest
    assert alone(graph, BY_NAME[path.stem]) == []
    assert graph.text("inline") == wanted.text("inline")


def test_most_rules_are_shown() -> None:
    assert len(CASES) >= 15
    assert {path.stem for path in CASES} <= BY_NAME.keys()
