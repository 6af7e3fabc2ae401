"""Rules of what is read from TVM, on text: ``text_cases/<rule>.txt``, as for the canonical rules.

The calls of the first text have the span of the operator that ends the second one, except for the
rules that look for no span.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqbridge as qb
from qdqbridge.core.rewrite.driver import run
from qdqbridge.tvm.qnn.origin import provenance_of, written
from qdqbridge.tvm.qnn.read.rules import FROM_TVM
from qdqbridge.tvm.qnn.read.rules.recorded import recorded_origin

CASES = sorted((Path(__file__).parent / "text_cases").glob("*.txt"))
BY_NAME = {rule.name: rule for rule in FROM_TVM}
WITHOUT_SPANS = ("unmistakable-form", "gemm-of-linear-layer")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rule(path: Path) -> None:
    before, after = path.read_text("utf-8").split("\n---\n")
    graph, wanted = (qb.parse(f"qnn-raw 1\n{text}") for text in (before, after))
    untouched = graph.text("inline")
    run(graph, [BY_NAME[path.stem]])
    assert (graph.text("inline") == untouched) == (path.stem not in WITHOUT_SPANS)
    provenance = provenance_of(written(wanted.nodes[-1]))
    assert provenance is not None
    for node in graph.nodes if path.stem not in WITHOUT_SPANS else ():
        node.origin = recorded_origin(provenance)
    run(graph, [BY_NAME[path.stem]])
    assert graph.text("inline") == wanted.text("inline")


def test_most_rules_are_shown() -> None:
    assert len(CASES) >= 10
    assert {path.stem for path in CASES} <= BY_NAME.keys()
