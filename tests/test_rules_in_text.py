"""Rules on text: ``<room>/text_cases/<rule>.txt`` is what a rule takes, ``---``, what it gives.

``scripts/generators/rules_doc.py`` has the list of sets and shows these files in docs/rules.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.core.rewrite import Rule, run
from qdqbridge.onnx_io.lowering.context import file_operator
from qdqbridge.tvm.qnn.origin import provenance_of, written
from qdqbridge.tvm.qnn.read.rules.recorded import recorded_origin
from scripts.generators.rules_doc import SETS, RuleSet
from tests.core.canonical.at_work import alone, data_for, outputs

CASES = {
    each.case(rule): (each, rule)
    for each in reversed(SETS)  # a rule of several sets is held to the first, as on the page
    for rule in each.rules
    if each.case(rule).exists()
}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rule(path: Path, tmp_path: Path) -> None:
    each, rule = CASES[path]
    before, after = path.read_text("utf-8").split("\n---\n")
    if each.onnx:
        model = onnx.parser.parse_model(before)
        assert any(file_operator(node) in (rule.ops or ()) for node in model.graph.node)
        onnx.save(model, tmp_path / "file.onnx")
        raw = qb.load(tmp_path / "file.onnx", canonical=False)
        assert raw.text("inline") == f"qnn-raw 1\n{after}"
        return
    graph, wanted = (qb.parse(f"qnn-raw 1\n{text}") for text in (before, after))
    assert graph.digest != wanted.digest
    if each.spans:
        run(graph, [rule])
        assert graph.digest != wanted.digest
        provenance = provenance_of(written(wanted.nodes[-1]))
        assert provenance is not None
        for node in graph.nodes:
            node.origin = recorded_origin(provenance)
    assert applied(graph, each, rule) == []
    assert graph.text("inline") == wanted.text("inline")


def applied(graph: qb.Graph, each: RuleSet, rule: Rule) -> list[str]:
    """Applies a rule and returns its refusals; outputs are what its set says of them."""
    if each.exact:
        return alone(graph, rule)
    data = data_for(graph)
    before = outputs(graph, data)
    refused = run(graph, [rule])
    for wanted, got in zip(before, outputs(graph, data), strict=True):
        # a code may round to its neighbour, and floats are added in another order
        step = 1 if wanted.dtype.kind in "iu" else 1e-5
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=step
        )
    text = graph.text()
    run(graph, [rule])
    assert graph.text() == text
    return [reject.reason for reject in refused.values()]


def test_every_case_is_of_a_rule() -> None:
    files = set(Path(__file__).parent.rglob("text_cases/*.txt"))
    assert files == CASES.keys()
    assert {each.room for each, _ in CASES.values()} == {
        each.room for each in SETS if not each.variants
    }
