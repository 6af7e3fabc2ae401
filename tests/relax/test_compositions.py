"""Operators composed on TVM, and those that ONNX's definitions expand: onnxruntime's results."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.onnx_io.expansion import expanded
from tests.onnx_models import Builder, canonical
from tests.relax.random_compositions import MAKERS, PER_MODEL, cases, differing

pytestmark = pytest.mark.relax


def test_one_of_each() -> None:
    rng = Random(7)
    assert differing([make(rng) for make in dict.fromkeys(MAKERS)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_relatives(seed: int) -> None:
    assert differing(cases(PER_MODEL, seed + 1)) == []


def test_a_definition_is_a_graph_of_rows() -> None:
    b = Builder(23)
    q, k, v = (b.input(name, [1, 2, 4, 8]) for name in "qkv")
    b.output(b.op("Attention", q, k, v, is_causal=1), [1, 2, 4, 8])
    (node,) = canonical(b.model()).nodes
    graph = expanded(node)
    assert graph is not None
    assert [value.name for value in graph.inputs] == ["in_0", "in_1", "in_2"]
    assert {"MatMul", "Softmax"} <= {each.op.name for each in graph.nodes}


def test_what_has_no_definition_is_not_expanded() -> None:
    b = Builder(21)
    b.output(b.op("Trilu", b.input("x", [3, 3])), [3, 3])
    (node,) = canonical(b.model()).nodes
    assert expanded(node) is None


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_defined_operator_is_read_back(elem_type: int) -> None:
    """Half floats are computed in float32 inside, as onnxruntime does."""
    b = Builder(23)
    q, k, v = (b.input(name, [1, 2, 4, 8], elem_type) for name in "qkv")
    b.output(b.op("Attention", q, k, v), [1, 2, 4, 8], elem_type)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    dtype = np.float16 if elem_type == TensorProto.FLOAT16 else np.float32
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(1, 2, 4, 8)).astype(dtype) for name in "qkv"}
    (found,), (wanted,) = qb.compile(graph).run(given).values(), qb.evaluate(graph, given).values()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=1e-3)  # an ulp of halves
