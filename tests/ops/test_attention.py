"""The attention operators: the interpreter's function beside onnxruntime, and TVM beside both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.graph.verify import verify
from qdqbridge.ops.table import BY_NAME
from tests.onnx_models import canonical
from tests.ops.attention_cases import FAMILIES

CLOSE = 2e-5
"""Sums of float32 in another order; random cases are off by 3e-6 at most."""


@pytest.mark.parametrize("family", FAMILIES)
def test_random_nodes_are_onnxruntimes(family: str) -> None:
    for seed in range(200):
        case = FAMILIES[family](seed)
        wanted = case.reference()
        results = BY_NAME[case.op].compute(case.attributes, case.operands)
        assert case.distance(results[: len(wanted)], wanted) < CLOSE, seed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("open_axes", [False, True])
def test_nodes_run_on_tvm_and_come_back(family: str, open_axes: bool, tmp_path: Path) -> None:
    for seed in range(3):
        case = FAMILIES[family](seed)
        wanted = case.reference()
        graph = canonical(case.model(open_axes=open_axes))
        assert not list(verify(graph) or ())
        assert graph.nodes[-1].op is BY_NAME[case.op]
        module, _ = qb.to_relax(graph)
        assert qb.from_relax(module).digest == graph.digest
        results = qb.compile(graph).run(case.feeds())
        found = [np.asarray(results[f"out_{i}"]) for i in range(len(wanted))]
        assert case.distance(found, wanted) < CLOSE, seed
        qb.save(graph, tmp_path / f"{seed}.onnx")
        assert qb.load(tmp_path / f"{seed}.onnx").digest == graph.digest


def test_a_text_of_such_a_node_is_read_back() -> None:
    graph = canonical(FAMILIES["grouped"](1).model())
    assert qb.parse(graph.text()).digest == graph.digest
